//! Compressing a layout straight from its slices, without building its bytes first.

use std::io::Write;

use flate2::{Compression, GzBuilder};

use crate::layout::{Layout, Payload};
use crate::{Error, Result};

/// The level when none is given: that of the `gzip` command.
pub const DEFAULT_LEVEL: i64 = 6;

/// A gzip level, 0 (stored) to 9 (smallest).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(u32);

impl Level {
    /// Checks that `level` is from 0 to 9.
    pub fn new(level: i64) -> Result<Self> {
        match u32::try_from(level) {
            Ok(level @ 0..=9) => Ok(Self(level)),
            _ => Err(Error::Option(format!(
                "level must be from 0 to 9, got {level}"
            ))),
        }
    }
}

/// Writes all of `layout` to `out` as one gzip member.
pub fn compress<P: Payload>(layout: &Layout<P>, level: Level, out: impl Write) -> Result<()> {
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .write(out, Compression::new(level.0));
    for slice in layout.slices(0..layout.len()) {
        encoder.write_all(slice)?;
    }
    // A buffered writer that is merely dropped keeps its last error to itself.
    encoder.finish()?.flush()?;
    Ok(())
}
