//! Inflates a stream with an index: in parallel, or a range of it.

use std::mem;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;

use crc32fast::Hasher;

use super::decoders::Decoders;
use super::index::{BlockIndex, IndexEntry};
use super::interleaved::LANES;
use super::numbers::{self, NumberBlock};
use crate::base::raw::{Room, Uninit};
use crate::base::source::{Source, read_to};
use crate::base::watch::Watch;
use crate::{Error, Result, base::grow, base::parallel};

/// As a [`Source`], the stream's content.
pub struct Indexed<S> {
    stream: S,
    index: BlockIndex,
    /// The last block, where readers often continue, and its number.
    last: Mutex<Option<(usize, Vec<u8>)>>,
}

#[derive(Default)]
struct Worker {
    decoders: Decoders,
    /// Compressed blocks, copied where the stream may change.
    copies: Vec<Vec<u8>>,
}

impl<S: Source> Indexed<S> {
    pub fn open(stream: S) -> Result<Option<Self>> {
        let index = BlockIndex::read(&stream)?;
        Ok(index.map(|index| Self {
            stream,
            index,
            last: Mutex::default(),
        }))
    }

    pub fn len(&self) -> usize {
        self.index.bytes
    }

    /// Inflates everything and compares the checksums; `None` if the stream is damaged. `watch`
    /// counts bytes of the content.
    ///
    /// # Panics
    /// If `out` does not have `len` bytes.
    pub fn inflate<'t>(
        &self,
        out: &'t mut Uninit,
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> Result<Option<&'t mut [u8]>> {
        let (whole, out) = Room::share(out, |room| self.inflate_to(room, threads, watch))?;
        Ok(out.filter(|_| whole))
    }

    fn inflate_to(
        &self,
        out: Room<'_>,
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> Result<bool> {
        assert_eq!(out.len(), self.len());
        let count = self.index.blocks.len();
        // Small groups, so that all threads have work.
        let group_blocks = count.div_ceil(threads.get()).clamp(1, LANES);
        let group_bytes = group_blocks * self.index.block_bytes;
        let places = out.chunks(group_bytes);
        let places = grow::collect(places.map(|place| Mutex::new(Some(place))))?;
        let work = |worker: &mut Worker, group: usize| {
            let place = places[group].lock().ok().and_then(|mut place| place.take());
            let place = place.expect("each group is worked on once");
            let mut rests: Vec<_> = place.chunks(self.index.block_bytes).collect();
            let first = group * group_blocks;
            let range = first..first + rests.len();
            self.decode(range, worker, |block, piece| rests[block].write(piece))
        };
        let mut checksum = Hasher::new();
        let mut damaged = false;
        let ahead = threads.get().saturating_mul(4); // waiting results are only checksums
        let inflated = parallel::in_order(places.len(), threads, ahead, work, |group, part| {
            let Some(part) = part? else {
                damaged = true;
                return Err(Error::Stopped);
            };
            for block in part {
                checksum.combine(&block);
            }
            watch.done(self.len().min((group + 1) * group_bytes))
        });
        if damaged {
            return Ok(false);
        }
        inflated?;
        Ok(checksum.finalize() == self.index.checksum)
    }

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
        let mut out = Vec::new();
        out.try_reserve_exact(range.len())?;
        // Concurrent readers, and forks that inherit a held lock, skip the cache.
        let mut last = self.last.try_lock().ok();
        let mut first = range.start / block_bytes;
        let end = range.end.div_ceil(block_bytes);
        let take = |number: usize, block: &[u8], out: &mut Vec<u8>| {
            let begin = number * block_bytes;
            let from = range.start.saturating_sub(begin).min(block.len());
            let to = (range.end - begin).min(block.len());
            out.extend_from_slice(&block[from..to]);
        };
        if let Some(Some((number, block))) = last.as_deref()
            && *number == first
            && first < end
        {
            take(first, block, &mut out);
            first += 1;
        }
        let mut worker = Worker::default();
        let mut blocks = vec![Vec::new(); LANES.min(end.saturating_sub(first))];
        while first < end {
            let next = end.min(first + LANES);
            for block in &mut blocks[..next - first] {
                block.clear();
                block.try_reserve(block_bytes)?;
            }
            let whole = self.decode(first..next, &mut worker, |block, piece| {
                blocks[block].extend_from_slice(piece);
            })?;
            if whole.is_none() {
                return Err(Error::Gzip(format!(
                    "one of the compressed blocks {first} to {} is damaged",
                    next - 1
                )));
            }
            for (number, block) in (first..next).zip(&blocks) {
                take(number, block, &mut out);
            }
            if next == end
                && let Some(last) = &mut last
            {
                **last = Some((end - 1, mem::take(&mut blocks[end - 1 - first])));
            }
            first = next;
        }
        Ok(out)
    }

    pub(super) fn has_whole_block(&self, tried: usize) -> Result<bool> {
        for number in (0..self.index.blocks.len()).rev().take(tried) {
            let start = number * self.index.block_bytes;
            match self.read(start..start + self.block_len(number)) {
                Ok(_) => return Ok(true),
                Err(error) if error.is_no_damage() => return Err(error),
                Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Decodes up to `LANES` blocks and passes each piece of content to `take`, with its block's
    /// position in the range. Returns the checksums, or `None` if a block does not match the index.
    fn decode(
        &self,
        range: Range<usize>,
        worker: &mut Worker,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<Option<Vec<Hasher>>> {
        let blocks = &self.index.blocks[range.clone()];
        let mut copies = mem::take(&mut worker.copies);
        copies.resize_with(copies.len().max(blocks.len()), Vec::new);
        for (block, copy) in blocks.iter().zip(&mut copies) {
            if self.stream.stable().is_none() {
                copy.clear();
                read_to(&self.stream, block.start..block.start + block.len, copy)?;
            }
        }
        let input = |place: usize| match self.stream.stable() {
            Some(stream) => &stream[blocks[place].start..][..blocks[place].len],
            None => &copies[place],
        };
        let mut checksums = vec![Hasher::new(); blocks.len()];
        let mut take = |place: usize, piece: &[u8]| {
            checksums[place].update(piece);
            take(place, piece);
        };
        let whole = if self.index.numbers {
            let parts = range.clone().zip(blocks).map(|(number, block)| {
                let parts = NumberBlock::read(input(number - range.start), self.block_len(number))?;
                (parts.checksum == block.checksum).then_some(parts)
            });
            match parts.collect::<Option<Vec<_>>>() {
                Some(parts) => {
                    let mut whole = true;
                    for (place, parts) in parts.iter().enumerate() {
                        let take = |piece: &[u8]| take(place, piece);
                        whole = whole && numbers::decode(parts, &mut worker.decoders, take)?;
                    }
                    whole
                }
                None => false,
            }
        } else {
            self.decode_inputs(range, &mut worker.decoders, input, &mut take)?
        };
        worker.copies = copies;
        let same = |(sum, block): (&Hasher, &IndexEntry)| sum.clone().finalize() == block.checksum;
        let whole = whole && checksums.iter().zip(blocks).all(same);
        Ok(whole.then_some(checksums))
    }

    fn decode_inputs<'b>(
        &self,
        range: Range<usize>,
        decoders: &mut Decoders,
        input: impl Fn(usize) -> &'b [u8],
        take: &mut impl FnMut(usize, &[u8]),
    ) -> Result<bool> {
        let block_bytes = self.index.block_bytes;
        let (mut in_lanes, mut places) = (Vec::new(), Vec::new());
        for (place, number) in range.enumerate() {
            let block = &self.index.blocks[number];
            let len = self.block_len(number);
            if block.literal && len == block_bytes {
                in_lanes.push(input(place));
                places.push(place);
            } else if block.literal {
                let take = |_, piece: &[u8]| take(place, piece);
                if !decoders.interleaved()?.decode(&[input(place)], len, take) {
                    return Ok(false);
                }
            } else {
                let Some(block) = decoders.inflate(input(place), len)? else {
                    return Ok(false);
                };
                take(place, block);
            }
        }
        let take = |lane: usize, piece: &[u8]| take(places[lane], piece);
        Ok(in_lanes.is_empty() || decoders.interleaved()?.decode(&in_lanes, block_bytes, take))
    }

    fn block_len(&self, number: usize) -> usize {
        let block_bytes = self.index.block_bytes;
        block_bytes.min(self.len() - number * block_bytes)
    }
}

impl<S: Source> Source for Indexed<S> {
    fn len(&self) -> usize {
        self.index.bytes
    }

    fn stored(&self, range: Range<usize>) -> Range<usize> {
        let blocks = &self.index.blocks;
        let first = range.start / self.index.block_bytes;
        let end = range.end.div_ceil(self.index.block_bytes);
        match blocks.get(first..end.min(blocks.len())) {
            Some([first, .., last]) => first.start..last.start + last.len,
            Some([only]) => only.start..only.start + only.len,
            _ => 0..0,
        }
    }

    /// Compares the stream's checksum with its blocks' checksums, which alone partial reads compare.
    fn damage(&self) -> Option<&'static str> {
        let mut whole = Hasher::new();
        for (number, block) in self.index.blocks.iter().enumerate() {
            let len = self.block_len(number);
            whole.combine(&Hasher::new_with_initial_len(block.checksum, len as u64));
        }
        let damage = "the checksum of the whole does not match its compressed blocks";
        (whole.finalize() != self.index.checksum).then_some(damage)
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let read = self.read(offset..offset + target.len())?;
        Ok(target.write_copy_of_slice(&read))
    }

    fn near(&self) -> usize {
        256 << 10
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use flate2::{Compress, Compression, FlushCompress};

    use super::*;
    use crate::codec::gzip::bits::BitWriter;
    use crate::codec::gzip::format::HEADER;
    use crate::codec::gzip::index::BlockEntries;

    const DATA: &[u8; 24] = b"abcdefghijklmnopqrstuvwx";

    fn member(blocks: [&[u8]; 3]) -> Vec<u8> {
        let mut stream = HEADER.to_vec();
        let mut entries = BlockEntries::default();
        for (block, part) in blocks.iter().zip(DATA.chunks(8)) {
            stream.extend_from_slice(block);
            entries
                .push(block.len(), false, crc32fast::hash(part))
                .unwrap();
        }
        stream.extend_from_slice(&[3, 0]);
        stream.extend_from_slice(&crc32fast::hash(DATA).to_le_bytes());
        stream.extend_from_slice(&24_u32.to_le_bytes());
        stream.extend(entries.members(DATA.len(), 8).unwrap());
        stream
    }

    fn inflate(stream: &Vec<u8>) -> bool {
        let indexed = Indexed::open(stream).unwrap().unwrap();
        let mut out = [MaybeUninit::uninit(); DATA.len()];
        let whole = indexed.inflate(&mut out, NonZero::<usize>::MIN, &());
        let whole = whole.unwrap().is_some_and(|out| out == DATA);
        assert_eq!(indexed.read(0..24).is_ok_and(|bytes| bytes == DATA), whole);
        if whole {
            let held = indexed.last.lock().unwrap();
            assert_eq!(indexed.read(0..5).unwrap(), DATA[..5]);
            drop(held);
            for (from, to) in [(0, 5), (5, 9), (3, 3), (24, 24), (9, 24), (17, 20), (0, 24)] {
                assert_eq!(indexed.read(from..to).unwrap(), DATA[from..to]);
            }
        }
        whole
    }

    fn inflate_all(stream: &Vec<u8>) -> bool {
        let indexed = Indexed::open(stream).unwrap().unwrap();
        let mut out = [MaybeUninit::uninit(); DATA.len()];
        let whole = indexed.inflate(&mut out, NonZero::<usize>::MIN, &());
        whole.unwrap().is_some()
    }

    fn deflate(data: &[u8], flush: FlushCompress) -> Vec<u8> {
        let mut out = Vec::with_capacity(1000);
        let mut zlib = Compress::new(Compression::new(6), false);
        zlib.compress_vec(data, &mut out, flush).unwrap();
        out
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn blocks_that_end_where_others_can_begin_are_taken() {
        let blocks = DATA
            .as_chunks::<8>()
            .0
            .iter()
            .map(|part| deflate(part, FlushCompress::Sync));
        let blocks: Vec<Vec<u8>> = blocks.collect();
        let stream = member([&blocks[0], &blocks[1], &blocks[2]]);
        assert!(inflate(&stream));
        assert!(Indexed::open(&stream).unwrap().unwrap().damage().is_none());
        let mut other = stream.clone();
        let checksum = crc32fast::hash(DATA).to_le_bytes();
        let at = other
            .windows(4)
            .position(|bytes| bytes == checksum)
            .unwrap();
        other[at] ^= 1;
        assert!(!inflate_all(&other));
        assert!(Indexed::open(&other).unwrap().unwrap().damage().is_some());
        assert!(!inflate(&member([&blocks[1], &blocks[0], &blocks[2]])));
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn a_last_block_in_the_middle_is_refused() {
        let parts = DATA.as_chunks::<8>().0;
        let [first, last] = [parts[0], parts[2]].map(|part| deflate(&part, FlushCompress::Sync));
        let middle = deflate(&parts[1], FlushCompress::Finish);
        assert!(!inflate(&member([&first, &middle, &last])));
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
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
