//! Encodes literals-only blocks, without a search for matches: weights do not repeat.

// Symbols and bit counts are small; casts to bytes keep the lowest byte.
#![allow(clippy::cast_possible_truncation)]

use multiversion::multiversion;

use super::bits::BitWriter;
use super::huffman::{
    END_OF_BLOCK, LITERALS, MAX_HEADER_BYTES, bits, code_lengths, codes, write_header,
};
use crate::{Result, base::grow};

/// Five of the longest codes fit between two refills of 56 bits, and the table fits into the L1
/// cache several times.
pub const MAX_BITS: usize = 11;

pub const STEP: usize = 5;

pub struct Code {
    pub lengths: [u8; LITERALS],
    bits: u64,
}

/// Estimates byte counts from a quarter of the data; `None` if a byte is absent there, or too rare
/// for a code.
pub fn estimate(data: &[u8]) -> Option<[u32; 256]> {
    let counts = count_some::<4>(data);
    counts.iter().all(|&count| count > 0).then_some(counts)
}

/// Estimates byte counts from one part in `N` of the data.
pub fn count_some<const N: usize>(data: &[u8]) -> [u32; 256] {
    const PART: usize = 64;
    let mut tables = Tables::default();
    for (group, parts) in data.chunks(N * PART).enumerate() {
        // At varying positions, because data may be in rows.
        let part = parts.chunks(PART).nth((group + group / N) % N);
        tables.count(part.unwrap_or_default());
    }
    tables.sum().map(|count| N as u32 * count)
}

pub fn count(data: &[u8]) -> [u32; 256] {
    let mut tables = Tables::default();
    tables.count(data);
    tables.sum()
}

/// Four tables: an increment that depends on the previous one is slower.
pub struct Tables([[u32; 256]; 4]);

impl Default for Tables {
    fn default() -> Self {
        Self([[0; 256]; 4])
    }
}

impl Tables {
    #[inline]
    pub fn count(&mut self, data: &[u8]) {
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

    pub fn sum(&self) -> [u32; 256] {
        std::array::from_fn(|byte| self.0.iter().map(|table| table[byte]).sum())
    }
}

impl Code {
    pub fn new(counts: &[u32; 256]) -> Self {
        let mut all = [0; LITERALS];
        all[..256].copy_from_slice(counts);
        all[END_OF_BLOCK] = 1;
        let lengths = code_lengths(&all, MAX_BITS);
        Self {
            bits: bits(&all, &lengths),
            lengths,
        }
    }

    pub fn size(&self) -> usize {
        size(self.bits)
    }

    /// Writes a non-final block that ends at a byte boundary over the start of `out`; returns its
    /// length. Reusing `out` saves filling it.
    ///
    /// # Panics
    /// If the code lacks a byte.
    pub fn encode(&self, data: &[u8], out: &mut Vec<u8>) -> Result<usize> {
        // The smallest code of distances that all readers accept, unused.
        write_block(&self.lengths, &[1, 1], data.len(), out, |codes, writer| {
            encode_literals(data, &entries(codes, &self.lengths), writer);
        })
    }
}

pub fn size(bits: u64) -> usize {
    const HEADER: u64 = 90;
    usize::try_from(bits / 8 + HEADER).unwrap_or(usize::MAX)
}

/// Writes a block with codes of these lengths over the start of `out`; returns its length. `body`
/// writes the symbols, at most `MAX_BITS` bits per byte of data.
pub fn write_block<const N: usize>(
    lengths: &[u8; N],
    distances: &[u8],
    bytes: usize,
    out: &mut Vec<u8>,
    body: impl FnOnce(&[u16; N], &mut BitWriter<'_>),
) -> Result<usize> {
    let room = MAX_HEADER_BYTES + bytes * MAX_BITS / 8 + 32;
    if out.len() < room {
        grow::resize(out, room, 0)?;
    }
    let codes = codes(lengths);
    let mut writer = BitWriter::new(out);
    write_header(lengths, distances, &mut writer);
    body(&codes, &mut writer);
    writer.put(codes[END_OF_BLOCK].into(), lengths[END_OF_BLOCK].into());
    Ok(writer.finish())
}

/// The code of each byte, and from bit 16 on its number of bits.
pub type CodeTable = [u32; 256];

pub fn entries(codes: &[u16], lengths: &[u8]) -> CodeTable {
    std::array::from_fn(|byte| u32::from(codes[byte]) | u32::from(lengths[byte]) << 16)
}

/// Variable shifts take one instruction with BMI2, three without.
#[multiversion(targets("x86_64+bmi1+bmi2"))]
pub fn encode_literals(data: &[u8], entries: &CodeTable, writer: &mut BitWriter<'_>) {
    put_literals(data, entries, writer);
}

/// At most 7 bits stay for the next flush.
#[inline(always)] // once per instruction set
pub fn put_literals(data: &[u8], entries: &CodeTable, writer: &mut BitWriter<'_>) {
    let (steps, rest) = data.as_chunks::<STEP>();
    let code = |entry: u32| (u64::from(entry & 0xffff), entry >> 16);
    for step in steps {
        // Joining pairs first shortens the chain of dependent shifts.
        let entry = |place: usize| entries[usize::from(step[place])];
        let pair = |first: u32, second: u32| {
            let ((first, first_bits), (second, second_bits)) = (code(first), code(second));
            (first | second << first_bits, first_bits + second_bits)
        };
        let (a, a_bits) = pair(entry(0), entry(1));
        let (b, b_bits) = pair(entry(2), entry(3));
        let (last, last_bits) = code(entry(4));
        let five = a | b << a_bits | last << (a_bits + b_bits);
        writer.put(five, a_bits + b_bits + last_bits);
        writer.flush();
    }
    for &byte in rest {
        let (code, bits) = code(entries[usize::from(byte)]);
        writer.put(code, bits);
    }
    writer.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_near_or_none() {
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
            let expected = data.split(|&other| other == byte).count() - 1;
            assert_eq!(counts[usize::from(byte)] as usize, expected);
        }
    }
}
