//! DEFLATE blocks of literals alone: the entropy of the bytes, and no search for matches.
//!
//! The weights of a model have no repeats to find, and all that gzip can gain is that
//! some bytes are more frequent than others.

// Symbols, bits and bytes are small, and a byte is what is left of some of them.
#![allow(clippy::cast_possible_truncation)]

use std::slice::ChunksExact;

use multiversion::multiversion;

use super::bits::{BitReader, BitWriter};
use super::huffman::{END_OF_BLOCK, LENGTHS_ORDER, LITERALS, code_lengths, codes, write_header};

/// The longest code that is used. Five of them fit between two refills of 56 bits, and
/// a table for all fits into the first cache several times.
const MAX_BITS: usize = 11;

/// How many literals are coded between refills.
const STEP: usize = 5;

/// The code for a block.
pub struct Code {
    lengths: [u8; LITERALS],
    /// How many bits a block takes without its header, whose bytes occur as often as was told.
    bits: u64,
}

/// About how often each byte occurs, as a quarter of the data tells; `None` if a byte does
/// not occur there, and so would have no code, or one that is not worth its place.
///
/// The bytes of weights are so many that a quarter tells as well as all.
pub fn estimate(data: &[u8]) -> Option<[u32; 256]> {
    const PART: usize = 64;
    let mut tables = Tables::default();
    for (group, parts) in data.chunks(4 * PART).enumerate() {
        // One of four parts, and not always the same, since data may be in rows.
        let part = parts.chunks(PART).nth((group + group / 4) % 4);
        tables.count(part.unwrap_or_default());
    }
    let counts = tables.sum();
    counts
        .iter()
        .all(|&count| count > 0)
        .then(|| counts.map(|count| 4 * count))
}

/// How often each byte occurs.
pub fn count(data: &[u8]) -> [u32; 256] {
    let mut tables = Tables::default();
    tables.count(data);
    tables.sum()
}

/// Four tables, since an increment that depends on the one before takes longer.
struct Tables([[u32; 256]; 4]);

impl Default for Tables {
    fn default() -> Self {
        Self([[0; 256]; 4])
    }
}

impl Tables {
    #[inline]
    fn count(&mut self, data: &[u8]) {
        let mut chunks = data.chunks_exact(8);
        for chunk in chunks.by_ref() {
            for (index, &byte) in chunk.iter().enumerate() {
                self.0[index % 4][usize::from(byte)] += 1;
            }
        }
        for &byte in chunks.remainder() {
            self.0[0][usize::from(byte)] += 1;
        }
    }

    fn sum(&self) -> [u32; 256] {
        std::array::from_fn(|byte| self.0.iter().map(|table| table[byte]).sum())
    }
}

impl Code {
    /// The best code for bytes that occur so often, at least one of which does.
    pub fn new(counts: &[u32; 256]) -> Self {
        let mut all = [0; LITERALS];
        all[..256].copy_from_slice(counts);
        all[END_OF_BLOCK] = 1;
        let lengths = code_lengths(&all, MAX_BITS);
        let pairs = all.iter().zip(&lengths);
        Self {
            bits: pairs
                .map(|(&n, &length)| u64::from(n) * u64::from(length))
                .sum(),
            lengths,
        }
    }

    /// About how many bytes the block will take.
    pub fn size(&self) -> usize {
        const HEADER: u64 = 90;
        usize::try_from(self.bits / 8 + HEADER).unwrap_or(usize::MAX)
    }

    /// Writes the block, which ends at a byte boundary and is not the last, over the start of
    /// `out`, and returns how long it is. What `out` has been used for before saves filling it.
    ///
    /// # Panics
    /// If there is a byte that the code was not made for.
    pub fn encode(&self, data: &[u8], out: &mut Vec<u8>) -> usize {
        let codes = codes(&self.lengths);
        let mut table = [0_u32; 256];
        for (entry, (&code, &length)) in table.iter_mut().zip(codes.iter().zip(&self.lengths)) {
            *entry = u32::from(code) | u32::from(length) << 16;
        }
        let mut header = Vec::new();
        let mut writer = BitWriter::new(&mut header);
        write_header(&self.lengths, &mut writer);
        let state = writer.finish();
        // A word is written at a time, of which only whole bytes count.
        let room = header.len() + data.len() * MAX_BITS / 8 + 32;
        if out.len() < room {
            out.resize(room, 0);
        }
        out[..header.len()].copy_from_slice(&header);
        let steps = data.chunks_exact(STEP);
        let body = &mut out[header.len()..];
        let (written, bits, count) = encode_steps(steps.clone(), &table, state, body);
        let mut end = Vec::new();
        let mut writer = BitWriter::resume(&mut end, bits, count);
        for &byte in steps.remainder() {
            let entry = table[usize::from(byte)];
            writer.put(u64::from(entry & 0xffff), entry >> 16);
        }
        let length = self.lengths[END_OF_BLOCK];
        writer.put(codes[END_OF_BLOCK].into(), length.into());
        // An empty stored block fills the last byte.
        writer.put(0, 3);
        writer.align();
        end.extend_from_slice(&[0, 0, 0xff, 0xff]);
        let end_at = header.len() + written;
        out[end_at..][..end.len()].copy_from_slice(&end);
        end_at + end.len()
    }
}

/// Codes all steps, after so many bits that are left. Returns how many bytes have been
/// written, and what bits are left then.
///
/// Shifts by a variable take one instruction with BMI2, and three without.
#[multiversion(targets("x86_64+bmi1+bmi2"))]
fn encode_steps(
    steps: ChunksExact<'_, u8>,
    table: &[u32; 256],
    (mut bits, mut count): (u64, u32),
    out: &mut [u8],
) -> (usize, u64, u32) {
    let mut position = 0;
    for step in steps {
        // Pairs are joined first, so that fewer shifts wait for each other.
        let entry = |place: usize| table[usize::from(step[place])];
        let pair = |first: u32, second: u32| {
            let code = u64::from(first & 0xffff) | u64::from(second & 0xffff) << (first >> 16);
            (code, (first >> 16) + (second >> 16))
        };
        let (a, a_bits) = pair(entry(0), entry(1));
        let (b, b_bits) = pair(entry(2), entry(3));
        let last = entry(4);
        let four = a | b << a_bits;
        let five = four | u64::from(last & 0xffff) << (a_bits + b_bits);
        bits |= five << count;
        count += a_bits + b_bits + (last >> 16);
        out[position..position + 8].copy_from_slice(&bits.to_le_bytes());
        position += (count / 8) as usize;
        bits >>= count & !7;
        count %= 8;
    }
    (position, bits, count)
}

/// A block that `Code::encode` has written, while it is decoded.
pub struct Decoder<'a> {
    reader: BitReader<'a>,
    /// For the next `MAX_BITS` bits: the literal times 256, its number of bits, and `END` for
    /// no literal.
    table: Box<[u16; 1 << MAX_BITS]>,
}

/// Marks what is no literal in a table.
const END: u16 = 0x80;

/// The number of bits in an entry; a shift takes so many bits of its operand anyway.
const LENGTH: u16 = 0x3f;

impl<'a> Decoder<'a> {
    /// Reads the header of a block, or returns `None` if it is of another form.
    pub fn new(input: &'a [u8]) -> Option<Self> {
        let mut reader = BitReader::new(input);
        if reader.take(3) != 0b100 || reader.take(5) != LITERALS - 257 {
            return None;
        }
        let all = LITERALS + reader.take(5) + 1;
        let written = reader.take(4) + 4;
        let mut run_code = [0_u8; 19];
        for &symbol in &LENGTHS_ORDER[..written] {
            run_code[symbol] = u8::try_from(reader.take(3)).ok()?;
        }
        let mut run_table = [0; 1 << 7];
        if !fill_table(&run_code, &mut run_table) {
            return None;
        }
        let mut lengths = Vec::with_capacity(all);
        while lengths.len() < all {
            reader.refill();
            let entry = run_table[(reader.peek() & 0x7f) as usize];
            reader.skip(u32::from(entry >> 9));
            let (length, times) = match entry & 0x1ff {
                16 => (*lengths.last()?, 3 + reader.take(2)),
                17 => (0, 3 + reader.take(3)),
                18 => (0, 11 + reader.take(7)),
                length => (u8::try_from(length).ok()?, 1),
            };
            lengths.extend(std::iter::repeat_n(length, times));
        }
        let (lengths, [1, 1]) = lengths.split_first_chunk::<LITERALS>()? else {
            return None;
        };
        let mut table = Box::new([0; 1 << MAX_BITS]);
        if !fill_table(lengths, &mut table[..]) {
            return None;
        }
        for entry in table.iter_mut() {
            let (symbol, bits) = (*entry & 0x1ff, *entry >> 9);
            *entry = if usize::from(symbol) == END_OF_BLOCK {
                END | bits
            } else {
                symbol << 8 | bits
            };
        }
        Some(Self { reader, table })
    }

    /// Whether the block ends here, with nothing after it.
    fn ends_here(mut self) -> bool {
        self.reader.refill();
        next_entry(&mut self.reader, &self.table) & END != 0
            && self.reader.take(3) == 0
            && self.reader.rest() == Some(&[0, 0, 0xff, 0xff])
    }
}

/// Takes the next symbol, whose bits must be ready.
#[inline(always)]
#[allow(clippy::inline_always)] // into `literals`
fn next_entry(reader: &mut BitReader<'_>, table: &[u16; 1 << MAX_BITS]) -> u16 {
    let entry = table[reader.peek() as usize & ((1 << MAX_BITS) - 1)];
    reader.skip(u32::from(entry & LENGTH));
    entry
}

/// Decodes all but the end of `N` blocks of equal length, in turns: each symbol has to
/// wait for the one before, and meanwhile those of other blocks are decoded.
///
/// Returns whether all are well so far.
#[inline(always)]
#[allow(clippy::inline_always)] // once for each set of instructions
fn literals<const N: usize>(decoders: [&mut Decoder<'_>; N], outs: [&mut [u8]; N]) -> bool {
    let len = outs[0].len();
    assert!(outs.iter().all(|out| out.len() == len));
    let mut readers: [BitReader<'_>; N] =
        std::array::from_fn(|index| decoders[index].reader.clone());
    let tables: [&[u16; 1 << MAX_BITS]; N] = std::array::from_fn(|index| &*decoders[index].table);
    let mut chunks = outs.map(|out| out.chunks_exact_mut(STEP));
    let mut seen = 0;
    for _ in 0..len / STEP {
        let steps: [&mut [u8]; N] = std::array::from_fn(|index| {
            chunks[index].next().expect("all outputs have equal length")
        });
        for reader in &mut readers {
            reader.refill();
        }
        #[allow(clippy::needless_range_loop)] // one literal of each block, then the next
        for place in 0..STEP {
            for index in 0..N {
                let entry = next_entry(&mut readers[index], tables[index]);
                steps[index][place] = (entry >> 8) as u8;
                seen |= entry;
            }
        }
    }
    for (index, chunks) in chunks.into_iter().enumerate() {
        for place in chunks.into_remainder() {
            readers[index].refill();
            let entry = next_entry(&mut readers[index], tables[index]);
            *place = (entry >> 8) as u8;
            seen |= entry;
        }
    }
    for (decoder, reader) in decoders.into_iter().zip(readers) {
        decoder.reader = reader;
    }
    seen & END == 0
}

#[multiversion(targets("x86_64+bmi1+bmi2"))]
fn four_literals(decoders: [&mut Decoder<'_>; 4], outs: [&mut [u8]; 4]) -> bool {
    literals(decoders, outs)
}

/// Decodes four blocks of equal length. Returns false, with anything in `outs`, if one of
/// them is not as `Code::encode` writes it.
pub fn decode_four(inputs: [&[u8]; 4], mut outs: [&mut [u8]; 4]) -> bool {
    let decoders = inputs.map(Decoder::new);
    let [Some(mut a), Some(mut b), Some(mut c), Some(mut d)] = decoders else {
        return false;
    };
    let well = four_literals(
        [&mut a, &mut b, &mut c, &mut d],
        outs.each_mut().map(|out| &mut **out),
    );
    well && [a, b, c, d].into_iter().all(Decoder::ends_here)
}

/// Decodes one block; see `decode_four`.
pub fn decode_one(input: &[u8], out: &mut [u8]) -> bool {
    Decoder::new(input)
        .is_some_and(|mut decoder| literals([&mut decoder], [out]) && decoder.ends_here())
}

/// Sets for all bits that can come next the symbol, and its number of bits times 512.
/// Returns false if the code is not complete, or has longer codes than the table.
fn fill_table<const N: usize>(lengths: &[u8; N], table: &mut [u16]) -> bool {
    let used = || lengths.iter().filter(|&&length| length > 0);
    if used().any(|&length| 1 << length > table.len())
        || used().map(|&length| table.len() >> length).sum::<usize>() != table.len()
    {
        return false;
    }
    for (symbol, (&code, &length)) in codes(lengths).iter().zip(lengths).enumerate() {
        if length > 0 {
            for entry in table.iter_mut().skip(code.into()).step_by(1 << length) {
                *entry = symbol as u16 | u16::from(length) << 9;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gzip::oracle;

    fn encode(data: &[u8]) -> Vec<u8> {
        let mut out = b"from before".to_vec();
        let len = Code::new(&count(data)).encode(data, &mut out);
        out.truncate(len);
        out
    }

    fn decode(block: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; len];
        decode_one(block, &mut out).then_some(out)
    }

    fn data() -> impl Strategy<Value = Vec<u8>> {
        (1..=256_usize, 1..3000_usize, any::<u64>()).prop_map(|(symbols, len, seed)| {
            let mut state = seed | 1;
            (0..len)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let high = (state >> 33) as usize;
                    // Small bytes more often, so that codes differ in length.
                    (high % symbols * (high / 256 % symbols) / symbols) as u8
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn blocks_are_read_back_by_others_and_here(data in data()) {
            let block = encode(&data);
            prop_assert_eq!(oracle::inflate(&block).unwrap(), &data[..]);
            prop_assert_eq!(decode(&block, data.len()), Some(data.clone()));
            let size = Code::new(&count(&data)).size();
            prop_assert!(block.len().abs_diff(size) < 120, "{} {}", block.len(), size);
        }

        #[test]
        fn four_blocks_are_decoded_in_turns(data in data()) {
            let mut parts = [data.clone(), data.clone(), data.clone(), data];
            parts[1].reverse();
            parts[2].sort_unstable();
            parts[3].fill(7);
            let blocks = parts.each_ref().map(|part| encode(part));
            let mut outs = parts.each_ref().map(|part| vec![0; part.len()]);
            let well = decode_four(
                blocks.each_ref().map(|block| &block[..]),
                outs.each_mut().map(|out| &mut out[..]),
            );
            prop_assert!(well);
            prop_assert_eq!(outs, parts);
        }

        #[test]
        fn damaged_blocks_do_no_harm(data in data(), at in any::<usize>(), flip in 1..=255_u8) {
            let mut block = encode(&data);
            prop_assert_eq!(decode(&block, data.len() + 1), None);
            prop_assert_eq!(decode(&block, data.len() - 1), None);
            prop_assert_eq!(decode(&block[..at % block.len()], data.len()), None);
            let at = at % block.len();
            block[at] ^= flip;
            if let Some(found) = decode(&block, data.len()) {
                // Some other literal: that is for the checksum to find.
                prop_assert_eq!(found.len(), data.len());
            }
        }
    }

    #[test]
    fn what_zlib_refuses_is_refused() {
        let data = b"hello hello, hello hello!".repeat(40);
        let block = encode(&data);
        for bit in 0..8 * block.len() {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            let theirs = oracle::inflate(&block).ok();
            if let Some(ours) = decode(&block, data.len()) {
                assert_eq!(Some(ours), theirs, "bit {bit}");
            }
        }
    }

    #[test]
    fn estimates_are_near_or_none() {
        // Every byte, and some more often than others.
        let data: Vec<u8> = (0..100_000_u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8 & (i / 3) as u8 | (i % 97) as u8)
            .collect();
        let (exact, near) = (count(&data), estimate(&data).unwrap());
        for (exact, near) in exact.iter().zip(near) {
            assert!(exact.abs_diff(near) < exact / 3 + 60, "{exact} {near}");
        }
        let even: Vec<u8> = data.iter().map(|byte| byte & 0xfe).collect();
        assert!(estimate(&even).is_none());
        assert!(estimate(b"").is_none());
    }

    #[test]
    fn counts_are_exact() {
        let data: Vec<u8> = (0..1003_u32).map(|i| (i * i % 251) as u8).collect();
        let counts = count(&data);
        for byte in 0..=255 {
            let expected = data.split(|&found| found == byte).count() - 1;
            assert_eq!(counts[usize::from(byte)] as usize, expected);
        }
    }
}
