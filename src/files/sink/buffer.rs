//! Fills memory with a layout, in parallel.

use std::num::NonZero;

use crate::base::raw::{Room, Uninit};
use crate::base::watch::Watch;
use crate::format::layout::{Caching, Layout, Payload};
use crate::{Result, base::grow, base::parallel, base::stream};

/// Fills `memory` and returns it. Only large copies go past the caches.
///
/// # Panics
/// If its length is not the layout's, or a payload returns other bytes.
pub fn pour<'t, P: Payload + Sync>(
    layout: &Layout<P>,
    memory: &'t mut Uninit,
    caching: Caching,
    threads: NonZero<usize>,
    watch: &dyn Watch,
) -> Result<&'t mut [u8]> {
    assert_eq!(memory.len(), layout.len());
    let caching = match caching {
        Caching::Past if layout.len() >= stream::MIN_BYTES => Caching::Past,
        _ => Caching::Usual,
    };
    if memory.len() <= parallel::BLOCK {
        return layout.copy_to(0, memory, caching);
    }
    let ((), whole) = Room::share(memory, |room| {
        let blocks = grow::collect(room.chunks(parallel::BLOCK).enumerate())?;
        let copy = |(index, block): (usize, Room<'_>)| {
            block.fill(|block| layout.copy_to(index * parallel::BLOCK, block, caching))
        };
        parallel::for_each(blocks, threads, copy, || watch.check())
    })?;
    Ok(whole.expect("the blocks cover the memory"))
}
