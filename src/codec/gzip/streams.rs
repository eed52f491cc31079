//! Codes a plane as four streams of one code, a quarter of its bytes each, decoded side by side.
//!
//! Exponents take three bits or less, so one lookup finds several.
//!
//! Each stream is a DEFLATE block of literals whose header is stored once (docs/format.md,
//! "Numbers"). It may end within a byte, so the first byte of each stream repeats its last bits.

// Casts extract the fields of entries.
#![allow(clippy::cast_possible_truncation)]

use multiversion::multiversion;

use super::bits::{BitReader, BitWriter};
use super::huffman::{END_OF_BLOCK, MAX_HEADER_BYTES, codes, write_header};
use super::interleaved::{self, END, Table};
use super::literal::{Code, CodeTable, MAX_BITS, STEP, encode_literals, entries};
use crate::{Result, base::grow};

const STREAMS: usize = 4;

const LENGTHS_BYTES: usize = 4 * STREAMS;

fn quarter(bytes: usize) -> usize {
    bytes.div_ceil(STREAMS)
}

/// The range of bytes with entries in `Pairs`.
const PAIRED: usize = 64;

/// For two bytes, relative to the first one: their codes, from the highest bit down, and in the
/// lowest bits the number of these bits.
type Pairs = [u64; PAIRED * PAIRED];

#[derive(Default)]
pub struct Encoder {
    pairs: Vec<u64>,
}

impl Encoder {
    /// # Panics
    /// If the code lacks a byte.
    pub fn encode(&mut self, plane: &[u8], code: &Code, out: &mut Vec<u8>) -> Result<usize> {
        let room = LENGTHS_BYTES + MAX_HEADER_BYTES + plane.len() * MAX_BITS / 8 + 16 * STREAMS;
        if out.len() < room {
            grow::resize(out, room, 0)?;
        }
        if self.pairs.is_empty() {
            self.pairs = grow::filled(0, PAIRED * PAIRED)?;
        }
        let codes = codes(&code.lengths);
        let table = entries(&codes, &code.lengths);
        let pairs = self.pairs.first_chunk_mut().expect("as many as pairs");
        let first = pair(&table, pairs);
        let (lengths, out) = out.split_at_mut(LENGTHS_BYTES);
        let mut head = BitWriter::new(out);
        // The smallest code of distances that all readers accept, unused.
        write_header(&code.lengths, &[1, 1], &mut head);
        let (mut end, bits, count) = head.pause();
        lengths[..4].copy_from_slice(&(end as u32).to_le_bytes());
        let mut parts = plane.chunks(quarter(plane.len()).max(1));
        for stream in 1..=STREAMS {
            let mut writer = BitWriter::new(&mut out[end..]);
            writer.put(bits, count);
            let part = parts.next().unwrap_or_default();
            let (eights, rest) = match first {
                Some(_) => part.as_chunks::<8>(),
                None => (&[][..], part),
            };
            encode_eights(eights, first.unwrap_or(0), pairs, &mut writer);
            encode_literals(rest, &table, &mut writer);
            let bits = code.lengths[END_OF_BLOCK];
            writer.put(codes[END_OF_BLOCK].into(), bits.into());
            let len = writer.end();
            if let Some(length) = lengths.get_mut(4 * stream..4 * stream + 4) {
                length.copy_from_slice(&(len as u32).to_le_bytes());
            }
            end += len;
        }
        Ok(LENGTHS_BYTES + end)
    }
}

/// Returns the lowest coded byte, unless the coded bytes span too much.
fn pair(table: &CodeTable, pairs: &mut Pairs) -> Option<u8> {
    let first = table.iter().position(|&entry| entry > 0)?;
    let last = table.iter().rposition(|&entry| entry > 0)?;
    let table = &table[first..=last];
    if table.len() > PAIRED {
        return None;
    }
    for (row, &b) in pairs.chunks_mut(PAIRED).zip(table) {
        for (pair, &a) in row.iter_mut().zip(table) {
            let bits = (a >> 16) + (b >> 16);
            let codes = u64::from(a & 0xffff) | u64::from(b & 0xffff) << (a >> 16);
            *pair = codes << (64 - bits.max(1)) | u64::from(bits);
        }
    }
    u8::try_from(first).ok()
}

/// [`encode_literals`] for bytes that have pairs.
#[multiversion(targets("x86_64+bmi1+bmi2"))]
fn encode_eights(part: &[[u8; 8]], first: u8, pairs: &Pairs, writer: &mut BitWriter<'_>) {
    const FIT: u64 = 56;
    let first = u64::from_le_bytes([first; 8]);
    for eight in part {
        // Six bits of each distance, those of two bytes joined.
        let places = u64::from_le_bytes(*eight).wrapping_sub(first);
        let places = places & 0x003f_003f_003f_003f | places >> 2 & 0x0fc0_0fc0_0fc0_0fc0;
        let pair = |place: u32| pairs[(places >> (16 * place)) as usize % (PAIRED * PAIRED)];
        let [a, b, c, d] = [pair(0), pair(1), pair(2), pair(3)];
        let bits = a.wrapping_add(b).wrapping_add(c).wrapping_add(d) & 0xff;
        if bits <= FIT {
            // Each shift moves earlier codes down and drops the number of bits.
            let join = |before: u64, pair: u64| before >> (pair & 0x3f) | pair;
            let joined = join(join(join(a, b), c), d);
            writer.put(joined >> (64 - bits), bits as u32);
            writer.flush();
        } else {
            for pair in [a, b, c, d] {
                let bits = pair & 0x3f;
                writer.put(pair >> (64 - bits), bits as u32);
                writer.flush();
            }
        }
    }
}

/// Indexed by the next `MAX_BITS` bits: their bytes, at most six, lowest first; from bit 48 on the
/// number of bits, from bit 56 on the number of bytes.
type Looks = [u64; 1 << MAX_BITS];

const MOST: usize = 6;

pub struct Decoder {
    table: Vec<Table>,
    looks: Vec<Looks>,
}

impl Decoder {
    pub fn new() -> Result<Self> {
        Ok(Self {
            table: grow::filled([0; 1 << MAX_BITS], 1)?,
            looks: grow::filled([0; 1 << MAX_BITS], 1)?,
        })
    }

    /// Returns `None` unless `plane` is as [`Encoder::encode`] writes it.
    pub fn decode(&mut self, plane: &[u8], out: &mut [u8]) -> Option<()> {
        let (table, looks) = (&mut self.table[0], &mut self.looks[0]);
        let (lengths, mut rest) = plane.split_first_chunk::<LENGTHS_BYTES>()?;
        let lengths = lengths.as_chunks::<4>().0;
        let [head, lengths @ ..] = lengths else {
            return None;
        };
        let head = u32::from_le_bytes(*head) as usize;
        let mut first = BitReader::new(rest);
        let end_bits = interleaved::read_header(&mut first, table)?;
        let (byte, taken) = first.next();
        rest = rest.get(head..)?;
        let mut streams = [rest; STREAMS];
        for (stream, length) in streams.iter_mut().zip(lengths) {
            (*stream, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        }
        streams[STREAMS - 1] = rest;
        let mut readers = streams.map(BitReader::new);
        let begun = readers.each_mut().map(|reader| reader.take(taken as u16));
        if byte != head || begun != [begun[0]; STREAMS] {
            return None;
        }
        look(table, looks);
        let quarter = quarter(out.len()).max(1);
        let mut parts = out.chunks_mut(quarter);
        let mut parts: [&mut [u8]; STREAMS] =
            std::array::from_fn(|_| parts.next().unwrap_or_default());
        let mut done = [0; STREAMS];
        decode_parts(looks, &mut readers, &mut parts, &mut done);
        for stream in 0..STREAMS {
            let (reader, part) = (&mut readers[stream], &mut parts[stream]);
            let mut at = [done[stream]];
            decode_parts(
                looks,
                std::array::from_mut(reader),
                std::array::from_mut(part),
                &mut at,
            );
            if !interleaved::literals(reader, table, &mut part[at[0]..]) {
                return None;
            }
            reader.refill();
            if interleaved::next_entry(reader, table) != END {
                return None;
            }
            reader.skip(end_bits);
            if !reader.ends() {
                return None;
            }
        }
        Some(())
    }
}

fn look(table: &Table, looks: &mut Looks) {
    for (bits, look) in looks.iter_mut().enumerate() {
        let (mut bytes, mut taken, mut count) = (0_u64, 0, 0);
        while count < MOST {
            let entry = table[bits >> taken];
            let length = usize::from(entry & 0xff);
            if taken + length > MAX_BITS {
                break; // or `END`
            }
            bytes |= u64::from(entry >> 8) << (8 * count);
            (taken, count) = (taken + length, count + 1);
        }
        *look = bytes | (taken as u64) << 48 | (count as u64) << 56;
    }
}

/// Decodes parts from their current positions, until a part or stream is near its end.
#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
fn decode_parts<const N: usize>(
    looks: &Looks,
    readers: &mut [BitReader<'_>; N],
    parts: &mut [&mut [u8]; N],
    done: &mut [usize; N],
) {
    let mut now = *readers; // in registers
    let mut at = *done;
    let parts = parts.each_mut().map(|part| &mut **part);
    'all: loop {
        let before = at;
        for lane in 0..N {
            // Entries are written whole.
            if parts[lane].len() < at[lane] + STEP * MOST + 8 || !now[lane].refill_inside() {
                break 'all;
            }
        }
        for _ in 0..STEP {
            for lane in 0..N {
                let look = looks[now[lane].peek() as usize & ((1 << MAX_BITS) - 1)];
                parts[lane][at[lane]..][..8].copy_from_slice(&look.to_le_bytes());
                now[lane].skip((look >> 48) as u16);
                at[lane] += (look >> 56) as usize;
            }
        }
        // No progress means the end symbol.
        if (0..N).any(|lane| at[lane] == before[lane]) {
            break;
        }
    }
    *readers = now;
    *done = at;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::gzip::literal::count;
    use crate::codec::gzip::oracle;

    fn encoded(plane: &[u8]) -> Vec<u8> {
        let mut out = b"from before".to_vec();
        let mut encoder = Encoder::default();
        let len = encoder
            .encode(plane, &Code::new(&count(plane)), &mut out)
            .unwrap();
        out.truncate(len);
        out
    }

    fn decoded(plane: &[u8], count: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; count];
        Decoder::new()
            .unwrap()
            .decode(plane, &mut out)
            .map(|()| out)
    }

    fn planes() -> impl Strategy<Value = Vec<u8>> {
        let part = (0..5_u32, prop::collection::vec(any::<u32>(), 0..2000));
        prop::collection::vec(part, 1..4).prop_map(|parts| {
            let bytes = parts.iter().flat_map(|(rare, part)| {
                let byte = move |number: &u32| {
                    (number.trailing_zeros() << rare) as u8 ^ (number >> 31 << rare) as u8
                };
                part.iter().map(byte)
            });
            std::iter::once(7).chain(bytes).collect()
        })
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn planes_are_read_back_by_others_and_here(plane in planes()) {
            let stored = encoded(&plane);
            prop_assert_eq!(decoded(&stored, plane.len()), Some(plane.clone()));
            let at = |at: usize| u32::from_le_bytes(*stored[at..].first_chunk().unwrap()) as usize;
            let (head, mut rest) = stored[LENGTHS_BYTES..].split_at(at(0));
            let mut inflated = Vec::new();
            for stream in 1..=STREAMS {
                let len = if stream < STREAMS { at(4 * stream) } else { rest.len() };
                let block = [head, &rest[..len]].concat();
                inflated.extend(oracle::inflate_some(&block));
                rest = &rest[len..];
            }
            prop_assert_eq!(inflated, plane);
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn damaged_planes_do_no_harm(plane in planes(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let mut stored = encoded(&plane);
            for count in [0, plane.len() - 1, plane.len() + 1, 2 * plane.len() + 9] {
                prop_assert!(decoded(&stored, count).is_none());
            }
            let at = at.index(stored.len());
            prop_assert!(decoded(&stored[..at], plane.len()).is_none());
            stored[at] ^= flip;
            if let Some(bytes) = decoded(&stored, plane.len()) {
                // The checksum detects another byte.
                prop_assert_eq!(bytes.len(), plane.len());
            }
        }
    }
}
