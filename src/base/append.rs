//! Sinks of bytes.

use crate::base::raw::Filling;
use crate::{Result, base::grow};

pub trait Append {
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
}

impl Append for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        grow::extend(self, bytes)
    }
}

impl Append for Filling<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes);
        Ok(())
    }
}
