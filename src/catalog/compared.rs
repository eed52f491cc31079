//! Compares a leaf with its checksum while it is copied.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crc32fast::Hasher;

use super::{BLOCK_BYTES, Catalog};
use crate::base::error::Path;
use crate::base::raw::Uninit;
use crate::base::source::{SharedSource, Source, as_inner, read_to};
use crate::{Error, Result, base::grow, base::parallel};

/// An upper bound of the bytes of a node of `summed`.
const NODE_BYTES: usize = 1 << 10;

/// A source that sums one leaf as it is read. On a checksum mismatch, the last read fails.
pub struct Compared {
    source: SharedSource,
    region: Range<usize>,
    expected: u32,
    path: Path,
    /// The ends and checksums of the ranges read so far, by their starts. None touches another.
    summed: Mutex<BTreeMap<usize, (usize, Hasher)>>,
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
            let before = summed.range(..=at).next_back();
            if let Some((_, (known, _))) = before
                && *known > at
            {
                at = *known;
                continue;
            }
            let next = summed.range(at..).next();
            let stop = next.map_or(end, |(start, _)| end.min(*start));
            let mut sum = Hasher::new();
            sum.update(&bytes[at - offset..stop - offset]);
            grow::check_room(NODE_BYTES)?;
            add(&mut summed, at..stop, sum);
            at = stop;
        }
        match summed.get(&self.region.start) {
            Some((end, sum))
                if *end == self.region.end && sum.clone().finalize() != self.expected =>
            {
                Err(Error::Corrupt(self.path.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// Adds a range, joined with those that it touches.
fn add(summed: &mut BTreeMap<usize, (usize, Hasher)>, range: Range<usize>, mut sum: Hasher) {
    let mut end = range.end;
    if let Some((next_end, next)) = summed.remove(&range.end) {
        sum.combine(&next);
        end = next_end;
    }
    match summed.range_mut(..range.start).next_back() {
        Some((_, (before, whole))) if *before == range.start => {
            whole.combine(&sum);
            *before = end;
        }
        _ => drop(summed.insert(range.start, (end, sum))),
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
