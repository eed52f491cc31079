//! The index of a gzip stream's blocks, at its end.
//!
//! It is stored in empty members after the data (docs/format.md, "Gzip"). The last one has a fixed
//! size, so that readers can begin there.

use super::foreign::Stream;
use super::format::{BLOCK_BYTES, END_BYTES, HEADER, MAX_EXPANSION, NUMBERS_HEADER};
use crate::base::source::{Source, bytes_of};
use crate::{Error, Result, base::grow};

const VERSION: u32 = 1;

const LITERAL: u32 = 1 << 31;

const ENTRY_BYTES: usize = 8;

/// The most entries of a subfield, which is smaller than 64 KiB.
const MEMBER_ENTRIES: usize = (u16::MAX as usize - 4) / ENTRY_BYTES;

const EMPTY_BYTES: usize = HEADER.len() + 2 + 4 + END_BYTES;

const TAIL_FIELD_BYTES: usize = 40;
const TAIL_BYTES: usize = EMPTY_BYTES + TAIL_FIELD_BYTES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    pub start: usize,
    pub len: usize,
    pub literal: bool,
    pub checksum: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub struct BlockIndex {
    pub block_bytes: usize,
    pub bytes: usize,
    pub blocks: Vec<IndexEntry>,
    pub checksum: u32,
    pub numbers: bool,
}

#[derive(Debug, Default)]
pub struct BlockEntries(Vec<u8>);

impl BlockEntries {
    pub fn push(&mut self, len: usize, literal: bool, checksum: u32) -> Result<()> {
        let len = u32::try_from(len).ok().filter(|len| len & LITERAL == 0);
        let len = len.ok_or_else(|| Error::Gzip("a block reaches 2 GiB".into()))?;
        let entry = if literal { len | LITERAL } else { len };
        self.0.try_reserve(ENTRY_BYTES)?;
        self.0.extend_from_slice(&entry.to_le_bytes());
        self.0.extend_from_slice(&checksum.to_le_bytes());
        Ok(())
    }

    pub fn members(&self, bytes: usize, block_bytes: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if self.0.len() <= ENTRY_BYTES {
            return Ok(out);
        }
        for entries in self.0.chunks(MEMBER_ENTRIES * ENTRY_BYTES) {
            write_empty_member(*b"TP", entries, &mut out)?;
        }
        let block_bytes = u32::try_from(block_bytes);
        let block_bytes = block_bytes.map_err(|_| Error::Gzip("a block reaches 4 GiB".into()))?;
        let mut tail = Vec::with_capacity(TAIL_FIELD_BYTES);
        tail.extend_from_slice(&VERSION.to_le_bytes());
        tail.extend_from_slice(&block_bytes.to_le_bytes());
        tail.extend_from_slice(&(bytes as u64).to_le_bytes());
        tail.extend_from_slice(&((self.0.len() / ENTRY_BYTES) as u64).to_le_bytes());
        tail.extend_from_slice(&(out.len() as u64).to_le_bytes());
        tail.extend_from_slice(&crc32fast::hash(&self.0).to_le_bytes());
        tail.extend_from_slice(&[0; 4]);
        write_empty_member(*b"TE", &tail, &mut out)?;
        Ok(out)
    }
}

fn write_empty_member(name: [u8; 2], content: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let long = |_| Error::Gzip("the index is too long".into());
    let subfield = u16::try_from(content.len()).map_err(long)?;
    let extra = u16::try_from(content.len() + 4).map_err(long)?;
    out.try_reserve(content.len() + EMPTY_BYTES)?;
    let mut header = HEADER;
    header[3] = 4;
    out.extend_from_slice(&header);
    out.extend_from_slice(&extra.to_le_bytes());
    out.extend_from_slice(&name);
    out.extend_from_slice(&subfield.to_le_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&[3, 0]);
    out.extend_from_slice(&[0; 8]);
    Ok(())
}

pub fn index_bytes(blocks: usize) -> usize {
    if blocks < 2 {
        return 0;
    }
    blocks * ENTRY_BYTES + blocks.div_ceil(MEMBER_ENTRIES) * EMPTY_BYTES + TAIL_BYTES
}

impl Stream<'_> {
    /// Returns whether it ends with an index, even a damaged or truncated one.
    pub fn has_traces_of_index(self) -> Result<bool> {
        let window = MEMBER_ENTRIES * ENTRY_BYTES + EMPTY_BYTES + TAIL_BYTES;
        let mut header = HEADER;
        header[3] = 4;
        let len = self.0.len();
        let end = bytes_of(self.0, len.saturating_sub(window)..len)?;
        let is_ours = |bytes: &[u8]| {
            bytes.starts_with(&header) && matches!(&bytes[HEADER.len() + 2..], b"TP" | b"TE")
        };
        Ok(end.windows(HEADER.len() + 4).any(is_ours))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn size_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u64::from_le_bytes(*bytes)).ok()
}

/// The bytes of each block, all bytes, and the number of blocks by the end of a stream, if possible.
fn parse_tail(tail: &[u8], stream_bytes: usize) -> Option<(usize, usize, usize)> {
    let field = tail.get(HEADER.len() + 2 + 4..)?;
    let block_bytes = u32_at(field, 4)? as usize;
    let (bytes, blocks) = (size_at(field, 8)?, size_at(field, 16)?);
    // No larger than a writer chooses: readers hold several blocks in memory.
    let sound = (1..=BLOCK_BYTES).contains(&block_bytes)
        && (2..=stream_bytes / ENTRY_BYTES).contains(&blocks)
        && bytes.div_ceil(block_bytes) == blocks;
    sound.then_some((block_bytes, bytes, blocks))
}

impl BlockIndex {
    /// Reads the index at the end of a stream; `None` unless it is exactly as `members` writes it,
    /// and possible.
    pub fn read(stream: &dyn Source) -> Result<Option<Self>> {
        let len = stream.len();
        let tail = bytes_of(stream, len.saturating_sub(TAIL_BYTES)..len)?;
        let Some((block_bytes, bytes, count)) = parse_tail(&tail, len) else {
            return Ok(None);
        };
        let Some(end) = len.checked_sub(index_bytes(count)) else {
            return Ok(None);
        };
        let members = bytes_of(stream, end..len)?;
        let mut entries = BlockEntries(grow::with_room(count * ENTRY_BYTES)?);
        let index_members = &members[..members.len() - TAIL_BYTES];
        for member in index_members.chunks(MEMBER_ENTRIES * ENTRY_BYTES + EMPTY_BYTES) {
            let member_entries = &member[HEADER.len() + 2 + 4..member.len() - END_BYTES];
            entries.0.extend_from_slice(member_entries);
        }
        if entries.members(bytes, block_bytes)? != members {
            return Ok(None);
        }
        let (mut blocks, mut start) = (grow::with_room(count)?, HEADER.len());
        for (index, entry) in entries.0.as_chunks::<ENTRY_BYTES>().0.iter().enumerate() {
            let [head, checksum] = [0, 4].map(|at| u32_at(entry, at).unwrap_or_default());
            let len = (head & !LITERAL) as usize;
            let out = block_bytes.min(bytes - index * block_bytes);
            if out > len.saturating_mul(MAX_EXPANSION) || len > end.saturating_sub(start) {
                return Ok(None);
            }
            blocks.push(IndexEntry {
                start,
                len,
                literal: head & LITERAL != 0,
                checksum,
            });
            start += len;
        }
        let header = bytes_of(stream, 0..HEADER.len())?;
        let numbers = header == NUMBERS_HEADER;
        if header != HEADER && !numbers || start + END_BYTES != end {
            return Ok(None);
        }
        let end_bytes = bytes_of(stream, start..end)?;
        #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as in the format
        let size = bytes as u32;
        if end_bytes[..2] != [3, 0] || u32_at(&end_bytes, 6) != Some(size) {
            return Ok(None);
        }
        Ok(Some(Self {
            block_bytes,
            bytes,
            blocks,
            checksum: u32_at(&end_bytes, 2).unwrap_or_default(),
            numbers,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(blocks: &[(usize, bool)], bytes: usize, block_bytes: usize) -> Vec<u8> {
        let mut stream = HEADER.to_vec();
        let mut entries = BlockEntries::default();
        for (index, &(len, literal)) in blocks.iter().enumerate() {
            stream.resize(stream.len() + len, 0);
            entries
                .push(len, literal, u32::try_from(index).unwrap())
                .unwrap();
        }
        stream.extend_from_slice(&[3, 0, 1, 2, 3, 4]);
        stream.extend_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
        let members = entries.members(bytes, block_bytes).unwrap();
        assert_eq!(members.len(), index_bytes(blocks.len()));
        stream.extend(members);
        stream
    }

    #[test]
    fn an_index_without_data_before_it_is_none() {
        let stream = stream(&[(100, true), (7, false), (9, true)], 25, 10);
        let index = stream.len() - index_bytes(3);
        for before in 0..HEADER.len() + END_BYTES {
            let cut = [&HEADER[..before.min(HEADER.len())], &stream[index..]].concat();
            assert_eq!(BlockIndex::read(&cut).unwrap(), None, "{before}");
        }
    }

    #[test]
    fn an_index_is_read_back() {
        let blocks = [(100, true), (7, false), (9, true)];
        let stream = stream(&blocks, 25, 10);
        let index = BlockIndex::read(&stream).unwrap().unwrap();
        assert_eq!((index.block_bytes, index.bytes), (10, 25));
        assert_eq!(index.checksum, 0x0403_0201);
        let entries: Vec<_> = index.blocks.iter().map(|b| (b.len, b.literal)).collect();
        assert_eq!(entries, blocks);
        assert_eq!(index.blocks[2].start, HEADER.len() + 107);
        assert_eq!(index.blocks[2].checksum, 2);
        for cut in 0..stream.len() {
            assert_eq!(BlockIndex::read(&stream[..cut].to_vec()).unwrap(), None);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn an_index_of_any_length_is_read_back() {
        for count in [2, MEMBER_ENTRIES, MEMBER_ENTRIES + 1, 3 * MEMBER_ENTRIES] {
            let stream = stream(&vec![(1, true); count], count * 9 - 3, 9);
            let index = BlockIndex::read(&stream).unwrap().unwrap();
            assert_eq!(index.blocks.len(), count);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_damaged_index_leaves_traces() {
        let stream = stream(&[(100, true), (70, false)], 15, 10);
        let begin = stream.len() - index_bytes(2);
        assert!(
            !Stream(&stream[..begin].to_vec())
                .has_traces_of_index()
                .unwrap()
        );
        for at in begin..stream.len() {
            let mut damaged = stream.clone();
            damaged[at] ^= 1;
            assert!(Stream(&damaged).has_traces_of_index().unwrap(), "{at}");
            let is_long = at > begin + HEADER.len() + 4;
            assert!(
                !is_long
                    || Stream(&stream[..at].to_vec())
                        .has_traces_of_index()
                        .unwrap()
            );
        }
    }

    #[test]
    fn claims_that_cannot_be_true_are_not_believed() {
        let impossible = stream(&[(10, false), (20, false)], 22_000, 11_000);
        assert_eq!(BlockIndex::read(&impossible).unwrap(), None);
        // Any byte, except the checksum and the block size, which may have other values.
        let sound = stream(&[(100, true), (70, false)], 15, 10);
        let block_bytes = sound.len() - 10 - 36..sound.len() - 10 - 32;
        let around = (0..10).chain(180..182).chain(186..sound.len());
        for at in around.filter(|at| !block_bytes.contains(at)) {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            assert!(BlockIndex::read(&damaged).unwrap().is_none(), "{at}");
        }
    }
}
