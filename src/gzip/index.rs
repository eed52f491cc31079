//! Where the blocks of a gzip member begin, told in its own header.
//!
//! A gzip header has room for extra subfields (RFC 1952, section 2.3.1.1), which readers skip.
//! Ours, `TP`, is a MessagePack record of what is needed to inflate blocks by themselves: in
//! parallel, several at a time, or only those that somebody asks for.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::MAGIC;
use crate::{Error, Result};

/// How many bytes of input a block has, except the last; more in very long streams.
const BLOCK_BYTES: usize = 256 << 10;

/// So many entries fit into a subfield, which has less than 64 KiB.
const MAX_BLOCKS: usize = 16_000;

/// Which subfield is ours.
const SUBFIELD: [u8; 2] = *b"TP";

/// Bytes of a header before the record: the fixed part, and the lengths of the extra
/// field and the subfield.
const BEFORE_RECORD: usize = 10 + 2 + 4;

/// DEFLATE makes at most so many bytes of one.
pub const MAX_EXPANSION: usize = 1032;

/// Set in the entry of a block that has only literals.
const LITERAL: u32 = 1 << 31;

#[derive(Serialize, Deserialize)]
struct Record {
    version: u8,
    block_bytes: u32,
    bytes: u64,
    /// For each block: its compressed length, and `LITERAL`; 4 bytes, lowest first.
    entries: ByteBuf,
}

/// How an input of `bytes` bytes is cut: the bytes of a block.
pub fn block_bytes(bytes: usize) -> usize {
    let mut block = BLOCK_BYTES;
    while bytes.div_ceil(block) > MAX_BLOCKS {
        block *= 2;
    }
    block
}

/// One block of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it begins in the stream.
    pub start: usize,
    /// How many bytes it has there.
    pub len: usize,
    /// Whether it has only literals.
    pub literal: bool,
}

/// What the header of a member tells about its blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Index {
    /// How many bytes come out of each block but the last.
    pub block_bytes: usize,
    /// How many bytes come out in all.
    pub bytes: usize,
    pub blocks: Vec<Block>,
    /// Where the blocks end.
    pub end: usize,
}

/// The header of a member of these blocks (lengths, and whether they have only literals).
///
/// Its length depends only on `bytes` and the number of blocks, so it can be
/// written before the blocks with any lengths, and again afterwards.
pub fn header(bytes: usize, block_bytes: usize, blocks: &[(usize, bool)]) -> Result<Vec<u8>> {
    // Flags: 0, or 4 for an extra field. No time, no extra flags, unknown system.
    let mut header = vec![MAGIC[0], MAGIC[1], 8, 0, 0, 0, 0, 0, 0, 255];
    if blocks.len() < 2 {
        return Ok(header); // nothing to be gained
    }
    let mut entries = Vec::with_capacity(4 * blocks.len());
    for &(len, literal) in blocks {
        let len = u32::try_from(len).ok().filter(|len| len & LITERAL == 0);
        let len = len.ok_or_else(|| Error::Gzip("a block of 2 GiB".into()))?;
        let entry = if literal { len | LITERAL } else { len };
        entries.extend_from_slice(&entry.to_le_bytes());
    }
    let record = Record {
        version: 1,
        block_bytes: u32::try_from(block_bytes).map_err(|_| Error::Gzip("a long input".into()))?,
        bytes: bytes as u64,
        entries: ByteBuf::from(entries),
    };
    let record = rmp_serde::to_vec(&record).map_err(|error| Error::Gzip(error.to_string()))?;
    let long = |_| Error::Gzip("an index that is too long".into());
    let subfield = u16::try_from(record.len()).map_err(long)?;
    let extra = u16::try_from(record.len() + 4).map_err(long)?;
    header[3] = 4;
    header.extend_from_slice(&extra.to_le_bytes());
    header.extend_from_slice(&SUBFIELD);
    header.extend_from_slice(&subfield.to_le_bytes());
    header.extend_from_slice(&record);
    Ok(header)
}

/// How many bytes the header of a member of so many blocks has at most.
pub fn header_bound(blocks: usize) -> usize {
    /// The record without its entries: an array of two small and two large integers, and a
    /// length.
    const RECORD_BYTES: usize = 1 + 1 + 5 + 9 + 5;
    BEFORE_RECORD + RECORD_BYTES + 4 * blocks
}

impl Index {
    /// The index of a stream that is one member with one, as `header` writes it; `None` for
    /// anything else, including what no such member can be.
    pub fn read(stream: &[u8]) -> Option<Self> {
        let (fixed, rest) = stream.split_at_checked(BEFORE_RECORD)?;
        let field = |at: usize| usize::from(u16::from_le_bytes([fixed[at], fixed[at + 1]]));
        if fixed[..4] != [MAGIC[0], MAGIC[1], 8, 4] || fixed[12..14] != SUBFIELD {
            return None;
        }
        let record = rest
            .get(..field(14))
            .filter(|record| record.len() + 4 == field(10))?;
        let record: Record = rmp_serde::from_slice(record).ok()?;
        let mut start = BEFORE_RECORD + field(14);
        let bytes = usize::try_from(record.bytes).ok()?;
        let block_bytes = record.block_bytes as usize;
        let (entries, []) = record.entries.as_chunks::<4>() else {
            return None;
        };
        // No larger than a writer chooses, since a reader has room for some of them.
        let sound = (1..=self::block_bytes(bytes)).contains(&block_bytes);
        if record.version != 1 || !sound || bytes.div_ceil(block_bytes) != entries.len() {
            return None;
        }
        let mut blocks = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let entry = u32::from_le_bytes(*entry);
            let len = (entry & !LITERAL) as usize;
            let out = block_bytes.min(bytes - index * block_bytes);
            if out > len.saturating_mul(MAX_EXPANSION) {
                return None;
            }
            blocks.push(Block {
                start,
                len,
                literal: entry & LITERAL != 0,
            });
            start = start.checked_add(len).filter(|&end| end <= stream.len())?;
        }
        Some(Self {
            block_bytes,
            bytes,
            blocks,
            end: start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back() {
        let blocks = [(100, true), (7, false), (9, true)];
        let mut stream = header(25, 10, &blocks).unwrap();
        assert_eq!(
            header(25, 10, &[(0, false); 3]).unwrap().len(),
            stream.len()
        );
        assert_eq!(Index::read(&stream), None); // the blocks are missing
        let start = stream.len();
        stream.extend_from_slice(&[0; 116]);
        let index = Index::read(&stream).unwrap();
        assert_eq!(
            (index.block_bytes, index.bytes, index.end),
            (10, 25, start + 116)
        );
        let found: Vec<_> = index.blocks.iter().map(|b| (b.len, b.literal)).collect();
        assert_eq!(found, blocks);
        assert_eq!(index.blocks[2].start, start + 107);
        for cut in 0..stream.len() {
            assert_eq!(Index::read(&stream[..cut]), None);
        }
    }

    #[test]
    fn claims_that_cannot_be_true_are_not_believed() {
        // 10 bytes cannot make 11,000.
        let mut stream = header(22_000, 11_000, &[(10, false), (20, false)]).unwrap();
        stream.extend_from_slice(&[0; 30]);
        assert_eq!(Index::read(&stream), None);
    }

    #[test]
    fn the_index_of_any_input_fits() {
        for bytes in [0, 1, BLOCK_BYTES, 1 << 30, 1 << 40, (1 << 40) + 1] {
            let block = block_bytes(bytes);
            let blocks = vec![(block, true); bytes.div_ceil(block)];
            let len = header(bytes, block, &blocks).unwrap().len();
            assert!(len < 66_000 && len <= header_bound(blocks.len()));
        }
    }
}
