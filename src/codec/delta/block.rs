//! Blocks of an array: each in the kind that takes the fewest bytes (docs/format.md, "Patches").

use std::mem;
use std::ops::Range;

use crc32fast::Hasher;

use super::elements::{Direction, Elements, add, apply, collect, subtract};
use super::order;
use super::sparse::{self, Changes, Coded, Frequencies};
use crate::base::raw::{Filling, Uninit, zeroed};
use crate::base::source::{Source, read_to};
use crate::codec::gzip::numbers;
use crate::codec::gzip::{BLOCK_BYTES as DENSE_BYTES, BlockCoder, Decoders};
use crate::{Result, base::grow, base::parallel};

/// Bytes of each block of an array but the last.
///
/// At 0.1 % changes, codes and header take some percent of a block.
pub const BLOCK_BYTES: usize = 2 << 20;

/// Bytes compared at a time: both sides stay in the L2 cache. Smaller tiles interrupt prefetching.
const TILE_BYTES: usize = 64 << 10;

/// From one change in `FEW` elements on, a block is dense.
const FEW: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Equal,
    Sparse,
    Dense,
    Stored,
    /// As `Dense`, in the order of the base's exponents.
    Ordered,
}

impl Kind {
    pub fn read(kind: u8) -> Option<Self> {
        use Kind::{Dense, Equal, Ordered, Sparse, Stored};
        const KINDS: [Kind; 5] = [Equal, Sparse, Dense, Stored, Ordered];
        KINDS.get(usize::from(kind)).copied()
    }
}

pub struct Encoded {
    pub kind: Kind,
    /// The bytes of a sparse or dense block; a stored block has the result's.
    pub bytes: Vec<u8>,
    pub sums: Sums,
}

/// Encodes blocks, and keeps its memory between them.
#[derive(Default)]
pub struct Encoder {
    new: Vec<u8>,
    base: Vec<u8>,
    changes: Changes,
    differences: Vec<u8>,
    exponents: Vec<u8>,
    sorted: Vec<u8>,
    dense: Dense,
}

impl Encoder {
    /// Encodes `len` bytes of `new` from `start` on as a difference from `base`.
    pub fn encode(
        &mut self,
        elements: Elements,
        new: &dyn Source,
        base: &dyn Source,
        start: usize,
        len: usize,
    ) -> Result<Encoded> {
        self.changes.clear();
        let (mut sums, most) = (Sums::default(), len / elements.width / FEW);
        let mut frequencies = Frequencies::default();
        for tile in parallel::blocks(start..start + len, TILE_BYTES) {
            let tiles = sums.read(new, base, tile, (&mut self.new, &mut self.base))?;
            let before = self.changes.len();
            collect(elements, tiles.0, tiles.1, &mut self.changes)?;
            frequencies.add(&self.changes, before);
            if self.changes.len() > most {
                return self.dense(elements, new, base, start, len);
            }
        }
        if self.changes.len() == 0 {
            return Ok(sums.encoded(Kind::Equal, Vec::new()));
        }
        let coded = Coded::new(&self.changes, &frequencies);
        if coded.len() > len / 2 {
            return self.dense(elements, new, base, start, len);
        }
        let mut bytes = Vec::new();
        coded.write(&mut bytes)?;
        Ok(sums.encoded(Kind::Sparse, bytes))
    }

    fn dense(
        &mut self,
        elements: Elements,
        new: &dyn Source,
        base: &dyn Source,
        start: usize,
        len: usize,
    ) -> Result<Encoded> {
        let mut sums = Sums::default();
        self.differences.clear();
        self.exponents.clear();
        for tile in parallel::blocks(start..start + len, TILE_BYTES) {
            let (new, base) = sums.read(new, base, tile, (&mut self.new, &mut self.base))?;
            let before = self.differences.len();
            grow::extend(&mut self.differences, new)?;
            subtract(elements, &mut self.differences[before..], base);
            order::add_exponents(elements, base, &mut self.exponents)?;
        }
        let (kind, bytes) = self.shorter(elements)?;
        if bytes.len() < len - len / 64 {
            return Ok(sums.encoded(kind, bytes));
        }
        Ok(sums.encoded(Kind::Stored, Vec::new()))
    }

    /// Codes the differences in the order that takes fewer bytes.
    fn shorter(&mut self, elements: Elements) -> Result<(Kind, Vec<u8>)> {
        let (dense, differences) = (&mut self.dense, &self.differences);
        if !elements.has_exponents() {
            return Ok((Kind::Dense, dense.code(differences)?));
        }
        order::sort(elements, &self.exponents, differences, &mut self.sorted)?;
        let ordered = dense.code(&self.sorted)?;
        // Rarely, as where columns are alike: so only a sample is coded at first.
        let mut parts = differences.chunks(DENSE_BYTES);
        let sample = parts.nth(parts.len() / 2).unwrap_or_default();
        let len_as_sample = dense.code(sample)?.len() * (differences.len() / sample.len().max(1));
        if len_as_sample < ordered.len() {
            let unordered = dense.code(differences)?;
            if unordered.len() < ordered.len() {
                return Ok((Kind::Dense, unordered));
            }
        }
        Ok((Kind::Ordered, ordered))
    }
}

/// Codes differences of all elements.
#[derive(Default)]
struct Dense {
    coded: Vec<u8>,
    numbers: numbers::Coder,
    gzip: BlockCoder,
}

impl Dense {
    fn code(&mut self, differences: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in differences.chunks(DENSE_BYTES) {
            let checksum = crc32fast::hash(part);
            let (gzip, coded) = (&mut self.gzip, &mut self.coded);
            let encoded = self.numbers.encode(part, 0, checksum, gzip, coded)?;
            grow::extend(&mut bytes, &self.coded[..encoded.len])?;
        }
        Ok(bytes)
    }
}

#[derive(Default)]
pub struct Sums {
    pub base: Hasher,
    pub result: Hasher,
}

impl Sums {
    /// Reads a range of both; immutable memory is not copied.
    fn read<'a>(
        &mut self,
        new: &'a dyn Source,
        base: &'a dyn Source,
        range: Range<usize>,
        memory: (&'a mut Vec<u8>, &'a mut Vec<u8>),
    ) -> Result<(&'a [u8], &'a [u8])> {
        let new = tile(new, range.clone(), memory.0)?;
        let base = tile(base, range, memory.1)?;
        self.result.update(new);
        self.base.update(base);
        Ok((new, base))
    }

    fn encoded(self, kind: Kind, bytes: Vec<u8>) -> Encoded {
        Encoded {
            kind,
            bytes,
            sums: self,
        }
    }
}

fn tile<'a>(
    source: &'a dyn Source,
    range: Range<usize>,
    memory: &'a mut Vec<u8>,
) -> Result<&'a [u8]> {
    if let Some(bytes) = source.stable() {
        return Ok(&bytes[range]);
    }
    memory.clear();
    read_to(source, range, memory)?;
    Ok(memory)
}

#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    pub elements: Elements,
    pub kind: Kind,
    pub crc: u32,
    pub bytes: &'a [u8],
}

/// Bytes changed at a time, which stay in the L1 cache.
const PART_BYTES: usize = 32 << 10;

/// Decodes blocks, and keeps its memory between them.
#[derive(Default)]
pub struct Decoder {
    changes: Changes,
    /// The next change, and the elements before it.
    next: (usize, usize),
    sparse: Option<sparse::Decoder>,
    dense: Decoders,
    differences: Vec<u8>,
    sorted: Vec<u8>,
}

impl Decoder {
    /// Decodes a block of `len` bytes; returns false if it is malformed.
    pub fn read(&mut self, block: Block<'_>, len: usize) -> Result<bool> {
        self.changes.clear();
        self.differences.clear();
        let is_whole = match block.kind {
            Kind::Equal | Kind::Stored => true,
            Kind::Sparse => {
                let sparse = grow::kept(&mut self.sparse, sparse::Decoder::new)?;
                sparse.read(block.bytes, len / block.elements.width, &mut self.changes)?
            }
            Kind::Dense | Kind::Ordered => self.decode(block.bytes, len)?,
        };
        self.rewind();
        Ok(is_whole)
    }

    /// Fills memory with the result of the block that was read, whose base is at `start`. Returns
    /// whether the base has its checksum.
    ///
    /// With `salvages`, zeros stand for damaged parts of the base.
    pub fn join<'t>(
        &mut self,
        block: Block<'_>,
        base: &dyn Source,
        start: usize,
        memory: &'t mut Uninit,
        salvages: bool,
    ) -> Result<(&'t mut [u8], bool)> {
        let is_ordered = block.kind == Kind::Ordered;
        let (mut sum, mut filling) = (Hasher::new(), Filling::new(memory));
        let mut at = 0;
        while filling.left() > 0 {
            let len = filling.left().min(PART_BYTES);
            let done = filling.fill(len, |part| {
                let part = base.read_at(start + at, part)?;
                sum.update(part);
                if !is_ordered {
                    self.change(block.elements, at, part, Direction::Forth);
                }
                Ok(part)
            });
            match done {
                Err(error) if salvages && !error.is_no_damage() => {
                    filling.fill(len, |part| Ok(zeroed(part)))?;
                }
                done => done?,
            }
            at += len;
        }
        let memory = filling.finish();
        if is_ordered {
            let mut exponents = Vec::new();
            order::add_exponents(block.elements, memory, &mut exponents)?;
            self.unsort(block.elements, &exponents)?;
            self.change_all(block.elements, memory, Direction::Forth);
        }
        Ok((memory, sum.finalize() == block.crc))
    }

    /// Replaces the base of a block by its result, unless its checksum differs: then returns false.
    /// `None` if the block is malformed. [`Decoder::undo`] needs the `exponents`.
    pub fn apply(
        &mut self,
        block: Block<'_>,
        memory: &mut [u8],
        exponents: &mut Vec<u8>,
    ) -> Result<Option<bool>> {
        if block.kind == Kind::Ordered {
            order::add_exponents(block.elements, memory, exponents)?;
        }
        if !self.prepare(block, memory.len(), exponents)? {
            return Ok(None);
        }
        let mut sum = Hasher::new();
        for (number, part) in memory.chunks_mut(PART_BYTES).enumerate() {
            sum.update(part);
            self.change(block.elements, number * PART_BYTES, part, Direction::Forth);
        }
        let is_base = sum.finalize() == block.crc;
        if !is_base {
            self.change_all(block.elements, memory, Direction::Back);
        }
        Ok(Some(is_base))
    }

    /// Restores the base; returns false if the block cannot be decoded.
    pub fn undo(&mut self, block: Block<'_>, memory: &mut [u8], exponents: &[u8]) -> Result<bool> {
        let is_whole = self.prepare(block, memory.len(), exponents)?;
        if is_whole {
            self.change_all(block.elements, memory, Direction::Back);
        }
        Ok(is_whole)
    }

    fn prepare(&mut self, block: Block<'_>, len: usize, exponents: &[u8]) -> Result<bool> {
        let is_whole = self.read(block, len)?;
        if is_whole && block.kind == Kind::Ordered {
            self.unsort(block.elements, exponents)?;
        }
        Ok(is_whole)
    }

    /// Puts differences into the order of elements; `exponents` are of the base's.
    fn unsort(&mut self, elements: Elements, exponents: &[u8]) -> Result<()> {
        mem::swap(&mut self.sorted, &mut self.differences);
        order::unsort(elements, exponents, &mut self.sorted, &mut self.differences)
    }

    /// Changes a whole block; see [`Decoder::change`].
    fn change_all(&mut self, elements: Elements, block: &mut [u8], direction: Direction) {
        self.rewind();
        for (number, part) in block.chunks_mut(PART_BYTES).enumerate() {
            self.change(elements, number * PART_BYTES, part, direction);
        }
    }

    fn rewind(&mut self) {
        let gap = self.changes.gaps().first().copied().unwrap_or(0);
        self.next = (0, gap as usize);
    }

    /// Replaces the base's part at `start` by the result's, or the reverse. Parts come in order.
    /// Stored blocks are unchanged.
    fn change(&mut self, elements: Elements, start: usize, part: &mut [u8], direction: Direction) {
        if self.differences.is_empty() {
            apply(elements, part, &self.changes, &mut self.next, direction);
        } else {
            let differences = &self.differences[start..start + part.len()];
            add(elements, part, differences, direction);
        }
    }

    /// Decodes the differences of a dense block; returns false if they are malformed.
    fn decode(&mut self, mut bytes: &[u8], len: usize) -> Result<bool> {
        self.differences.try_reserve(len)?;
        while self.differences.len() < len {
            let part = (len - self.differences.len()).min(DENSE_BYTES);
            let Some((number_block, rest)) = numbers::split_first(bytes, part) else {
                return Ok(false);
            };
            let differences = &mut self.differences;
            let end = differences.len() + part;
            let whole = numbers::decode(&number_block, &mut self.dense, |piece| {
                differences.extend_from_slice(piece);
            })?;
            let decoded = &differences[end - part..];
            if !whole || decoded.len() != part || crc32fast::hash(decoded) != number_block.checksum
            {
                return Ok(false);
            }
            bytes = rest;
        }
        Ok(bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use proptest::prelude::*;

    use super::*;

    fn encode(elements: Elements, new: &[u8], base: &[u8]) -> Encoded {
        let (new, base) = (new.to_vec(), base.to_vec());
        let mut encoder = Encoder::default();
        encoder.encode(elements, &new, &base, 0, new.len()).unwrap()
    }

    fn check(elements: Elements, new: &[u8], base: &[u8]) -> Encoded {
        let encoded = encode(elements, new, base);
        assert_eq!(encoded.sums.base.clone().finalize(), crc32fast::hash(base));
        assert_eq!(encoded.sums.result.clone().finalize(), crc32fast::hash(new));
        let block = Block {
            elements,
            kind: encoded.kind,
            crc: crc32fast::hash(base),
            bytes: &encoded.bytes,
        };
        let (mut decoder, mut memory) = (Decoder::default(), base.to_vec());
        assert!(decoder.read(block, memory.len()).unwrap());
        if encoded.kind == Kind::Ordered {
            let mut exponents = Vec::new();
            order::add_exponents(elements, base, &mut exponents).unwrap();
            decoder.unsort(elements, &exponents).unwrap();
        }
        let mut change = |memory: &mut [u8], direction| {
            decoder.rewind();
            for (number, part) in memory.chunks_mut(1 << 10).enumerate() {
                decoder.change(elements, number << 10, part, direction);
            }
        };
        if encoded.kind != Kind::Stored {
            change(&mut memory, Direction::Forth);
            assert_eq!(memory, new);
            change(&mut memory, Direction::Back);
            assert_eq!(memory, base);
            check_steps(block, new, base);
        }
        encoded
    }

    fn check_steps(block: Block<'_>, new: &[u8], base: &[u8]) {
        let (mut decoder, mut memory) = (Decoder::default(), base.to_vec());
        for (crc, is_base) in [(!block.crc, false), (block.crc, true)] {
            let (block, mut exponents) = (Block { crc, ..block }, Vec::new());
            let done = decoder.apply(block, &mut memory, &mut exponents);
            assert_eq!(done.unwrap(), Some(is_base));
            assert_eq!(memory, if is_base { new } else { base });
            if is_base {
                assert!(decoder.undo(block, &mut memory, &exponents).unwrap());
                assert_eq!(memory, base);
            }
            let mut joined = vec![MaybeUninit::uninit(); new.len()];
            assert!(decoder.read(block, new.len()).unwrap());
            let joined = decoder.join(block, &base.to_vec(), 0, &mut joined, false);
            assert_eq!(joined.unwrap(), (&mut new.to_vec()[..], is_base));
        }
    }

    fn elements() -> impl Strategy<Value = Elements> {
        let width = prop::sample::select(vec![1_usize, 2, 4, 8]);
        (width, any::<bool>()).prop_map(|(width, are_floats)| Elements { width, are_floats })
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn blocks_lead_forth_and_back(
            elements in elements(),
            base in prop::collection::vec(any::<u64>(), 1..3000),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..500),
            bits in 1..=64_u32,
        ) {
            let mut new = base.clone();
            for (at, value) in &changes {
                let place = at.index(new.len());
                new[place] ^= value & (u64::MAX >> (64 - bits));
            }
            let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
            check(elements, &bytes(&new), &bytes(&base));
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn damaged_blocks_stay_inside(
            elements in elements(),
            kind in prop::sample::select(vec![Kind::Sparse, Kind::Dense, Kind::Ordered]),
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let block = Block { elements, kind, crc: 0, bytes: &bytes };
            let mut memory = vec![7; 4096];
            let mut decoder = Decoder::default();
            if decoder.read(block, memory.len()).unwrap() {
                if kind == Kind::Ordered {
                    decoder.unsort(elements, &vec![7; memory.len() / elements.width]).unwrap();
                }
                decoder.change(elements, 0, &mut memory, Direction::Forth);
            }
        }
    }

    #[test]
    fn the_kind_follows_the_content() {
        let elements = Elements::of("float32", 4);
        let base: Vec<u8> = (1..4000_u16)
            .flat_map(|at| (1.0 / f32::from(at)).to_le_bytes())
            .collect();
        let changed = |each: usize, change: fn(f32) -> f32| -> Vec<u8> {
            let numbers = base
                .as_chunks::<4>()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes));
            let changed = numbers
                .enumerate()
                .map(|(at, value)| if at % each == 0 { change(value) } else { value });
            changed.flat_map(f32::to_le_bytes).collect()
        };
        assert_eq!(check(elements, &base, &base).kind, Kind::Equal);
        let few = check(elements, &changed(50, |value| value * 1.001), &base);
        assert_eq!(few.kind, Kind::Sparse);
        let all = check(elements, &changed(1, |value| value * 1.0001), &base);
        assert!(all.kind == Kind::Ordered && 2 * all.bytes.len() < base.len());
        let integers = check(
            Elements::of("int32", 4),
            &changed(1, |value| value * 1.0001),
            &base,
        );
        assert!(integers.kind == Kind::Dense && all.bytes.len() < integers.bytes.len());
        let noise: Vec<u8> = (0..base.len())
            .map(|at| (((at * at * 7) >> 5) ^ (at * 13)).to_le_bytes()[0])
            .collect();
        assert_eq!(
            check(Elements::of("uint8", 1), &noise, &base).kind,
            Kind::Stored
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn alike_columns_keep_their_order() {
        let elements = Elements::of("bfloat16", 2);
        let (mut new, mut base) = (Vec::new(), Vec::new());
        for at in 0..60_000_u16 {
            let float = 0x3c00 | at.wrapping_mul(40_503) >> 6;
            base.extend(float.to_le_bytes());
            new.extend((float + at % 2).to_le_bytes());
        }
        assert_eq!(check(elements, &new, &base).kind, Kind::Dense);
    }

    #[test]
    fn every_bit_survives() {
        let special = [
            0,
            1 << 31,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0001,
            0xffff_ffff,
            0x7f80_0001_u32,
            1,
        ];
        let bytes =
            |words: Vec<u32>| -> Vec<u8> { words.into_iter().flat_map(u32::to_le_bytes).collect() };
        for base in special {
            let new = bytes(special.iter().copied().cycle().take(64).collect());
            for name in ["float32", "int32", "bool", "complex64"] {
                check(
                    Elements::of(name, if name == "complex64" { 8 } else { 4 }),
                    &new,
                    &bytes(vec![base; 64]),
                );
            }
        }
    }
}
