//! Detaches work from Python, so that other threads can run.

use pyo3::prelude::*;

/// For less work, detaching costs more than it saves.
const DETACH_MIN_BYTES: usize = 64 << 10;

/// Runs `work` detached if `always`, or if `bytes` is large.
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
