//! Pouring a layout into memory, in parallel blocks.

use std::mem::MaybeUninit;

use crate::layout::Layout;
use crate::parallel;

/// Fills `target`, which must have the layout's length, completely.
///
/// # Panics
/// If the lengths differ.
pub fn pour<P: AsRef<[u8]> + Sync>(layout: &Layout<P>, target: &mut [MaybeUninit<u8>]) {
    assert_eq!(target.len(), layout.len());
    let bytes = target.len();
    let blocks = target.chunks_mut(parallel::BLOCK).enumerate().collect();
    parallel::for_each(blocks, bytes, |(index, mut block): (usize, &mut [_])| {
        let start = index * parallel::BLOCK;
        for slice in layout.slices(start..start + block.len()) {
            let (now, later) = block.split_at_mut(slice.len());
            now.write_copy_of_slice(slice);
            block = later;
        }
        assert!(block.is_empty(), "the slices of a range cover it");
    });
}
