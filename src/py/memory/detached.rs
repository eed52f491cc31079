//! Work while other threads run Python.

use pyo3::prelude::*;

/// For less work, detaching costs more.
const DETACH_MIN_BYTES: usize = 64 << 10;

/// Runs `work` detached from Python if `always`, or if it moves many bytes.
pub fn detached<T: Send>(
    py: Python<'_>,
    bytes: usize,
    always: bool,
    work: impl FnOnce() -> T + Send,
) -> T {
    if bytes < DETACH_MIN_BYTES && !always {
        work()
    } else {
        py.detach(work)
    }
}
