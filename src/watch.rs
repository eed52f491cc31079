//! Reports the progress of long work, and can stop it.

use crate::Result;

/// Called on the calling thread, several times in 100 ms.
pub trait Watch: Sync {
    fn check(&self) -> Result<()>;

    /// Checks, after `bytes` more bytes of the work.
    fn done(&self, bytes: usize) -> Result<()>;
}

/// No-op: the work runs to its end.
impl Watch for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn done(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// Calls a check once in many steps.
#[derive(Debug)]
pub struct Every {
    steps: usize,
    left: usize,
}

impl Every {
    pub fn new(steps: usize) -> Self {
        Self { steps, left: steps }
    }

    #[inline]
    pub fn step(&mut self, check: impl FnOnce() -> Result<()>) -> Result<()> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(());
        }
        self.left = self.steps;
        check()
    }
}
