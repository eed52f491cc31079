//! Reports the progress of long work, and can stop it.

use crate::Result;

/// Called on the calling thread, several times in 100 ms.
pub trait Watch: Sync {
    fn check(&self) -> Result<()>;

    /// Checks, after `bytes` more bytes of the work.
    fn done(&self, bytes: usize) -> Result<()>;
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
