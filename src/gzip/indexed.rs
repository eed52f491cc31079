//! Inflating a member that has an index: in parallel, or only a range of it.

use std::hash::{BuildHasher, RandomState};
use std::mem::{self, MaybeUninit};
use std::num::NonZero;
use std::ops::Range;
use std::sync::{LazyLock, Mutex};

use crc32fast::Hasher;
use libdeflater::Decompressor;

use super::index::{Block, Index};
use super::turns::{TURNS, Turns};
use crate::{Error, Result, parallel};

/// A stream that is one member with an index.
pub struct Indexed<'a> {
    stream: &'a [u8],
    index: Index,
    checksum: u32,
}

/// What a thread keeps.
#[derive(Default)]
struct Worker {
    turns: Box<Turns>,
    other: Decompressor,
    input: Vec<u8>,
    block: Vec<u8>,
}

impl<'a> Indexed<'a> {
    /// `None` if the stream is not one member with an index, as `compress` writes it.
    #[must_use]
    pub fn open(stream: &'a [u8]) -> Option<Self> {
        let index = Index::read(stream)?;
        let (end, after) = stream[index.end..].split_at_checked(10)?;
        #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as the format has it
        let size = (index.bytes as u32).to_le_bytes();
        if end[..2] != [3, 0] || end[6..] != size || after.iter().any(|&byte| byte != 0) {
            return None;
        }
        Some(Self {
            checksum: u32::from_le_bytes([end[2], end[3], end[4], end[5]]),
            stream,
            index,
        })
    }

    /// How many bytes come out.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.bytes
    }

    /// Whether none do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// About how many bytes of the stream have been read for good when so many have come out.
    #[must_use]
    pub fn read_for(&self, done: usize) -> usize {
        let next = done / self.index.block_bytes;
        self.index
            .blocks
            .get(next)
            .map_or(self.index.end, |block| block.start)
    }

    /// Fills `out`, which must have `len` bytes, with what comes out, and compares the
    /// checksum. Returns false if the stream is damaged; `out` is of no use then.
    ///
    /// `done` is told how many bytes are there, and can stop the work.
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn inflate(
        &self,
        out: &mut [MaybeUninit<u8>],
        threads: NonZero<usize>,
        mut done: impl FnMut(usize) -> Result<()>,
    ) -> Result<bool> {
        assert_eq!(out.len(), self.len());
        let count = self.index.blocks.len();
        // So many that all threads have some.
        let group_blocks = count.div_ceil(threads.get()).clamp(1, TURNS);
        let group_bytes = group_blocks * self.index.block_bytes;
        let places: Vec<_> = out
            .chunks_mut(group_bytes)
            .map(|place| Mutex::new(Some(place)))
            .collect();
        let work = |worker: &mut Worker, group: usize| {
            let place = places[group].lock().ok().and_then(|mut place| place.take());
            let place = place.expect("each group is worked on once");
            let mut rests: Vec<_> = place.chunks_mut(self.index.block_bytes).collect();
            let mut checksums = vec![Hasher::new(); rests.len()];
            let first = group * group_blocks;
            let whole = self.decode(first..first + rests.len(), worker, |block, piece| {
                checksums[block].update(piece);
                let rest = mem::take(&mut rests[block]);
                let (now, later) = rest.split_at_mut(piece.len());
                now.write_copy_of_slice(piece);
                rests[block] = later;
            });
            let joined = |mut all: Hasher, block: Hasher| {
                all.combine(&block);
                all
            };
            whole.then(|| checksums.into_iter().fold(Hasher::new(), joined))
        };
        let mut checksum = Hasher::new();
        let mut damaged = false;
        let ahead = threads.get().saturating_mul(4); // what waits is only a checksum
        let inflated = parallel::in_order(places.len(), threads, ahead, work, |group, part| {
            let Some(part) = part else {
                damaged = true;
                return Err(Error::Stopped);
            };
            checksum.combine(&part);
            done(self.len().min((group + 1) * group_bytes))
        });
        if damaged {
            return Ok(false);
        }
        inflated?;
        Ok(checksum.finalize() == self.checksum)
    }

    /// The bytes of `range` of what comes out; only the blocks that cover it are inflated,
    /// and no checksum is compared.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u8>> {
        if range.start > range.end || range.end > self.len() {
            return Err(Error::Option(format!(
                "bytes {} to {} of {}",
                range.start,
                range.end,
                self.len()
            )));
        }
        let block_bytes = self.index.block_bytes;
        let mut out = Vec::with_capacity(range.len());
        let mut worker = Worker::default();
        let mut blocks = vec![Vec::new(); TURNS];
        let mut first = range.start / block_bytes;
        let end = range.end.div_ceil(block_bytes);
        while out.len() < range.len() {
            let last = end.min(first + TURNS);
            blocks.iter_mut().for_each(Vec::clear);
            let whole = self.decode(first..last, &mut worker, |block, piece| {
                blocks[block].extend_from_slice(piece);
            });
            if !whole {
                return Err(Error::Gzip(format!(
                    "one of the compressed blocks {first} to {last} is damaged"
                )));
            }
            for (number, block) in (first..last).zip(&blocks) {
                let begin = number * block_bytes;
                let from = range.start.saturating_sub(begin).min(block.len());
                let to = (range.end - begin).min(block.len());
                out.extend_from_slice(&block[from..to]);
            }
            first = last;
        }
        Ok(out)
    }

    /// Decodes up to `TURNS` blocks, and gives what comes out to `take` piece by piece, with
    /// the place of the block in the range. Returns whether all are well.
    fn decode(
        &self,
        range: Range<usize>,
        worker: &mut Worker,
        mut take: impl FnMut(usize, &[u8]),
    ) -> bool {
        let block_bytes = self.index.block_bytes;
        let (mut in_turns, mut places) = (Vec::new(), Vec::new());
        for (place, number) in range.enumerate() {
            let block = &self.index.blocks[number];
            let len = block_bytes.min(self.len() - number * block_bytes);
            let input = self.bytes(block);
            if block.literal && len == block_bytes {
                in_turns.push(input);
                places.push(place);
            } else if block.literal {
                // The last of the stream is shorter.
                let take = |_, piece: &[u8]| take(place, piece);
                if !worker.turns.decode(&[input], len, take) {
                    return false;
                }
            } else {
                let Some(block) = worker.inflate(input, len) else {
                    return false;
                };
                take(place, block);
            }
        }
        let take = |turn: usize, piece: &[u8]| take(places[turn], piece);
        in_turns.is_empty() || worker.turns.decode(&in_turns, block_bytes, take)
    }

    fn bytes(&self, block: &Block) -> &'a [u8] {
        &self.stream[block.start..][..block.len]
    }
}

impl Worker {
    /// Inflates a piece of a stream that has to become `len` bytes, and to end where a block
    /// ends and another one may begin.
    ///
    /// That is what makes the pieces mean the same by themselves as in a row. It is tried
    /// out: a stored block of what no stream can foresee must come out as it is.
    fn inflate(&mut self, piece: &[u8], len: usize) -> Option<&[u8]> {
        const PROBE_BYTES: usize = 1024;
        static PROBE: LazyLock<[u8; PROBE_BYTES]> = LazyLock::new(|| {
            let state = RandomState::new();
            std::array::from_fn(|index| state.hash_one(index).to_le_bytes()[0])
        });
        #[allow(clippy::cast_possible_truncation)]
        const LEN: [u8; 2] = (PROBE_BYTES as u16).to_le_bytes();
        self.input.clear();
        self.input.extend_from_slice(piece);
        // The last block, stored. Five bits of its first byte mean nothing. They are set, so that
        // nothing that is left open can go on with them and still find the block.
        let header = [0b1111_1001, LEN[0], LEN[1], !LEN[0], !LEN[1]];
        self.input.extend_from_slice(&header);
        self.input.extend_from_slice(&*PROBE);
        self.block.resize(len + PROBE_BYTES, 0);
        let made = self.other.deflate_decompress(&self.input, &mut self.block);
        let (block, probe) = self.block.split_at(len);
        (made == Ok(len + PROBE_BYTES) && probe == *PROBE).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;
    use crate::gzip::bits::BitWriter;
    use crate::gzip::index::header;

    const DATA: &[u8; 24] = b"abcdefghijklmnopqrstuvwx";

    /// A member of `DATA` in three blocks of eight bytes, which should inflate to it.
    fn member(blocks: [&[u8]; 3]) -> Vec<u8> {
        let sizes = blocks.map(|block| (block.len(), false));
        let mut stream = header(DATA.len(), 8, &sizes).unwrap();
        for block in blocks {
            stream.extend_from_slice(block);
        }
        stream.extend_from_slice(&[3, 0]);
        stream.extend_from_slice(&crc32fast::hash(DATA).to_le_bytes());
        stream.extend_from_slice(&24_u32.to_le_bytes());
        stream
    }

    fn inflate(stream: &[u8]) -> bool {
        let indexed = Indexed::open(stream).unwrap();
        let mut out = [MaybeUninit::uninit(); DATA.len()];
        let whole = indexed.inflate(&mut out, NonZero::<usize>::MIN, |_| Ok(()));
        let whole = whole.unwrap();
        assert_eq!(indexed.read(0..24).is_ok_and(|found| found == DATA), whole);
        whole
    }

    fn deflate(data: &[u8], flush: FlushCompress) -> Vec<u8> {
        let mut out = Vec::with_capacity(1000);
        let mut zlib = Compress::new(Compression::new(6), false);
        zlib.compress_vec(data, &mut out, flush).unwrap();
        out
    }

    #[test]
    fn blocks_that_end_where_others_can_begin_are_taken() {
        let blocks = DATA
            .as_chunks::<8>()
            .0
            .iter()
            .map(|part| deflate(part, FlushCompress::Sync));
        let blocks: Vec<Vec<u8>> = blocks.collect();
        assert!(inflate(&member([&blocks[0], &blocks[1], &blocks[2]])));
        assert!(!inflate(&member([&blocks[1], &blocks[0], &blocks[2]])));
    }

    #[test]
    fn a_last_block_in_the_middle_is_refused() {
        let parts = DATA.as_chunks::<8>().0;
        let [first, last] = [parts[0], parts[2]].map(|part| deflate(&part, FlushCompress::Sync));
        let middle = deflate(&parts[1], FlushCompress::Finish);
        assert!(!inflate(&member([&first, &middle, &last])));
    }

    #[test]
    fn a_block_that_is_left_open_is_refused() {
        let parts = DATA.as_chunks::<8>().0;
        let [first, last] = [parts[0], parts[2]].map(|part| deflate(&part, FlushCompress::Sync));
        // Literals in the fixed code, without the symbol that ends the block.
        let mut middle = vec![0; 100];
        let mut writer = BitWriter::new(&mut middle);
        writer.put(0b010, 3);
        for &byte in &parts[1] {
            writer.put((byte + 0x30).reverse_bits().into(), 8);
            writer.flush();
        }
        writer.put(0, 5);
        writer.flush();
        middle.truncate(1 + parts[1].len());
        assert!(!inflate(&member([&first, &middle, &last])));
    }
}
