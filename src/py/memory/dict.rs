//! Iterates over a dict while other code may change it.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyString};

/// The entry of `dict` at `position`, which is moved on.
///
/// Unlike an iterator this allows for code in between that changes the dict.
#[inline]
pub fn dict_next<'py>(
    dict: &Bound<'py, PyDict>,
    position: &mut ffi::Py_ssize_t,
) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let mut key = std::ptr::null_mut();
    let mut value = std::ptr::null_mut();
    // A no-op with the GIL.
    with_critical_section(dict, || {
        // SAFETY: the call checks the position against the dict as it is now, and lends references,
        // which are made our own before anything else can run.
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

#[inline(never)] // callers are recursive
pub fn has_string_keys(dict: &Bound<'_, PyDict>) -> bool {
    let mut position = 0;
    while let Some((key, _)) = dict_next(dict, &mut position) {
        if !key.is_exact_instance_of::<PyString>() {
            return false;
        }
    }
    true
}
