//! The end of a file with a record: checksums of the leaves, and a footer for readers that begin at
//! the end.
//!
//! docs/format.md, "The record", has the layout. CRC-32 is faster than memory, and checksums of parts
//! can be combined, so threads can sum them.

use std::fmt::Display;
use std::ops::Range;

use crc32fast::Hasher;

use crate::base::digest::Digest;
use crate::base::error::mismatch;
use crate::base::source::{Source, bytes_of};
use crate::format::wire::length;
use crate::{Error, Result, base::grow};

pub const MARK: [u8; 8] = *b"\x93treepk\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    pub record: usize,
    pub checksums: usize,
    crc: u32,
}

impl Footer {
    pub const BYTES: usize = 24;

    pub fn find(tail: &[u8]) -> Option<Self> {
        let (_, footer) = tail.split_last_chunk::<{ Self::BYTES }>()?;
        let (record, rest) = footer.split_first_chunk::<8>()?;
        let (checksums, rest) = rest.split_first_chunk::<4>()?;
        let (crc, mark) = rest.split_first_chunk::<4>()?;
        (*mark == MARK).then_some(Self {
            record: usize::try_from(u64::from_le_bytes(*record)).ok()?,
            checksums: u32::from_le_bytes(*checksums) as usize,
            crc: u32::from_le_bytes(*crc),
        })
    }

    /// Returns the start of a record at the end of a source.
    pub fn start_in(source: &dyn Source) -> Result<Option<usize>> {
        let len = source.len();
        let footer = Self::find(&bytes_of(source, len.saturating_sub(Self::BYTES)..len)?);
        let whole = footer.and_then(|footer| footer.whole());
        Ok(whole.and_then(|whole| len.checked_sub(whole)))
    }

    pub fn whole(&self) -> Option<usize> {
        let checksums = self.checksums.checked_mul(4)?;
        self.record.checked_add(checksums)?.checked_add(Self::BYTES)
    }

    /// Checks a record, and returns its body and its checksums.
    pub fn split(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
        let Some(footer) = Self::find(bytes) else {
            return Err(damaged("its end mark is missing"));
        };
        if footer.whole() != Some(bytes.len()) {
            return Err(damaged("its length does not match its footer"));
        }
        let sealed = &bytes[..bytes.len() - Self::BYTES];
        let checksum = crc32fast::hash(sealed);
        if checksum != footer.crc {
            return Err(damaged(mismatch(footer.crc, checksum)));
        }
        Ok(sealed.split_at(footer.record))
    }
}

pub fn checksums_of(bytes: &[u8]) -> Result<Vec<u32>> {
    let (checksums, _) = bytes.as_chunks();
    grow::collect(checksums.iter().map(|bytes| u32::from_le_bytes(*bytes)))
}

pub(super) fn damaged(reason: impl Display) -> Error {
    Error::Structure(format!("the record of the structure is damaged: {reason}"))
}

#[derive(Debug, Clone, Default)]
pub struct Regions(Vec<usize>);

pub type PartialSums = Vec<(usize, Hasher)>;

impl Regions {
    pub fn new(ends: Vec<usize>) -> Self {
        Self(ends)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Splits a range by regions, with their numbers, up to the end of the last region.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
        let first = self.0.partition_point(|end| *end <= range.start);
        let mut start = range.start;
        let ends = self.0[first..].iter().enumerate();
        let parts = ends.map_while(move |(number, &end)| {
            let part = start..end.min(range.end);
            start = part.end;
            (part.start < range.end).then_some((first + number, part))
        });
        parts.filter(|(_, part)| !part.is_empty())
    }

    pub fn sum(&self, start: usize, block: &[u8]) -> Result<PartialSums> {
        let parts = self
            .parts(start..start + block.len())
            .map(|(number, part)| {
                let mut sum = Hasher::new();
                sum.update(&block[part.start - start..part.end - start]);
                (number, sum)
            });
        grow::collect(parts)
    }
}

#[derive(Debug, Default)]
pub struct Sums(Vec<Hasher>);

impl Sums {
    pub fn add(&mut self, sums: PartialSums) -> Result<()> {
        for (number, sum) in sums {
            if let Some(before) = self.0.get_mut(number) {
                before.combine(&sum);
            } else {
                grow::resize(&mut self.0, number, Hasher::new())?;
                grow::push(&mut self.0, sum)?;
            }
        }
        Ok(())
    }

    pub fn finish(mut self, count: usize) -> Result<Vec<u32>> {
        grow::resize(&mut self.0, count, Hasher::new())?;
        grow::collect(self.0.into_iter().map(Hasher::finalize))
    }
}

/// Writes the bytes after a record, once the leaves have been summed; and its last bytes, if these
/// are the digests of the leaves.
#[derive(Debug, Clone)]
pub struct Seal {
    pub regions: Regions,
    record: usize,
    pub digests: usize,
    /// Of the record without the digests.
    crc: Hasher,
}

impl Seal {
    pub fn new(record: &[u8], regions: Regions) -> Self {
        Self::with_digests(record, regions, 0)
    }

    /// The seal of a record that ends with zeros in place of `digests` digests.
    ///
    /// # Panics
    /// If the record is shorter.
    pub fn with_digests(record: &[u8], regions: Regions, digests: usize) -> Self {
        let mut crc = Hasher::new();
        crc.update(&record[..record.len() - Digest::BYTES * digests]);
        Self {
            regions,
            record: record.len(),
            digests,
            crc,
        }
    }

    pub fn bytes(checksums: usize) -> usize {
        4 * checksums + Footer::BYTES
    }

    /// The bytes after the record, or after its part before the digests.
    ///
    /// # Panics
    /// If there is not one checksum per region, and one digest per place.
    pub fn close(&self, checksums: &[u32], digests: &[Digest]) -> Result<Vec<u8>> {
        assert_eq!(checksums.len(), self.regions.len());
        assert_eq!(digests.len(), self.digests);
        let mut bytes = Vec::new();
        let len = Self::bytes(checksums.len()) + Digest::BYTES * digests.len();
        bytes.try_reserve_exact(len)?;
        bytes.extend(digests.iter().flat_map(|digest| digest.to_bytes()));
        bytes.extend(checksums.iter().flat_map(|checksum| checksum.to_le_bytes()));
        let mut crc = self.crc.clone();
        crc.update(&bytes);
        bytes.extend_from_slice(&(self.record as u64).to_le_bytes());
        let count = count_of(checksums.len())?;
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&crc.finalize().to_le_bytes());
        bytes.extend_from_slice(&MARK);
        Ok(bytes)
    }
}

pub(crate) fn count_of(len: usize) -> Result<u32> {
    length("record of the structure", len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_end_a_record() {
        let digests = [Digest::of(b"a"), Digest::of(b"b")];
        let blank = [&b"record"[..], &[0; 2 * Digest::BYTES]].concat();
        let seal = Seal::with_digests(&blank, Regions::new(vec![1, 2]), 2);
        let after = seal.close(&[3, 4], &digests).unwrap();
        let bytes = [b"record".to_vec(), after].concat();
        let (record, sums) = Footer::split(&bytes).unwrap();
        let expected = digests.map(Digest::to_bytes).concat();
        assert_eq!(record, [&b"record"[..], &expected].concat());
        assert_eq!(checksums_of(sums).unwrap(), [3, 4]);
    }

    #[test]
    fn closed_records_are_read() {
        for checksums in [vec![], vec![1, u32::MAX]] {
            let seal = Seal::new(b"record", Regions::new(vec![3; checksums.len()]));
            let after = Seal::bytes(checksums.len());
            let bytes = [b"record".to_vec(), seal.close(&checksums, &[]).unwrap()].concat();
            assert_eq!(bytes.len(), 6 + after);
            let (record, sums) = Footer::split(&bytes).unwrap();
            assert_eq!(record, b"record");
            assert_eq!(checksums_of(sums).unwrap(), checksums);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert!(Footer::split(&damaged).is_err());
                assert!(Footer::split(&bytes[..at]).is_err());
            }
        }
    }

    #[test]
    fn parts_are_those_of_regions() {
        let regions = Regions::new(vec![3, 5, 9]);
        let parts = |range| regions.parts(range).collect::<Vec<_>>();
        assert_eq!(parts(0..20), [(0, 0..3), (1, 3..5), (2, 5..9)]);
        assert_eq!(parts(4..6), [(1, 4..5), (2, 5..6)]);
        assert_eq!(parts(3..5), [(1, 3..5)]);
        assert_eq!(parts(9..12), []);
        let with_empty = Regions::new(vec![0, 2, 2, 4]);
        assert!(with_empty.parts(0..4).eq([(1, 0..2), (3, 2..4)]));
        let bytes = b"abcdefghijkl";
        for blocks in 1..12 {
            let mut sums = Sums::default();
            for (number, block) in bytes.chunks(blocks).enumerate() {
                sums.add(regions.sum(number * blocks, block).unwrap())
                    .unwrap();
            }
            let expected = [&bytes[..3], &bytes[3..5], &bytes[5..9]].map(crc32fast::hash);
            assert_eq!(sums.finish(3).unwrap(), expected);
        }
    }
}
