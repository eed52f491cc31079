//! The state of a walk: where it is, what it has met, and what stops it.

use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};
use pyo3::{PyTypeInfo, ffi, intern};

use super::super::errors;
use super::super::hooks::Hooks;
use super::source::Source;
use crate::Error;
use crate::array::{Array, Framing, RecentHeaders};
use crate::layout::LayoutBuilder;
use crate::structure::Recorder;
use crate::wire;

/// How a tree is to be walked.
pub struct Options<'py> {
    /// Write state dicts: lists as maps, keys as strings, containers expanded.
    pub state_dict: bool,
    /// Sort the keys of dicts.
    pub sort_keys: bool,
    /// Record the structure, and write it as the last pair of the map at the top.
    pub structure: bool,
    /// A value that is written with the structure.
    pub metadata: Option<Vec<u8>>,
    /// How arrays are framed.
    pub framing: Framing,
    /// Types that are walked natively otherwise, but have handlers now.
    pub overridden: Vec<Bound<'py, PyType>>,
}

/// What stops a walk; the path is collected while it unwinds.
pub enum Failure {
    Core(Error),
    Raised(PyErr),
    /// A leaf that cannot be written, and why.
    Leaf(String),
    /// A tree that cannot be written, and why.
    Tree(String),
}

impl From<Error> for Box<Failure> {
    fn from(error: Error) -> Self {
        Self::new(Failure::Core(error))
    }
}

impl From<PyErr> for Box<Failure> {
    fn from(error: PyErr) -> Self {
        Self::new(Failure::Raised(error))
    }
}

impl From<pyo3::CastError<'_, '_>> for Box<Failure> {
    fn from(error: pyo3::CastError<'_, '_>) -> Self {
        PyErr::from(error).into()
    }
}

#[allow(clippy::unnecessary_box_returns)] // `Walked` says why
impl Failure {
    /// A leaf that cannot be written.
    pub fn leaf(why: impl Into<String>) -> Box<Self> {
        Box::new(Self::Leaf(why.into()))
    }

    /// A tree that cannot be written.
    pub fn tree(why: impl Into<String>) -> Box<Self> {
        Box::new(Self::Tree(why.into()))
    }

    pub fn into_py(self, py: Python<'_>, path: &[String]) -> PyErr {
        let path = errors::path_to(path);
        match self {
            Self::Core(error) => errors::to_py(py, error, Some(&path)),
            Self::Leaf(why) => errors::make(py, "UnserializableLeafError", (why, path)),
            Self::Tree(why) => errors::make(py, "TreepackError", (format!("at {path}: {why}"),)),
            Self::Raised(error) => {
                // Best effort: the error itself says what is wrong.
                let note = format!("treepack: while serializing {path}");
                let _ = error
                    .value(py)
                    .call_method1(intern!(py, "add_note"), (note,));
                error
            }
        }
    }
}

/// Boxed, because results lie on the stack at every level of the tree.
pub type Walked<T = ()> = Result<T, Box<Failure>>;

/// Where in the tree the walk is.
#[derive(Clone, Copy)]
pub struct Place {
    /// Below here lists become maps and keys strings. Not so below the state
    /// that a handler returned: that is final.
    pub state: bool,
    /// Some container above is written as a msgpack array.
    pub in_list: bool,
    pub depth: usize,
}

impl Place {
    /// The place below a container.
    pub fn below(self) -> Walked<Self> {
        if self.depth >= wire::MAX_DEPTH {
            return Err(PyValueError::new_err(format!(
                "the tree is nested more than {} levels deep, or contains itself",
                wire::MAX_DEPTH
            ))
            .into());
        }
        Ok(Place {
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

/// What `_leaves.classify` answers; the numbers stand there as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Unsupported,
    Array,
    Scalar,
    JaxArray,
    PrngKey,
    BytesLike,
    Ext,
    Timestamp,
    Node,
}

impl Class {
    pub const ALL: [Self; 9] = [
        Self::Unsupported,
        Self::Array,
        Self::Scalar,
        Self::JaxArray,
        Self::PrngKey,
        Self::BytesLike,
        Self::Ext,
        Self::Timestamp,
        Self::Node,
    ];
}

/// How a dtype is written.
pub struct Dtype<'py> {
    pub object: Bound<'py, PyArrayDescr>,
    pub name: String,
    pub itemsize: usize,
    pub native: bool,
    /// How many jax arrays of this dtype may yet refuse to lend their memory.
    pub lent: u8,
}

impl Dtype<'_> {
    /// The header of an array of this dtype.
    pub fn header<'a>(&'a self, code: i8, shape: &'a [usize]) -> Array<'a> {
        Array {
            code,
            shape,
            dtype: &self.name,
            itemsize: self.itemsize,
        }
    }
}

/// A jax array whose bytes are fetched at the end.
pub struct OnDevice<'py> {
    pub array: Bound<'py, PyAny>,
    pub shape: Vec<usize>,
    pub itemsize: usize,
    /// Its places in the layout, with the range of its bytes that belongs there.
    pub parts: Vec<(usize, std::ops::Range<usize>)>,
}

/// One walk.
pub struct Walk<'a, 'py> {
    pub py: Python<'py>,
    pub hooks: &'static Hooks,
    pub types: Types,
    pub options: &'a Options<'py>,
    pub out: LayoutBuilder<Source>,
    pub recent: RecentHeaders,
    /// Takes down the structure, if that is asked for.
    pub recorder: Option<Recorder>,
    /// How many pairs the next map will have besides those of its container.
    pub more_pairs: u32,
    pub dtypes: Vec<Dtype<'py>>,
    /// The types are held, so that no other one gets the address of one that was met.
    pub classes: Vec<(Bound<'py, PyType>, Class)>,
    pub on_device: Vec<OnDevice<'py>>,
    /// On a failure: the keys from the leaf up to the root.
    pub path: Vec<String>,
}

impl<'a, 'py> Walk<'a, 'py> {
    /// A walk that has not begun.
    pub fn new(py: Python<'py>, options: &'a Options<'py>) -> PyResult<Self> {
        Ok(Self {
            py,
            hooks: Hooks::get(py)?,
            types: Types::new(py),
            options,
            out: LayoutBuilder::default(),
            recent: RecentHeaders::default(),
            recorder: options.structure.then(Recorder::default),
            more_pairs: 0,
            dtypes: Vec::new(),
            classes: Vec::new(),
            on_device: Vec::new(),
            path: Vec::new(),
        })
    }
}
