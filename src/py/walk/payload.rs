//! What a layout borrows from Python.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use super::super::memory::Borrowed;
use super::devices::Devices;
use crate::Result;
use crate::layout::Payload;
use crate::raw::{AsRaw, RawBytes};
use crate::source::Source;

/// The bytes of one leaf, or a range of them.
pub enum Leaf {
    /// They lie together in memory.
    Memory(Borrowed),
    /// They are fetched when they are copied; boxed to keep the common case small.
    Device(Box<OnDevice>),
    /// They are read when they are copied.
    Source(Box<InSource>),
}

/// A range of the bytes of an array that lies in other encoded data, in one piece or several.
pub struct InSource {
    pub source: Arc<dyn Source + Send + Sync>,
    pub pieces: Arc<[Range<usize>]>,
    pub range: Range<usize>,
}

impl InSource {
    fn copy_to(&self, start: usize, mut target: &mut [MaybeUninit<u8>]) -> Result<()> {
        let mut skipped = self.range.start + start;
        for piece in self.pieces.iter() {
            let from = skipped.min(piece.len());
            skipped -= from;
            let len = (piece.len() - from).min(target.len());
            let (now, later) = target.split_at_mut(len);
            self.source.read_at(piece.start + from, now)?;
            target = later;
        }
        assert!(target.is_empty(), "the pieces cover the array");
        Ok(())
    }
}

/// A range of the bytes of an array of `devices`.
pub struct OnDevice {
    pub devices: Arc<Devices>,
    pub number: usize,
    pub range: Range<usize>,
}

impl Leaf {
    /// Whether copying this asks Python for it.
    pub fn needs_python(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Source(_))
    }
}

impl Payload for Leaf {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.as_raw().len(),
            Self::Device(leaf) => leaf.range.len(),
            Self::Source(leaf) => leaf.range.len(),
        }
    }

    #[inline]
    fn copy_to(&self, start: usize, target: &mut [MaybeUninit<u8>]) -> Result<()> {
        match self {
            Self::Memory(memory) => memory.copy_to(start, target),
            Self::Device(leaf) => {
                let start = leaf.range.start + start;
                leaf.devices.copy_to(leaf.number, start, target)
            }
            Self::Source(leaf) => leaf.copy_to(start, target),
        }
    }

    #[inline]
    fn memory(&self) -> Option<RawBytes<'_>> {
        match self {
            Self::Memory(memory) => Some(memory.as_raw()),
            Self::Device(_) | Self::Source(_) => None,
        }
    }
}
