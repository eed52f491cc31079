//! Reports the progress of long work, and can stop it.

use crate::Result;

/// Called on the calling thread, several times in 100 ms.
pub trait Watch: Sync {
    fn check(&self) -> Result<()>;

    /// Checks, after `bytes` more bytes of the work.
    fn done(&self, bytes: usize) -> Result<()>;
}

pub struct Steps {
    left: usize,
    every: usize,
}

impl Steps {
    pub fn new(every: usize) -> Self {
        Self { left: every, every }
    }

    pub fn count(&mut self, check: impl FnOnce() -> Result<()>) -> Result<()> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(());
        }
        self.left = self.every;
        check()
    }
}

/// No-op.
impl Watch for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn done(&self, _: usize) -> Result<()> {
        Ok(())
    }
}
