//! What a layout borrows from Python.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;

use super::super::memory::Borrowed;
use crate::array::Sharded;
use crate::layout::Payload;

/// The bytes of one leaf, or a range of them.
pub enum Source {
    /// They lie together.
    Block(Borrowed),
    /// They lie in the shards of an array; boxed to keep the common case small.
    Shards(Box<ShardedRange>),
}

/// A range of the bytes of a sharded array.
pub struct ShardedRange {
    array: Arc<Sharded<Borrowed>>,
    range: Range<usize>,
}

impl Source {
    /// A range of the bytes of a sharded array.
    pub fn shards(array: &Arc<Sharded<Borrowed>>, range: Range<usize>) -> Self {
        Self::Shards(Box::new(ShardedRange {
            array: array.clone(),
            range,
        }))
    }

    /// The blocks of memory in which the bytes lie, with others perhaps.
    pub fn blocks(&self) -> impl Iterator<Item = &[u8]> {
        let (block, shards) = match self {
            Self::Block(block) => (Some(block), None),
            Self::Shards(shards) => (None, Some(shards.array.blocks())),
        };
        let blocks = block.into_iter().chain(shards.into_iter().flatten());
        blocks.map(AsRef::as_ref)
    }

    /// A range of the bytes of a block.
    pub fn part(py: Python<'_>, block: &Borrowed, range: Range<usize>) -> Self {
        Self::Block(block.part(py, range))
    }
}

impl Payload for Source {
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.as_ref().len(),
            Self::Shards(shards) => shards.range.len(),
        }
    }

    #[inline]
    fn run(&self, offset: usize) -> &[u8] {
        match self {
            Self::Block(block) => &block.as_ref()[offset..],
            Self::Shards(shards) => {
                let run = shards.array.run(shards.range.start + offset);
                &run[..run.len().min(shards.range.len() - offset)]
            }
        }
    }
}
