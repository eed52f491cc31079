//! Comparing leaves with their checksums.

use std::num::NonZero;
use std::ops::Range;

use super::Catalog;
use crate::source::{Source, read_to};
use crate::structure::{LeafKind, PartialSums, Regions, Sums};
use crate::watch::Watch;
use crate::{Error, Result, grow, parallel};

/// How many bytes are read and summed at a time: as many as a block of a gzip stream becomes, and
/// few enough to stay in the caches.
pub const BLOCK_BYTES: usize = 256 << 10;

/// What is known of the bytes of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// They are what was written.
    Ok,
    /// They are something else.
    Corrupt,
    /// There is nothing to compare them with.
    Unchecked,
}

impl Catalog {
    /// Reads all of the source and compares it with the checksums, and the headers with the index.
    ///
    /// Returns what is known of each leaf, and of what lies between the last one and the record.
    /// `checks_itself` is whether the source gives errors for what is damaged, as a gzip stream
    /// with an index does. So many bytes are read and summed at a time: [`BLOCK_BYTES`] unless
    /// each read takes long.
    pub fn verify(
        &self,
        source: &dyn Source,
        checks_itself: bool,
        block_bytes: usize,
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> Result<Vec<Status>> {
        let count = self.leaves.len() + 1;
        let mut found = if self.is_summed() || checks_itself {
            self.compare_sums(source, checks_itself, block_bytes, threads, watch)?
        } else {
            grow::filled(Status::Unchecked, count)?
        };
        let is_asked = |number: usize| found[number] != Status::Corrupt;
        for number in self.unlike_index(source, is_asked, watch)? {
            found[number] = Status::Corrupt;
        }
        if !self.is_indexed() {
            // Headers were all there was to read, and these tell of other bytes than there are.
            for (number, leaf) in self.leaves.iter().enumerate() {
                if self.kinds[leaf.kind] == LeafKind::Other {
                    found[number] = Status::Corrupt;
                }
            }
        }
        Ok(found)
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
        let mut found = grow::filled(Status::Ok, count)?;
        if !checks_itself {
            found[self.checksums.len()..].fill(Status::Unchecked);
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
                        found[number] = Status::Corrupt;
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
                found[number] = Status::Corrupt;
            }
        }
        Ok(found)
    }
}
