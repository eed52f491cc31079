//! Compares leaves with their checksums.

use std::num::NonZero;
use std::ops::Range;

use super::Catalog;
use crate::base::source::{Source, read_to};
use crate::base::watch::Watch;
use crate::format::footer::{PartialSums, Regions, Sums};
use crate::format::index::LeafKind;
use crate::{Error, Result, base::grow, base::parallel};

/// Bytes summed at a time: a gzip block, which fits the caches.
pub const BLOCK_BYTES: usize = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok,
    Corrupt,
    Unchecked,
}

impl Catalog {
    /// Compares the source with the checksums, and its headers with the index.
    ///
    /// Returns a status per leaf, and one for the bytes between the last leaf and the record.
    /// `checks_itself`: the source detects damage, as gzip with an index does. `block_bytes` is
    /// [`BLOCK_BYTES`] unless each read is slow.
    pub fn verify(
        &self,
        source: &dyn Source,
        checks_itself: bool,
        block_bytes: usize,
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> Result<Vec<Status>> {
        let count = self.leaves.len() + 1;
        let mut statuses = if self.is_summed() || checks_itself {
            self.compare_sums(source, checks_itself, block_bytes, threads, watch)?
        } else {
            grow::filled(Status::Unchecked, count)?
        };
        let is_selected = |number: usize| statuses[number] != Status::Corrupt;
        for number in self.unlike_index(source, is_selected, watch)? {
            statuses[number] = Status::Corrupt;
        }
        if !self.is_indexed {
            // Without an index, headers may claim other lengths than the data have.
            for (number, leaf) in self.leaves.iter().enumerate() {
                if self.kinds.list[leaf.kind] == LeafKind::Other {
                    statuses[number] = Status::Corrupt;
                }
            }
        }
        Ok(statuses)
    }

    fn compare_sums(
        &self,
        source: &dyn Source,
        checks_itself: bool,
        block_bytes: usize,
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> Result<Vec<Status>> {
        let count = self.leaves.len() + 1;
        let last = self.leaves.last().map_or(0, |leaf| leaf.end);
        let ends = self.leaves.iter().map(|leaf| leaf.end);
        let ends = grow::collect(ends.chain([self.rest.end.max(last)]))?;
        let len = if checks_itself {
            source.len()
        } else {
            ends[count - 1]
        };
        let regions = Regions::new(ends);
        let mut statuses = grow::filled(Status::Ok, count)?;
        if !checks_itself {
            statuses[self.checksums.len()..].fill(Status::Unchecked);
        }
        let mut sums = Sums::default();
        let work = |block: &mut Vec<u8>, index: usize| {
            let start = index * block_bytes;
            let end = len.min(start + block_bytes);
            block.clear();
            let done = read_to(source, start..end, block);
            (start..end, done.and_then(|()| regions.sum(start, block)))
        };
        let each = |_: usize, (range, done): (Range<usize>, Result<PartialSums>)| {
            let end = range.end;
            match done {
                Ok(parts) => sums.add(parts)?,
                Err(Error::Gzip(_)) => {
                    for (number, _) in regions.parts(range) {
                        statuses[number] = Status::Corrupt;
                    }
                }
                Err(error) => return Err(error),
            }
            watch.done(end)
        };
        let ahead = threads.get().saturating_mul(4);
        parallel::in_order(len.div_ceil(block_bytes), threads, ahead, work, each)?;
        watch.done(source.len())?;
        for (number, sum) in sums.finish(count)?.into_iter().enumerate() {
            if self
                .checksums
                .get(number)
                .is_some_and(|expected| *expected != sum)
            {
                statuses[number] = Status::Corrupt;
            }
        }
        Ok(statuses)
    }
}
