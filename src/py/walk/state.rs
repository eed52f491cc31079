//! Options and state of a walk.

use std::sync::Arc;

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{PyTypeInfo, ffi};

use super::super::classes::Classes;
use super::super::dtypes::Dtype;
use super::super::failure::{Failure, Walked};
use super::super::fields::FieldsByType;
use super::super::hooks::Hooks;
use super::super::memory::{Alike, lend_bytes};
use super::super::watch::Signals;
use super::devices::{Devices, WINDOW_BYTES};
use super::payload::LeafPayload;
use crate::Error;
use crate::format::array::{Array, Like};
use crate::format::encoder::Encoder;
use crate::format::structure::Kind;
use crate::format::wire;

#[allow(clippy::struct_excessive_bools)] // they have names in Python
#[derive(Default)]
pub struct Options<'py> {
    /// Write state dicts: lists as maps, keys as strings, containers expanded.
    pub state_dict: bool,
    pub sort_keys: bool,
    pub gaps: bool,
    /// Copy small arrays at once, because the output is one `bytes` object.
    pub joined: bool,
    /// Types that now have handlers, and are walked natively otherwise.
    pub overridden: Vec<Bound<'py, PyType>>,
    /// Describes nodes and shardings, and what the save leaves out.
    pub left_out: Option<Bound<'py, PyAny>>,
}

#[derive(Clone, Copy)]
pub struct Position {
    /// Whether lists become maps and keys strings; false in the final state of a handler.
    pub state: bool,
    pub depth: usize,
}

impl Position {
    pub fn below(self) -> Walked<Self> {
        let limit = wire::MAX_DEPTH;
        if self.depth >= limit {
            return Err(Error::TreeTooDeep { limit }.into());
        }
        Ok(Position {
            depth: self.depth + 1,
            ..self
        })
    }
}

pub struct KnownDtype {
    pub dtype: Arc<Dtype>,
    /// How often jax arrays of this dtype may still refuse to lend memory.
    pub lent: u8,
}

impl KnownDtype {
    pub fn header<'a>(&'a self, code: i8, shape: &'a [usize]) -> Array<'a> {
        Array {
            code,
            shape,
            dtype: &self.dtype.name,
            itemsize: self.dtype.itemsize,
        }
    }
}

/// The last small array: the next one is often like it.
pub(super) struct LastSmall {
    pub code: i8,
    pub alike: Alike,
    /// Whether it was like the array before.
    pub is_repeated: bool,
    /// See [`crate::format::encoder::Encoder::last_headers`].
    pub headers: Like,
}

pub struct Walk<'py> {
    pub py: Python<'py>,
    pub hooks: &'static Hooks,
    pub signals: Signals<'py>,
    pub array_type: *mut ffi::PyTypeObject,
    pub options: Options<'py>,
    pub out: Encoder<LeafPayload>,
    pub dtypes: Vec<KnownDtype>,
    pub(super) last_small: Option<LastSmall>,
    /// Every jax array so far has lent its memory: the next one is tried first.
    pub all_lent: bool,
    /// Indices of dtypes by the buffer formats of jax arrays.
    pub formats: Vec<(Vec<u8>, usize)>,
    pub aval: Option<(Bound<'py, PyAny>, Kind)>,
    /// Shardings and their numbers in the record.
    pub shardings: Vec<(Bound<'py, PyAny>, Option<u32>)>,
    pub classes: Classes<'py>,
    pub fields: FieldsByType<'py>,
    pub devices: Arc<Devices>,
    pub gaps: Vec<Py<PyAny>>,
    /// Failures so far, if the walk only collects them. Then its output is useless.
    pub problems: Option<Vec<Failure>>,
}

impl<'py> Walk<'py> {
    pub const MAX_PROBLEMS: usize = 1000;

    pub fn new(
        py: Python<'py>,
        mut out: Encoder<LeafPayload>,
        options: Options<'py>,
    ) -> PyResult<Self> {
        if options.joined {
            out.borrow_from(Box::new(lend_bytes));
        }
        let recorder = options.left_out.as_ref();
        let r#static = recorder.map(|recorder| recorder.getattr(intern!(py, "static")));
        Ok(Self {
            py,
            hooks: Hooks::get(py)?,
            signals: Signals::new(py),
            array_type: PyUntypedArray::type_object_raw(py),
            out,
            classes: Classes::new(r#static.transpose()?),
            options,
            dtypes: Vec::new(),
            last_small: None,
            all_lent: true,
            formats: Vec::new(),
            aval: None,
            shardings: Vec::new(),
            fields: FieldsByType::default(),
            devices: Arc::new(Devices::new(WINDOW_BYTES)),
            gaps: Vec::new(),
            problems: None,
        })
    }
}
