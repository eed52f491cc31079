//! Iterates over a dict that other code may change.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyString};

/// Returns the entry at `position`, and advances that. Unlike an iterator, allows changes between
/// calls.
#[inline]
pub fn dict_next<'py>(
    dict: &Bound<'py, PyDict>,
    position: &mut ffi::Py_ssize_t,
) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let mut key = std::ptr::null_mut();
    let mut value = std::ptr::null_mut();
    // A no-op with the GIL.
    with_critical_section(dict, || {
        // SAFETY: the call checks the position against the current dict, and lends references,
        // which become owned before other code can run.
        unsafe {
            if ffi::PyDict_Next(dict.as_ptr(), position, &raw mut key, &raw mut value) == 0 {
                return None;
            }
            let py = dict.py();
            Some((
                Bound::from_borrowed_ptr(py, key),
                Bound::from_borrowed_ptr(py, value),
            ))
        }
    })
}

#[inline(never)]
pub fn has_string_keys(dict: &Bound<'_, PyDict>) -> bool {
    let mut position = 0;
    while let Some((key, _)) = dict_next(dict, &mut position) {
        if !key.is_exact_instance_of::<PyString>() {
            return false;
        }
    }
    true
}
