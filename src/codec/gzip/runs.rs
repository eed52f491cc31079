//! Encodes blocks of literals and runs: masks, sparse arrays, constant rows, indices.
//!
//! A run repeats the previous byte or element, so no match search is needed.

// Symbols and bits are small, and a block has less than 2^32 bytes.
#![allow(clippy::cast_possible_truncation)]

use std::ops::Range;

use multiversion::multiversion;

use super::bits::BitWriter;
use super::huffman::{END_OF_BLOCK, bits, code_lengths};
use super::literal::{self, CodeTable, MAX_BITS, Tables};
use crate::{Result, base::grow};

/// All bytes, the end, and all lengths (RFC 1951, section 3.2.5).
const SYMBOLS: usize = 286;

const MIN_RUN: usize = 3;
const MAX_RUN: usize = 258;

const LENGTHS: [Length; MAX_RUN + 1] = lengths();

#[derive(Clone, Copy)]
struct Length {
    symbol: u16,
    extra_bits: u8,
    extra: u8,
}

const fn lengths() -> [Length; MAX_RUN + 1] {
    let mut all = [Length {
        symbol: 0,
        extra_bits: 0,
        extra: 0,
    }; MAX_RUN + 1];
    let (mut length, mut symbol) = (MIN_RUN, 257);
    while length < MAX_RUN {
        // Eight symbols without extra bits, then four of each number.
        let extra_bits = if symbol < 265 { 0 } else { (symbol - 261) / 4 };
        let mut extra = 0;
        while extra < 1 << extra_bits && length < MAX_RUN {
            all[length] = Length {
                symbol,
                extra_bits: extra_bits as u8,
                extra,
            };
            extra += 1;
            length += 1;
        }
        symbol += 1;
    }
    all[MAX_RUN].symbol = symbol; // has a symbol of its own
    all
}

/// The distance from a run to the bytes that it repeats: one per block, so that its code has one
/// bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    Byte = 1,
    /// Four-byte elements, whose highest bytes seldom change.
    Four = 4,
    Eight = 8,
}

impl Distance {
    /// An unused code follows because readers disagree on codes of one symbol.
    fn code(self) -> &'static [u8] {
        match self {
            Self::Byte => &[1, 1],
            Self::Four => &[0, 0, 0, 1, 1],
            Self::Eight => &[0, 0, 0, 0, 0, 1, 1],
        }
    }

    /// The code, an extra bit that distinguishes 8 from 7, and their number of bits.
    fn bits(self) -> (u32, u32) {
        match self {
            Self::Byte | Self::Four => (0, 1),
            Self::Eight => (0b10, 2),
        }
    }
}

fn pieces(mut run: usize) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        // No rest may be shorter than `MIN_RUN`.
        let piece = match run {
            0..=MAX_RUN => run,
            _ if run < MAX_RUN + MIN_RUN => MAX_RUN - MIN_RUN,
            _ => MAX_RUN,
        };
        run -= piece;
        (piece > 0).then_some(piece)
    })
}

struct Stretch {
    literals: u32,
    run: u32,
}

pub struct RunBlock {
    distance: Distance,
    stretches: Vec<Stretch>,
    pub counts: [u32; 256],
    lengths: [u8; SYMBOLS],
    bits: u64,
}

impl RunBlock {
    /// Finds the runs in non-empty `data`. Reuses the memory of `before`.
    pub fn find(data: &[u8], distance: Distance, before: Option<Self>) -> Result<Self> {
        let mut stretches = before.map(|before| before.stretches).unwrap_or_default();
        stretches.clear();
        let (mut literals, mut in_runs) = (Tables::default(), [0; 256]);
        let mut symbols = [0; SYMBOLS];
        let mut after_symbols = 0;
        let mut end = 0;
        while end < data.len() {
            let run = next_run(data, end, distance as usize);
            let stretch = &data[end..run.start];
            literals.count(stretch);
            let period = data[run.clone()].iter().take(distance as usize);
            for (place, &byte) in period.enumerate() {
                let times = (run.len() - place).div_ceil(distance as usize);
                in_runs[usize::from(byte)] += times as u32;
            }
            for piece in pieces(run.len()) {
                let length = &LENGTHS[piece];
                symbols[usize::from(length.symbol)] += 1;
                after_symbols += u64::from(u32::from(length.extra_bits) + distance.bits().1);
            }
            let stretch = Stretch {
                literals: stretch.len() as u32,
                run: run.len() as u32,
            };
            grow::push(&mut stretches, stretch)?;
            end = run.end;
        }
        let literals = literals.sum();
        symbols[..256].copy_from_slice(&literals);
        symbols[END_OF_BLOCK] = 1;
        let lengths = code_lengths(&symbols, MAX_BITS);
        Ok(Self {
            distance,
            stretches,
            counts: std::array::from_fn(|byte| literals[byte] + in_runs[byte]),
            bits: bits(&symbols, &lengths) + after_symbols,
            lengths,
        })
    }

    pub fn size(&self) -> usize {
        literal::size(self.bits)
    }

    pub fn encode(&self, data: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        let distances = self.distance.code();
        literal::write_block(
            &self.lengths,
            distances,
            data.len(),
            out,
            |codes, writer| {
                let entries = literal::entries(codes, &self.lengths);
                let lengths = self.length_entries(codes);
                encode_stretches(&self.stretches, data, &entries, &lengths, writer);
            },
        )
    }

    fn length_entries(&self, codes: &[u16; SYMBOLS]) -> LengthEntries {
        LENGTHS.map(|length| {
            let symbol = usize::from(length.symbol);
            let (code, code_bits) = (u32::from(codes[symbol]), u32::from(self.lengths[symbol]));
            let length_bits = code_bits + u32::from(length.extra_bits);
            let (distance, distance_bits) = self.distance.bits();
            let bits = code | u32::from(length.extra) << code_bits | distance << length_bits;
            bits | (length_bits + distance_bits) << 24
        })
    }
}

/// The bits of a length and its distance, and from bit 24 on their number.
type LengthEntries = [u32; MAX_RUN + 1];

#[multiversion(targets("x86_64+bmi1+bmi2"))]
fn encode_stretches(
    stretches: &[Stretch],
    mut data: &[u8],
    entries: &CodeTable,
    lengths: &LengthEntries,
    writer: &mut BitWriter<'_>,
) {
    for stretch in stretches {
        let (literals, rest) = data.split_at(stretch.literals as usize);
        literal::put_literals(literals, entries, writer);
        for piece in pieces(stretch.run as usize) {
            let entry = lengths[piece];
            writer.put(u64::from(entry & 0x00ff_ffff), entry >> 24);
            writer.flush();
        }
        data = &rest[stretch.run as usize..];
    }
}

/// The first run of at least `MIN_RUN` bytes, or an empty range at the end.
#[inline]
fn next_run(data: &[u8], from: usize, distance: usize) -> Range<usize> {
    let word = |at: usize| {
        let bytes = data.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map(|bytes| u64::from_le_bytes(*bytes))
    };
    let other = |at: usize| Some(word(at)? ^ word(at - distance)?);
    let is_alike = |&at: &usize| data[at] == data[at - distance];
    let mut start = from.max(distance);
    loop {
        let Some(other) = other(start) else {
            let mut last = start..(data.len() + 1).saturating_sub(MIN_RUN);
            let begins = |&at: &usize| (at..at + MIN_RUN).all(|at| is_alike(&at));
            let Some(first) = last.find(begins) else {
                return data.len()..data.len();
            };
            start = first;
            break;
        };
        let alike = zero_bytes(other);
        let three = alike & alike >> 8 & alike >> 16;
        if three != 0 {
            start += three.trailing_zeros() as usize / 8;
            break;
        }
        start += 6; // of eight bytes, six can be the first of three
    }
    let mut end = start + MIN_RUN;
    while let Some(other) = other(end) {
        if other != 0 {
            return start..end + other.trailing_zeros() as usize / 8;
        }
        end += 8;
    }
    let more = (end..data.len()).take_while(is_alike);
    start..end + more.count()
}

/// The highest bit of each zero byte.
fn zero_bytes(word: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    !(((word & LOW) + LOW) | word | LOW)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::gzip::oracle;

    fn data() -> impl Strategy<Value = Vec<u8>> {
        let stretch = (
            prop_oneof![1..12_usize, 250..270_usize, 500..1100_usize],
            0..4_u8,
        );
        let noise = prop::collection::vec(any::<u8>(), 1..40);
        let part = prop_oneof![
            3 => stretch.prop_map(|(len, byte)| vec![byte; len]),
            1 => noise,
        ];
        prop::collection::vec(part, 1..40).prop_map(|parts| parts.concat())
    }

    const DISTANCES: [Distance; 3] = [Distance::Byte, Distance::Four, Distance::Eight];

    fn runs(data: &[u8], distance: usize) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut len = 0;
        for at in distance..=data.len() {
            if at < data.len() && data[at] == data[at - distance] {
                len += 1;
            } else {
                if len >= MIN_RUN {
                    runs.push(at - len..at);
                }
                len = 0;
            }
        }
        runs
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn blocks_are_read_back_by_others(data in data()) {
            for distance in DISTANCES {
                let block = RunBlock::find(&data, distance, None).unwrap();
                let mut out = b"from before".to_vec();
                let len = block.encode(&data, &mut out).unwrap();
                prop_assert_eq!(oracle::inflate(&out[..len]).unwrap(), &data[..]);
                prop_assert!(len.abs_diff(block.size()) < 120, "{} {}", len, block.size());
                prop_assert_eq!(block.counts, literal::count(&data));
                let another = RunBlock::find(b"another", Distance::Byte, None).unwrap();
                let again = RunBlock::find(&data, distance, Some(another)).unwrap();
                prop_assert_eq!(again.encode(&data, &mut out).unwrap(), len);
            }
        }

        #[test]
        fn all_runs_are_found(data in data()) {
            for distance in DISTANCES.map(|distance| distance as usize) {
                let mut end = 0;
                for run in runs(&data, distance) {
                    prop_assert_eq!(next_run(&data, end, distance), run.clone());
                    end = run.end;
                }
                prop_assert_eq!(next_run(&data, end, distance), data.len()..data.len());
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn no_bit_of_a_run_is_without_meaning() {
        for distance in DISTANCES {
            let period = b"abcdefgh"[..distance as usize].iter().copied().cycle();
            let data: Vec<u8> = period.take(900).collect();
            let mut out = Vec::new();
            let len = RunBlock::find(&data, distance, None)
                .unwrap()
                .encode(&data, &mut out)
                .unwrap();
            let mut inflater = libdeflater::Decompressor::new();
            for bit in 0..8 * (len - 5) {
                let mut damaged = [&out[..len], &[3, 0]].concat();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let mut output = vec![0; data.len()];
                let result = inflater.deflate_decompress(&damaged, &mut output);
                let same = result == Ok(data.len()) && output == data;
                assert!(!same || oracle::inflate(&damaged[..len]).is_ok(), "{bit}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn all_lengths_are_written_as_the_format_has_them() {
        for (length, entry) in LENGTHS.iter().enumerate().skip(MIN_RUN) {
            let symbols = [
                (3, 257),
                (10, 264),
                (11, 265),
                (35, 273),
                (227, 284),
                (258, 285),
            ];
            for (first, symbol) in symbols {
                if length == first {
                    assert_eq!((entry.symbol, entry.extra), (symbol, 0), "{length}");
                }
            }
        }
        for (run, distance) in (1..1200).flat_map(|run| DISTANCES.map(|d| (run, d))) {
            let period = (0..).take(distance as usize).cycle();
            let data: Vec<u8> = period.take(distance as usize + run).collect();
            let data = [&data[..], b"end"].concat();
            let mut out = Vec::new();
            let len = RunBlock::find(&data, distance, None)
                .unwrap()
                .encode(&data, &mut out)
                .unwrap();
            assert_eq!(oracle::inflate(&out[..len]).unwrap(), data, "{run}");
            assert!(len < 60 + run / 20, "{run} {len}");
        }
    }
}
