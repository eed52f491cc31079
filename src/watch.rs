//! Whoever waits for long work is told how far it has come, and can stop it.

use crate::Result;

/// Is told and asked by the thread that was called, several times in a tenth of a second.
pub trait Watch: Sync {
    /// Whether to go on.
    fn check(&self) -> Result<()>;

    /// The same, when so many bytes of the work are done.
    fn done(&self, bytes: usize) -> Result<()>;
}

/// Nobody: the work goes on to its end.
impl Watch for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn done(&self, _: usize) -> Result<()> {
        Ok(())
    }
}
