//! Payloads of leaves in a layout.

use std::ops::Range;
use std::sync::Arc;

use pyo3::{Py, PyAny};

use super::super::memory::Borrowed;
use super::devices::Devices;
use crate::Result;
use crate::base::pages::Pages;
use crate::base::raw::{AsRaw, RawBytes, Uninit, zeroed};
use crate::base::source::{Pieces, SharedSource, Source, SourcePieces};
use crate::format::layout::Payload;

pub enum LeafPayload {
    Memory(Borrowed),
    /// Memory of jax, which never changes while it is held.
    Held(Borrowed),
    /// A copy, in pages with other leaves.
    Copied(Arc<Pages>, Range<usize>),
    Gap {
        number: usize,
        len: usize,
    },
    /// Fetched when copied; boxed to keep the common case small.
    Device(Box<OnDevice>),
    Source(Box<InSource>),
}

pub struct InSource {
    pub source: SharedSource,
    /// The content of the source, for views.
    pub content: Py<PyAny>,
    pub pieces: Arc<Pieces>,
    pub range: Range<usize>,
}

impl InSource {
    pub fn stored(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let start = self.range.start;
        self.pieces
            .of(start + range.start..start + range.end)
            .collect()
    }

    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let (source, parts) = (&*self.source, &*self.pieces);
        SourcePieces { source, parts }.read_at(self.range.start + start, target)
    }
}

pub struct OnDevice {
    pub devices: Arc<Devices>,
    pub number: usize,
    pub range: Range<usize>,
}

impl LeafPayload {
    pub fn needs_python(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Source(_))
    }

    /// Returns the memory, if it may change while borrowed.
    pub fn changing(&self) -> Option<RawBytes<'_>> {
        match self {
            Self::Memory(memory) if memory.as_stable().is_none() => Some(memory.as_raw()),
            _ => None,
        }
    }
}

impl Payload for LeafPayload {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Memory(memory) | Self::Held(memory) => memory.as_raw().len(),
            Self::Copied(_, range) => range.len(),
            Self::Gap { len, .. } => *len,
            Self::Device(leaf) => leaf.range.len(),
            Self::Source(leaf) => leaf.range.len(),
        }
    }

    #[inline]
    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        match self {
            Self::Memory(memory) | Self::Held(memory) => memory.copy_to(start, target),
            Self::Copied(pages, range) => {
                let start = range.start + start;
                Ok(target.write_copy_of_slice(&pages.as_slice()[start..start + target.len()]))
            }
            Self::Gap { .. } => Ok(zeroed(target)),
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
            Self::Memory(memory) | Self::Held(memory) => Some(memory.as_raw()),
            Self::Copied(pages, range) => Some(pages.as_slice()[range.clone()].into()),
            Self::Device(_) | Self::Source(_) | Self::Gap { .. } => None,
        }
    }
}
