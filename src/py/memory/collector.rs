//! Pauses Python's collector of cycles, whose callbacks and finalizers swallow Ctrl-C.

use pyo3::ffi;
use pyo3::prelude::*;

/// While it exists, Python collects no cycles, except on demand.
///
/// Objects that the core creates trigger collections, in whose callbacks signal handlers cannot raise
/// (docs/design.md, "Python").
pub struct Uncollected<'py> {
    was_enabled: bool,
    _py: Python<'py>,
}

impl<'py> Uncollected<'py> {
    pub fn new(py: Python<'py>) -> Self {
        // SAFETY: the thread is attached, as `py` shows.
        let was_enabled = unsafe { ffi::PyGC_Disable() } != 0;
        Self {
            was_enabled,
            _py: py,
        }
    }
}

impl Drop for Uncollected<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: the thread is attached, as `_py` shows.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
