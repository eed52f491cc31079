//! Objects of Python, or a `MemoryError`: where pyo3 would panic if there is no memory.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyDict, PyFloat, PyInt, PyList, PyString};

macro_rules! create {
    ($(#[$doc:meta] $name:ident($($argument:ident: $kind:ty),*) -> $class:ty = $call:expr;)*) => {$(
        #[$doc]
        #[inline]
        #[allow(clippy::elidable_lifetime_names)] // without, they are ambiguous
        pub fn $name<'py>(py: Python<'py>, $($argument: $kind),*) -> PyResult<Bound<'py, $class>> {
            // SAFETY: the call returns a new object of this class, or null and an error. What it
            // is given is valid for its length.
            unsafe {
                let object = Bound::from_owned_ptr_or_err(py, $call)?;
                Ok(object.cast_into_unchecked())
            }
        }
    )*};
}

create! {
    /// An empty dict.
    new_dict() -> PyDict = ffi::PyDict_New();
    /// An empty list.
    new_list() -> PyList = ffi::PyList_New(0);
    /// A string of UTF-8, or the error of Python if it is none.
    new_string(text: &[u8]) -> PyString =
        ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len().cast_signed());
    /// A signed integer.
    new_int(value: i64) -> PyInt = ffi::PyLong_FromLongLong(value);
    /// An unsigned integer.
    new_uint(value: u64) -> PyInt = ffi::PyLong_FromUnsignedLongLong(value);
    /// A float.
    new_float(value: f64) -> PyFloat = ffi::PyFloat_FromDouble(value);
    /// A complex number.
    new_complex(real: f64, imaginary: f64) -> PyComplex =
        ffi::PyComplex_FromDoubles(real, imaginary);
}
