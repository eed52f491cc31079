//! Telling Python how far long work has come, and hearing Ctrl-C meanwhile.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::memory::keep_reserve;
use crate::watch::Watch;
use crate::{Error, Result};

/// A callable that is called with the bytes done and the bytes in all, now and then; and the
/// signals of Python, which are looked at often enough that nobody waits for them.
pub struct Watcher {
    callback: Option<Py<PyAny>>,
    /// Is called when signals are looked at, and may raise.
    check: Option<Py<PyAny>>,
    total: usize,
    /// How often signals are looked at.
    often: Duration,
    state: Mutex<State>,
}

struct State {
    /// What the callable was told last.
    told: usize,
    /// When signals were looked at.
    looked: Instant,
    raised: Option<PyErr>,
}

/// As often as nobody notices.
const OFTEN: Duration = Duration::from_millis(30);

impl Watcher {
    /// The least that is worth a call.
    const STEP: usize = 4 << 20;

    /// Tells the callable of work on `total` bytes.
    pub fn new(callback: Option<Py<PyAny>>, total: usize) -> Self {
        Self {
            callback,
            check: None,
            total,
            often: OFTEN,
            state: Mutex::new(State {
                told: 0,
                looked: Instant::now(),
                raised: None,
            }),
        }
    }

    /// Only looks at signals.
    pub fn signals() -> Self {
        Self::new(None, 0)
    }

    /// Calls a function as well when it looks at signals.
    pub fn checking(mut self, check: Option<Py<PyAny>>) -> Self {
        self.check = check;
        self
    }

    /// Looks at signals whenever it is asked, which should be seldom then.
    pub fn whenever_asked() -> Self {
        Self {
            often: Duration::ZERO,
            ..Self::signals()
        }
    }

    /// The exception for an error: the one that has stopped the work, if one has.
    pub fn explain(&self, error: Error, other: impl FnOnce(Error) -> PyErr) -> PyErr {
        let raised = self.state().raised.take();
        match (error, raised) {
            (Error::Stopped, Some(raised)) => raised,
            (error, _) => other(error),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only this thread uses it, and never while it holds it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, call: impl FnOnce(Python<'_>) -> PyResult<()>) -> Result<()> {
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
        self.run(|py| {
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
        let told = self.state().told;
        // Never twice the same, nor back, where another way is tried from the start.
        let more = done.saturating_sub(told);
        if more < step && !(done == self.total && (more > 0 || told == 0)) {
            return self.check();
        }
        self.state().told = done;
        self.run(|py| {
            callback.call1(py, (done, self.total))?;
            py.check_signals()
        })
    }
}

fn look_at_signals(py: Python<'_>) -> PyResult<()> {
    py.check_signals()
}

/// Hears Ctrl-C in a walk that holds on to Python all the time.
pub struct Signals {
    left: Cell<usize>,
}

impl Signals {
    /// After so many values signals are looked at.
    pub const VALUES: usize = 1 << 12;

    /// Nothing has been looked at so far.
    pub fn new() -> Self {
        Self {
            left: Cell::new(Self::VALUES),
        }
    }

    /// Counts a value, and looks at signals now and then; for each, whether memory is left.
    #[inline]
    pub fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.check_many(py, 1)
    }

    /// The same for so many values at once, for which no memory was needed.
    #[inline]
    pub fn check_many(&self, py: Python<'_>, values: usize) -> PyResult<()> {
        keep_reserve()?;
        let left = self.left.get().saturating_sub(values);
        self.left.set(left);
        if left > 0 {
            return Ok(());
        }
        self.left.set(Self::VALUES);
        look_at_signals(py)
    }
}
