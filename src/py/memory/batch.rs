//! Fast path: batches arrays of one dtype and shape in a dict.

use std::ptr;
use std::slice;

use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3::{PyTypeInfo, ffi};

use super::arrays::Alike;
use crate::format::array::Like;
use crate::format::encoder::Encoder;
use crate::format::layout::Payload;

/// Writes pairs of a `str` and an array like the last one. Moves `position` to the first other
/// pair, and returns the number of pairs, at most `most`.
///
/// Owned references would cost a tenth.
pub fn write_alike<P: Payload>(
    out: &mut Encoder<P>,
    headers: &Like,
    alike: &Alike,
    dict: &Bound<'_, PyDict>,
    position: &mut ffi::Py_ssize_t,
    most: usize,
) -> usize {
    if cfg!(Py_GIL_DISABLED) {
        return 0; // other threads may change the dict
    }
    let py = dict.py();
    let (string, array) = (
        PyString::type_object_raw(py),
        PyUntypedArray::type_object_raw(py),
    );
    // Positions after and before the last pair taken.
    let (mut reached, mut before) = (*position, *position);
    let mut given = 0;
    let count = out.pairs_like(headers, || {
        if given == most {
            return None;
        }
        let mut at = reached;
        let (mut key, mut value) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the call checks the position against the current dict, and lends references. No
        // Python code that could remove them from the dict runs before the next call: `pairs_like`
        // only writes to its own memory. Types are compared before use. The text belongs to the
        // string, and is UTF-8.
        let (text, memory) = unsafe {
            if ffi::PyDict_Next(dict.as_ptr(), &raw mut at, &raw mut key, &raw mut value) == 0
                || ffi::Py_TYPE(key) != string
                || ffi::Py_TYPE(value) != array
            {
                return None;
            }
            let memory = alike.memory_of(value.cast())?;
            (text_of(key)?, memory)
        };
        (before, reached) = (reached, at);
        given += 1;
        Some((text, memory))
    });
    *position = if count == given { reached } else { before };
    count
}

/// Returns the UTF-8 text of a `str`, if it has one.
///
/// # Safety
/// `string` is a `str`, and lives as long as its text is used.
#[inline]
unsafe fn text_of<'a>(string: *mut ffi::PyObject) -> Option<&'a str> {
    let mut len = 0;
    // SAFETY: the call returns `len` bytes of UTF-8, which the string keeps, or null and an error.
    unsafe {
        let start = ffi::PyUnicode_AsUTF8AndSize(string, &raw mut len);
        if start.is_null() {
            ffi::PyErr_Clear();
            return None;
        }
        let bytes = slice::from_raw_parts(start.cast(), usize::try_from(len).unwrap_or(0));
        Some(std::str::from_utf8_unchecked(bytes))
    }
}
