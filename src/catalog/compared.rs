//! Compares a leaf with its checksum while it is copied.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crc32fast::Hasher;

use super::{BLOCK_BYTES, Catalog};
use crate::base::error::Path;
use crate::base::raw::Uninit;
use crate::base::source::{SharedSource, Source, as_inner, read_to};
use crate::{Error, Result, base::parallel};

/// A source that sums one leaf as it is read. On a checksum mismatch, the last read fails.
pub struct Compared {
    source: SharedSource,
    region: Range<usize>,
    expected: u32,
    path: Path,
    /// The ranges read so far, sorted, with their checksums.
    summed: Mutex<Vec<(Range<usize>, Hasher)>>,
}

impl Catalog {
    /// Wraps `source` for reads of these ranges of a leaf; reads the rest of the leaf now. `None`
    /// without a checksum.
    ///
    /// # Panics
    /// If the value is not a leaf.
    pub fn compared(
        &self,
        source: SharedSource,
        value: usize,
        ranges: &[Range<usize>],
    ) -> Result<Option<Compared>> {
        let leaf = self.leaf(value).expect("the value is a leaf");
        let Some(expected) = self.checksums.get(leaf) else {
            return Ok(None);
        };
        let region = self.leaves[leaf].region..self.leaves[leaf].end;
        let compared = Compared {
            source,
            region: region.clone(),
            expected: *expected,
            path: self.path_of(value),
            summed: Mutex::default(),
        };
        let starts = ranges.iter().map(|range| range.end);
        let ends = ranges.iter().map(|range| range.start).chain([region.end]);
        let mut block = Vec::new();
        for (at, end) in [region.start].into_iter().chain(starts).zip(ends) {
            for part in parallel::blocks(at..end, BLOCK_BYTES) {
                block.clear();
                read_to(&*compared.source, part.clone(), &mut block)?;
                compared.sum(part.start, &block)?;
            }
        }
        Ok(Some(compared))
    }
}

impl Compared {
    fn sum(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut summed = self.summed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = offset.max(self.region.start);
        let end = self.region.end.min(offset + bytes.len());
        while at < end {
            let next = summed.partition_point(|(range, _)| range.end <= at);
            let known = summed.get(next).map(|(range, _)| range.clone());
            if let Some(range) = known.clone().filter(|range| range.start <= at) {
                at = range.end;
                continue;
            }
            let stop = known.map_or(end, |range| end.min(range.start));
            let mut sum = Hasher::new();
            sum.update(&bytes[at - offset..stop - offset]);
            summed.try_reserve(1)?;
            summed.insert(next, (at..stop, sum));
            join(&mut summed, next + 1);
            join(&mut summed, next);
            at = stop;
        }
        match &summed[..] {
            [(range, sum)] if *range == self.region && sum.clone().finalize() != self.expected => {
                Err(Error::Corrupt(self.path.clone()))
            }
            _ => Ok(()),
        }
    }
}

fn join(summed: &mut Vec<(Range<usize>, Hasher)>, number: usize) {
    if let Some([(before, first), (range, second)]) =
        summed.get_mut(number.wrapping_sub(1)..=number)
        && before.end == range.start
    {
        first.combine(second);
        before.end = range.end;
        summed.remove(number);
    }
}

impl Source for Compared {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let bytes = self.source.read_at(offset, target)?;
        self.sum(offset, bytes)?;
        Ok(bytes)
    }

    as_inner!(self, self.source);
}
