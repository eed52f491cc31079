//! Compressed streams as docs/format.md has them, read and put together without the core.

use flate2::{Decompress, FlushDecompress};

/// The first bytes of streams of numbers.
pub const NUMBERS: [u8; 10] = *b"\xc1treepack\x01";
const GZIP: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const TAIL: usize = 66;
/// So many entries fit into a member of the index.
const MEMBER: usize = 8191;

/// A compressed block.
pub struct Block {
    pub bytes: Vec<u8>,
    /// What the index says of it.
    pub literal: bool,
    /// What comes out; `None` if it is none that has to be read.
    pub content: Option<Vec<u8>>,
}

/// A stream with an index, taken apart.
pub struct Frame {
    /// Whether it has numbers, and not gzip.
    pub numbers: bool,
    /// How many bytes come out of each block but the last.
    pub block_bytes: usize,
    /// How many come out in all.
    pub bytes: usize,
    pub blocks: Vec<Block>,
}

/// What a raw stream of DEFLATE makes, at most so many bytes.
fn inflated(stream: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(most + 1);
    Decompress::new(false)
        .decompress_vec(stream, &mut out, FlushDecompress::None)
        .ok()?;
    (out.len() <= most).then_some(out)
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}

/// What comes out of a block of numbers.
pub fn elements(block: &[u8]) -> Option<Vec<u8>> {
    let [width, phase, coded, literal] = *block.first_chunk()?;
    let (width, phase, size) = (usize::from(width), usize::from(phase), word(block, 4)?);
    let sound = matches!(width, 1 | 2 | 4 | 8) && phase < width && size <= 262_144;
    let count = sound.then(|| size.checked_sub(phase))?? / width;
    let mut at = 16 + size - count * width;
    let (before, after) = (block.get(16..16 + phase)?, block.get(16 + phase..at)?);
    let mut found = vec![0_u64; count];
    for number in 0..width {
        let (mut start, mut length) = (at, count);
        if coded >> number & 1 == 1 {
            (start, length) = (at + 4, word(block, at)?);
        }
        let plane = block.get(start..start + length)?;
        at = start + length;
        let plane = match (coded >> number & 1, literal >> number & 1) {
            (_, 1) => {
                let mut ends = vec![16_usize];
                for place in 0..4 {
                    ends.push(ends[place] + word(plane, 4 * place)?);
                }
                let head = plane.get(16..ends[1])?;
                ends.push(plane.len());
                let mut all = Vec::new();
                for part in 1..5 {
                    let part = plane.get(ends[part]..ends[part + 1])?;
                    all.extend(inflated(&[head, part].concat(), count)?);
                }
                all
            }
            (1, _) => inflated(plane, count)?,
            _ => plane.to_vec(),
        };
        if plane.len() != count {
            return None;
        }
        for (element, byte) in found.iter_mut().zip(plane) {
            *element |= u64::from(byte) << (8 * number);
        }
    }
    let mut content = before.to_vec();
    for element in found {
        let element = match width {
            1 => element,
            2 => (element as u16).rotate_right(1).into(),
            4 => (element as u32).rotate_right(1).into(),
            _ => element.rotate_right(1),
        };
        content.extend_from_slice(&element.to_le_bytes()[..width]);
    }
    content.extend_from_slice(after);
    (at == block.len()).then_some(content)
}

impl Frame {
    /// The blocks of a stream with an index, whatever its checksums are.
    pub fn read(stream: &[u8]) -> Option<Self> {
        let tail = stream.len().checked_sub(TAIL)? + 16;
        let (block_bytes, bytes) = (word(stream, tail + 4)?, long(stream, tail + 8)?);
        let count = long(stream, tail + 16)?;
        let mut at = (tail - 16).checked_sub(long(stream, tail + 24)?)?;
        if count > stream.len() / 8 || !(1..=262_144).contains(&block_bytes) {
            return None;
        }
        let numbers = stream.starts_with(&NUMBERS);
        let (mut start, mut blocks) = (10, Vec::new());
        for number in 0..count {
            at += if number % MEMBER == 0 { 16 } else { 0 };
            let entry = word(stream, at)?;
            at += if number % MEMBER == MEMBER - 1 { 18 } else { 8 };
            let block = stream.get(start..start + (entry & 0x7fff_ffff))?;
            start += block.len();
            let len = block_bytes.min(bytes.checked_sub(number * block_bytes)?);
            let mut block = block.to_vec();
            let content = if numbers {
                elements(&block)
            } else {
                inflated(&block, len)
            };
            let content = content.filter(|content| content.len() == len);
            if let (true, Some(content), Some(place)) = (numbers, &content, block.get_mut(12..16)) {
                place.copy_from_slice(&crc32fast::hash(content).to_le_bytes());
            }
            blocks.push(Block {
                bytes: block,
                literal: entry >> 31 == 1,
                content,
            });
        }
        Some(Self {
            numbers,
            block_bytes,
            bytes,
            blocks,
        })
    }

    /// All that comes out; `None` if a block is none that has to be read.
    pub fn content(&self) -> Option<Vec<u8>> {
        let contents = self.blocks.iter().map(|block| block.content.as_deref());
        Some(contents.collect::<Option<Vec<_>>>()?.concat())
    }

    /// A stream of these blocks, all around which is as it has to be.
    pub fn write(&self) -> Vec<u8> {
        let mut stream = if self.numbers { NUMBERS } else { GZIP }.to_vec();
        let (mut whole, mut entries) = (crc32fast::Hasher::new(), Vec::new());
        for block in &self.blocks {
            stream.extend_from_slice(&block.bytes);
            let length = block.bytes.len() as u32 | u32::from(block.literal) << 31;
            entries.extend_from_slice(&length.to_le_bytes());
            let checksum = match &block.content {
                Some(content) => crc32fast::hash(content),
                // What a damaged block of numbers says itself.
                None => word(&block.bytes, 12).unwrap_or(0) as u32,
            };
            entries.extend_from_slice(&checksum.to_le_bytes());
            whole.update(block.content.as_deref().unwrap_or_default());
        }
        stream.extend_from_slice(&[3, 0]);
        stream.extend_from_slice(&whole.finalize().to_le_bytes());
        stream.extend_from_slice(&(self.bytes as u32).to_le_bytes());
        if self.blocks.len() < 2 {
            return stream;
        }
        let before = stream.len();
        for part in entries.chunks(8 * MEMBER) {
            member(*b"TP", part, &mut stream);
        }
        let mut tail = 1_u32.to_le_bytes().to_vec();
        tail.extend_from_slice(&(self.block_bytes as u32).to_le_bytes());
        for long in [self.bytes, self.blocks.len(), stream.len() - before] {
            tail.extend_from_slice(&(long as u64).to_le_bytes());
        }
        tail.extend_from_slice(&crc32fast::hash(&entries).to_le_bytes());
        tail.extend_from_slice(&[0; 4]);
        member(*b"TE", &tail, &mut stream);
        stream
    }
}

fn member(name: [u8; 2], content: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&GZIP[..3]);
    out.push(4);
    out.extend_from_slice(&GZIP[4..]);
    out.extend_from_slice(&(content.len() as u16 + 4).to_le_bytes());
    out.extend_from_slice(&name);
    out.extend_from_slice(&(content.len() as u16).to_le_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}
