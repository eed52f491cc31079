//! Telling Python how far long work has come.

use pyo3::prelude::*;

use crate::{Error, Result};

/// A callable that is called with the bytes done and the bytes in all, now and then.
pub struct Progress {
    callback: Option<Py<PyAny>>,
    total: usize,
    /// What the callable was told last.
    told: usize,
    raised: Option<PyErr>,
}

impl Progress {
    /// The least that is worth a call.
    const STEP: usize = 4 << 20;

    pub fn new(callback: Option<Py<PyAny>>, total: usize) -> Self {
        Self {
            callback,
            total,
            told: 0,
            raised: None,
        }
    }

    /// Calls the callable if that is due. An exception in it stops the work.
    pub fn at(&mut self, done: usize) -> Result<()> {
        let Some(callback) = &self.callback else {
            return Ok(());
        };
        let step = Self::STEP.max(self.total / 100);
        // Never twice the same, nor back, where another way is tried from the start.
        let more = done.saturating_sub(self.told);
        if more < step && !(done == self.total && (more > 0 || self.told == 0)) {
            return Ok(());
        }
        self.told = done;
        let called = Python::attach(|py| callback.call1(py, (done, self.total)).map(drop));
        called.map_err(|error| {
            self.raised = Some(error);
            Error::Stopped
        })
    }

    /// The exception for an error: that of the callable, if it has stopped the work.
    pub fn explain(self, error: Error, other: impl FnOnce(Error) -> PyErr) -> PyErr {
        self.raised.unwrap_or_else(|| other(error))
    }
}
