//! Reports the progress of long work, and can stop it.

use crate::Result;

/// Called on the calling thread, several times in 100 ms.
pub trait Watch: Sync {
    fn check(&self) -> Result<()>;

    /// Checks, after `bytes` more bytes of the work.
    fn done(&self, bytes: usize) -> Result<()>;
}

/// Checks a watch now and then, in a loop of short steps.
pub struct Steps<'a> {
    left: usize,
    watch: &'a dyn Watch,
}

impl<'a> Steps<'a> {
    pub const EVERY: usize = 1 << 10;

    pub fn new(watch: &'a dyn Watch) -> Self {
        let left = Self::EVERY;
        Self { left, watch }
    }

    #[inline]
    pub fn count(&mut self) -> Result<()> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(());
        }
        self.left = Self::EVERY;
        self.watch.check()
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
