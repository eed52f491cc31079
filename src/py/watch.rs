//! Reports the progress of long work to Python, and notices Ctrl-C.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::memory::{Uncollected, has_reserve, keep_reserve};
use crate::base::watch::Watch;
use crate::{Error, Result};

/// Reports the bytes done and the total to a callable, and checks signals often enough for Ctrl-C.
pub struct Watcher {
    callback: Option<Py<PyAny>>,
    /// Called at each check of signals; may raise.
    check: Option<Py<PyAny>>,
    total: usize,
    often: Duration,
    state: Mutex<State>,
}

struct State {
    reported: usize,
    looked: Instant,
    raised: Option<PyErr>,
}

/// Shorter than a user notices.
const OFTEN: Duration = Duration::from_millis(30);

impl Watcher {
    const STEP: usize = 4 << 20;

    pub fn new(callback: Option<Py<PyAny>>, total: usize) -> Self {
        Self {
            callback,
            check: None,
            total,
            often: OFTEN,
            state: Mutex::new(State {
                reported: 0,
                looked: Instant::now(),
                raised: None,
            }),
        }
    }

    pub fn signals() -> Self {
        Self::new(None, 0)
    }

    pub fn checking(mut self, check: Option<Py<PyAny>>) -> Self {
        self.check = check;
        self
    }

    /// For rare calls.
    pub fn at_each_call() -> Self {
        Self {
            often: Duration::ZERO,
            ..Self::signals()
        }
    }

    /// Returns the exception that stopped the work, or converts `error`.
    pub fn explain(&self, error: Error, other: impl FnOnce(Error) -> PyErr) -> PyErr {
        let raised = self.state().raised.take();
        match (error, raised) {
            (Error::Stopped, Some(raised)) => raised,
            (error, _) => other(error),
        }
    }

    /// Runs work without the GIL, which Ctrl-C can stop.
    pub fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Self) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.raise(py.detach(|| work(self)))
    }

    pub fn raise<T>(&self, done: Result<T>) -> PyResult<T> {
        done.map_err(|error| self.explain(error, PyErr::from))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only this thread locks it, and never twice.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call_python(&self, call: impl FnOnce(Python<'_>) -> PyResult<()>) -> Result<()> {
        let called = Python::attach(call);
        self.state().looked = Instant::now();
        called.map_err(|error| {
            self.state().raised = Some(error);
            Error::Stopped
        })
    }
}

impl Watch for Watcher {
    fn check(&self) -> Result<()> {
        keep_reserve()?;
        if self.state().looked.elapsed() < self.often {
            return Ok(());
        }
        self.call_python(|py| {
            look_at_signals(py)?;
            let checked = self.check.as_ref().map(|check| check.call0(py));
            checked.transpose().map(drop)
        })
    }

    fn done(&self, done: usize) -> Result<()> {
        let Some(callback) = &self.callback else {
            return self.check();
        };
        let step = Self::STEP.max(self.total / 100);
        let reported = self.state().reported;
        // Strictly increasing, even when another attempt starts over.
        let more = done.saturating_sub(reported);
        if more < step && !(done == self.total && (more > 0 || reported == 0)) {
            return self.check();
        }
        self.state().reported = done;
        self.call_python(|py| {
            callback.call1(py, (done, self.total))?;
            look_at_signals(py)
        })
    }
}

fn look_at_signals(py: Python<'_>) -> PyResult<()> {
    let _uncollected = Uncollected::new(py);
    py.check_signals()
}

/// Notices Ctrl-C in a walk that stays attached to Python.
pub struct Signals<'py> {
    _uncollected: Uncollected<'py>,
    left: Cell<usize>,
    has_raised: Cell<bool>,
}

impl<'py> Signals<'py> {
    /// Values from one check of signals to the next.
    pub const VALUES: usize = 1 << 12;

    pub fn new(py: Python<'py>) -> Self {
        Self {
            _uncollected: Uncollected::new(py),
            left: Cell::new(Self::VALUES),
            has_raised: Cell::new(false),
        }
    }

    /// Counts a value. Checks signals now and then, and the memory reserve each time.
    #[inline]
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.check_many(py, 1)
    }

    /// Counts values that needed no memory.
    #[inline]
    pub fn check_many(&self, py: Python<'_>, values: usize) -> PyResult<()> {
        if self.count(values) {
            return self.look(py);
        }
        Ok(())
    }

    /// Counts values. Returns whether `look` must be called.
    #[inline]
    pub fn count(&self, values: usize) -> bool {
        let left = self.left.get().saturating_sub(values);
        self.left.set(left);
        left == 0 || !has_reserve()
    }

    /// Checks the memory reserve, and signals if enough values were counted.
    #[cold]
    pub fn look(&self, py: Python<'_>) -> PyResult<()> {
        let looked = keep_reserve().map_err(PyErr::from).and_then(|()| {
            if self.left.get() > 0 {
                return Ok(());
            }
            self.left.set(Self::VALUES);
            look_at_signals(py)
        });
        if looked.is_err() {
            self.has_raised.set(true);
        }
        looked
    }

    /// Returns whether a check has raised, so that an error is not about the data.
    pub fn has_raised(&self) -> bool {
        self.has_raised.get()
    }
}
