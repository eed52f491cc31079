//! Digests of many arrays at once, by all threads.

use std::num::NonZero;

use crate::base::digest::Digest;
use crate::base::watch::Watch;
use crate::format::footer::Regions;
use crate::format::layout::{DIGEST_BYTES, Layout, Payload};
use crate::{Result, base::grow, base::parallel};

/// Returns the digest of each region of a layout.
pub fn of_regions<P: Payload + Sync>(
    layout: &Layout<P>,
    regions: &Regions,
    threads: NonZero<usize>,
    watch: &dyn Watch,
) -> Result<Vec<Digest>> {
    let len = layout.len();
    let mut digests = grow::filled(Digest::default(), regions.len())?;
    let work = |copy: &mut Vec<u8>, index: usize| {
        let start = index * DIGEST_BYTES;
        let mut done = Vec::new();
        for (number, part) in regions.parts(start..len.min(start + DIGEST_BYTES)) {
            for slice in layout.slices(part) {
                grow::push(&mut done, (number, slice.digest(copy)?, slice.len() as u64))?;
            }
        }
        Ok(done)
    };
    let each = |index: usize, done: Result<Vec<_>>| {
        for (number, digest, nbytes) in done? {
            let before: &mut Digest = &mut digests[number];
            *before = before.join(digest, nbytes);
        }
        watch.done(len.min((index + 1) * DIGEST_BYTES))
    };
    let ahead = threads.get().saturating_mul(4);
    parallel::in_order(len.div_ceil(DIGEST_BYTES), threads, ahead, work, each)?;
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::LayoutBuilder;

    #[test]
    fn regions_are_summed_across_blocks() {
        let len = if cfg!(miri) {
            5_000
        } else {
            3 * DIGEST_BYTES + 7
        };
        let bytes: Vec<u8> = (0..len).map(|i| ((i * i) >> 3).to_le_bytes()[0]).collect();
        let mut layout = LayoutBuilder::default();
        layout.push(bytes.clone()).unwrap();
        let layout = layout.finish();
        let ends = [0, 1, 1000, len - 9, len - 9, len];
        let starts = [0].into_iter().chain(ends);
        let expected: Vec<_> = starts
            .zip(ends)
            .map(|(a, b)| Digest::of(&bytes[a..b]))
            .collect();
        for threads in 1..4 {
            let threads = NonZero::new(threads).unwrap();
            let regions = Regions::new(ends.to_vec());
            assert_eq!(
                of_regions(&layout, &regions, threads, &()).unwrap(),
                expected
            );
        }
    }
}
