//! Working while other threads run Python.

use pyo3::prelude::*;

/// Below so many bytes, letting other threads run costs more than the work.
const DETACH_MIN_BYTES: usize = 64 << 10;

/// Runs `work` detached from Python if it moves many bytes, or has to be.
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
