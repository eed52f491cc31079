//! The state of a walk.

use std::sync::Arc;

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};
use pyo3::{PyTypeInfo, ffi};

use super::super::classes::Classes;
use super::super::dtypes::Dtype;
use super::super::failure::{Failure, Walked};
use super::super::fields::FieldsByType;
use super::super::hooks::Hooks;
use super::super::memory::BytesLender;
use super::super::watch::Signals;
use super::arrays::LastSmall;
use super::devices::{Devices, WINDOW_BYTES};
use super::payload::LeafPayload;
use crate::Error;
use crate::array::{Array, Framing};
use crate::encoder::Encoder;
use crate::structure::{Kind, Record};
use crate::wire;

/// What is recorded of a tree: each of these, and what is before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    Nothing,
    Structure,
    /// Where the leaves are.
    Index,
    /// Those of the leaves, once they are written.
    Checksums,
}

/// How a tree is to be walked.
#[allow(clippy::struct_excessive_bools)] // they have names in Python
pub struct Options<'py> {
    /// Write state dicts: lists as maps, keys as strings, containers expanded.
    pub state_dict: bool,
    /// Sort the keys of dicts.
    pub sort_keys: bool,
    /// What is recorded in the last pair of the map at the top.
    pub recorded: Recorded,
    /// A value that is written with the structure.
    pub metadata: Option<Vec<u8>>,
    /// What is recorded instead of the structure that is met.
    pub record: Option<Record>,
    /// How arrays are framed.
    pub framing: Framing,
    /// Keep the place of arrays, but do not write them.
    pub hollow: bool,
    /// The output will be one `bytes` object: small arrays are copied there at once.
    pub joined: bool,
    /// Types that are walked natively otherwise, but have handlers now.
    pub overridden: Vec<Bound<'py, PyType>>,
}

/// Where in the tree the walk is.
#[derive(Clone, Copy)]
pub struct Position {
    /// Below here lists become maps and keys strings. Not so below the state
    /// that a handler returned: that is final.
    pub state: bool,
    pub depth: usize,
}

impl Position {
    /// The place below a container.
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

/// The types that are told apart by one comparison each.
pub struct Types {
    pub dict: *mut ffi::PyTypeObject,
    pub list: *mut ffi::PyTypeObject,
    pub tuple: *mut ffi::PyTypeObject,
    pub string: *mut ffi::PyTypeObject,
    pub bytes: *mut ffi::PyTypeObject,
    pub int: *mut ffi::PyTypeObject,
    pub float: *mut ffi::PyTypeObject,
    pub bool: *mut ffi::PyTypeObject,
    pub complex: *mut ffi::PyTypeObject,
    pub array: *mut ffi::PyTypeObject,
}

impl Types {
    pub fn new(py: Python<'_>) -> Self {
        Self {
            dict: PyDict::type_object_raw(py),
            list: PyList::type_object_raw(py),
            tuple: PyTuple::type_object_raw(py),
            string: PyString::type_object_raw(py),
            bytes: PyBytes::type_object_raw(py),
            int: PyInt::type_object_raw(py),
            float: PyFloat::type_object_raw(py),
            bool: PyBool::type_object_raw(py),
            complex: PyComplex::type_object_raw(py),
            array: PyUntypedArray::type_object_raw(py),
        }
    }
}

/// A dtype that was met.
pub struct Met {
    pub dtype: Arc<Dtype>,
    /// How many jax arrays of this dtype may yet refuse to lend their memory.
    pub lent: u8,
}

impl Met {
    /// The header of an array of this dtype.
    pub fn header<'a>(&'a self, code: i8, shape: &'a [usize]) -> Array<'a> {
        Array {
            code,
            shape,
            dtype: &self.dtype.name,
            itemsize: self.dtype.itemsize,
        }
    }
}

/// One walk.
pub struct Walk<'py> {
    pub py: Python<'py>,
    pub hooks: &'static Hooks,
    pub signals: Signals,
    pub types: Types,
    pub options: Options<'py>,
    pub out: Encoder<LeafPayload>,
    pub dtypes: Vec<Met>,
    pub(super) last_small: Option<LastSmall>,
    /// Whether every array of jax so far has lent its memory, so that the next one is asked
    /// before anything else is.
    pub all_lent: bool,
    /// By the formats of buffers that arrays of jax have lent: the index of the dtype.
    pub formats: Vec<(Vec<u8>, usize)>,
    /// What jax calls the type of the last array, and what it is recorded as.
    pub aval: Option<(Bound<'py, PyAny>, Kind)>,
    /// The shardings of arrays of jax, and the numbers that they are recorded by, if they are.
    pub shardings: Vec<(Bound<'py, PyAny>, Option<u32>)>,
    pub classes: Classes<'py>,
    pub fields: FieldsByType<'py>,
    pub devices: Arc<Devices>,
    /// The arrays that are not written.
    pub hollow: Vec<Py<PyAny>>,
    /// All failures so far, if the walk is only to find out what cannot be written. What has
    /// been put out is of no use then.
    pub problems: Option<Vec<Failure>>,
}

impl<'py> Walk<'py> {
    /// The most problems that are collected.
    pub const MAX_PROBLEMS: usize = 1000;

    /// Where a walk begins.
    pub fn root(&self) -> Position {
        Position {
            state: self.options.state_dict,
            depth: 0,
        }
    }

    /// A walk that has not begun.
    pub fn new(py: Python<'py>, options: Options<'py>) -> PyResult<Self> {
        let mut out = match options.recorded {
            Recorded::Nothing => Encoder::new(options.framing),
            Recorded::Structure => Encoder::described(options.framing),
            Recorded::Index => Encoder::indexed(options.framing, false),
            Recorded::Checksums => Encoder::indexed(options.framing, true),
        };
        if options.joined {
            out.borrow_from(Box::new(BytesLender));
        }
        Ok(Self {
            py,
            hooks: Hooks::get(py)?,
            signals: Signals::new(),
            types: Types::new(py),
            out,
            options,
            dtypes: Vec::new(),
            last_small: None,
            all_lent: true,
            formats: Vec::new(),
            aval: None,
            shardings: Vec::new(),
            classes: Classes::default(),
            fields: FieldsByType::default(),
            devices: Arc::new(Devices::new(WINDOW_BYTES)),
            hollow: Vec::new(),
            problems: None,
        })
    }
}
