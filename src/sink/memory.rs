//! Pouring a layout into memory, in parallel blocks.

use std::mem::MaybeUninit;
use std::num::NonZero;

use crate::layout::{Layout, Payload};
use crate::{parallel, stream};

/// What is known of the memory that is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// It comes straight from the system.
    Fresh,
    /// It has been used before.
    Used,
}

/// Fills `memory`, which must have the layout's length, completely.
///
/// # Panics
/// If the lengths differ.
pub fn pour<P: Payload + Sync>(
    layout: &Layout<P>,
    memory: &mut [MaybeUninit<u8>],
    target: Target,
    threads: NonZero<usize>,
) {
    assert_eq!(memory.len(), layout.len());
    let copy = if target == Target::Used && layout.len() >= stream::MIN_BYTES {
        stream::copy
    } else {
        |source: &[u8], target: &mut [MaybeUninit<u8>]| {
            target.write_copy_of_slice(source);
        }
    };
    let blocks = memory.chunks_mut(parallel::BLOCK).enumerate().collect();
    parallel::for_each(blocks, threads, |(index, mut block): (usize, &mut [_])| {
        let start = index * parallel::BLOCK;
        for slice in layout.slices(start..start + block.len()) {
            let (now, later) = block.split_at_mut(slice.len());
            copy(slice, now);
            block = later;
        }
        assert!(block.is_empty(), "the slices of a range cover it");
    });
}
