//! Pouring a layout into memory, in parallel blocks.

use std::mem::MaybeUninit;
use std::num::NonZero;
use std::ops::Range;

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
        plain_copy
    };
    let blocks = memory.chunks_mut(parallel::BLOCK).enumerate().collect();
    parallel::for_each(blocks, threads, |(index, block): (usize, &mut [_])| {
        let start = index * parallel::BLOCK;
        fill(layout, start..start + block.len(), block, copy);
    });
}

/// Fills `memory` with a range of the layout, which must have its length.
///
/// # Panics
/// If the lengths differ.
pub fn pour_range<P: Payload>(
    layout: &Layout<P>,
    range: Range<usize>,
    memory: &mut [MaybeUninit<u8>],
) {
    fill(layout, range, memory, plain_copy);
}

fn fill<P: Payload>(
    layout: &Layout<P>,
    range: Range<usize>,
    mut memory: &mut [MaybeUninit<u8>],
    copy: fn(&[u8], &mut [MaybeUninit<u8>]),
) {
    for slice in layout.slices(range) {
        let (now, later) = memory.split_at_mut(slice.len());
        copy(slice, now);
        memory = later;
    }
    assert!(memory.is_empty(), "the slices of a range cover it");
}

fn plain_copy(source: &[u8], target: &mut [MaybeUninit<u8>]) {
    target.write_copy_of_slice(source);
}
