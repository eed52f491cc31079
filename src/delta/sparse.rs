//! Few changes of a block: gaps between them and their zigzag differences, coded by frequency.
//!
//! The numbers of a class (docs/format.md, "Patches") are about equally frequent. So gaps take about
//! their entropy at any rate of changes, with a code that pays for small blocks, too.

use multiversion::multiversion;

use crate::gzip::{BitReader, BitWriter, MAX_BITS, code_bits, code_lengths, codes};
use crate::{Result, grow};

#[derive(Debug, Default)]
pub struct Changes {
    /// Unchanged elements before each.
    pub gaps: Vec<u32>,
    /// Zigzag differences, minus 1.
    pub values: Vec<u64>,
    /// Unchanged elements after the last one.
    pub gap: u32,
}

impl Changes {
    pub fn clear(&mut self) {
        self.gaps.clear();
        self.values.clear();
        self.gap = 0;
    }

    pub fn len(&self) -> usize {
        self.gaps.len()
    }

    pub fn reserve(&mut self, more: usize) -> Result<()> {
        self.gaps.try_reserve(more)?;
        self.values.try_reserve(more)?;
        Ok(())
    }
}

/// The classes of numbers of 64 bits.
const CLASSES: usize = 252;

/// The class of a number, and the number of bits of its rest.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // at most 251
#[allow(clippy::inline_always)] // for the caller's instruction set
fn class(number: u64) -> (u8, u32) {
    if number < 4 {
        return (number as u8, 0);
    }
    let exponent = number.ilog2();
    let below = (number >> (exponent - 2)) as u32 & 3;
    ((4 * (exponent - 1) + below) as u8, exponent - 2)
}

/// The smallest number of a class, and the number of bits of its rest.
fn first_of(class: usize) -> (u64, u32) {
    match u32::try_from(class / 4).expect("a small class") {
        0 => (class as u64, 0),
        exponent => ((4 + class as u64 % 4) << (exponent - 1), exponent - 1),
    }
}

type Lengths = [u8; CLASSES];

type Counts = [u32; CLASSES];

#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
fn count(changes: &Changes, gaps: &mut Counts, values: &mut Counts) {
    for (&gap, &value) in changes.gaps.iter().zip(&changes.values) {
        gaps[usize::from(class(gap.into()).0)] += 1;
        values[usize::from(class(value).0)] += 1;
    }
}

/// Code lengths for numbers of these classes, and the bits that they then take.
fn lengths_of(counts: &Counts) -> (Lengths, u64) {
    let rests = counts.iter().enumerate();
    let mut bits = rests
        .map(|(class, &count)| u64::from(count) * u64::from(first_of(class).1))
        .sum();
    let used = counts.iter().filter(|&&count| count > 0).count();
    let lengths = match used {
        0 | 1 => counts.map(|count| u8::from(count > 0)),
        _ => code_lengths(counts, MAX_BITS),
    };
    if used > 1 {
        bits += code_bits(counts, &lengths);
    }
    (lengths, bits)
}

fn codes_of(lengths: &Lengths) -> Codes {
    let codes = codes(lengths);
    let is_single = is_single(lengths);
    std::array::from_fn(|class| {
        if is_single {
            (0, 0)
        } else {
            (codes[class], lengths[class].into())
        }
    })
}

fn is_single(lengths: &[u8]) -> bool {
    lengths.iter().filter(|&&length| length > 0).count() == 1
}

/// Changes with their codes.
pub struct Coded<'a> {
    changes: &'a Changes,
    gaps: Lengths,
    values: Lengths,
    bits: u64,
}

impl<'a> Coded<'a> {
    /// Codes at least one change.
    pub fn new(changes: &'a Changes) -> Self {
        let (mut gaps, mut values) = ([0; CLASSES], [0; CLASSES]);
        count(changes, &mut gaps, &mut values);
        let ((gaps, gap_bits), (values, value_bits)) = (lengths_of(&gaps), lengths_of(&values));
        Self {
            changes,
            gaps,
            values,
            bits: gap_bits + value_bits,
        }
    }

    pub fn len(&self) -> usize {
        let bytes = usize::try_from(self.bits.div_ceil(8)).unwrap_or(usize::MAX);
        4 + table_bytes(&self.gaps) + table_bytes(&self.values) + bytes
    }

    pub fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        let count = u32::try_from(self.changes.len()).expect("a block is small");
        grow::extend(out, &count.to_le_bytes())?;
        write_table(&self.gaps, out)?;
        write_table(&self.values, out)?;
        let start = out.len();
        let bytes = usize::try_from(self.bits.div_ceil(8)).unwrap_or(usize::MAX);
        // A writer flushes whole words.
        grow::resize(out, start + bytes + size_of::<u64>(), 0)?;
        let mut writer = BitWriter::new(&mut out[start..]);
        let (gaps, values) = (codes_of(&self.gaps), codes_of(&self.values));
        write_bits(self.changes, &gaps, &values, &mut writer);
        assert_eq!(writer.end(), bytes);
        out.truncate(start + bytes);
        Ok(())
    }
}

/// A code, and its number of bits.
type Codes = [(u16, u32); CLASSES];

#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
fn write_bits(changes: &Changes, gaps: &Codes, values: &Codes, writer: &mut BitWriter<'_>) {
    /// Bits that fit beside at most seven unwritten ones.
    const FIT: u32 = 56;
    for (&gap, &value) in changes.gaps.iter().zip(&changes.values) {
        let (gap, gap_bits) = coded(gaps, gap.into());
        writer.put(gap, gap_bits);
        let (class, rest) = class(value);
        let (code, bits) = values[usize::from(class)];
        if gap_bits + bits + rest > FIT {
            writer.flush();
        }
        writer.put(code.into(), bits);
        if bits + rest > FIT {
            writer.flush();
            writer.put(value & ((1 << HALF) - 1), HALF);
            writer.flush();
            writer.put((value >> HALF) & ((1 << (rest - HALF)) - 1), rest - HALF);
        } else {
            writer.put(value & ((1 << rest) - 1), rest);
        }
        writer.flush();
    }
}

/// Bits of a long rest that are written first.
const HALF: u32 = 32;

/// The code of a number with a short rest, the rest above it, and their number of bits.
#[inline(always)]
#[allow(clippy::inline_always)] // for the caller's instruction set
fn coded(codes: &Codes, number: u64) -> (u64, u32) {
    let (class, rest) = class(number);
    let (code, bits) = codes[usize::from(class)];
    (
        u64::from(code) | (number & ((1 << rest) - 1)) << bits,
        bits + rest,
    )
}

fn table_bytes(lengths: &Lengths) -> usize {
    1 + used(lengths).div_ceil(2)
}

fn used(lengths: &Lengths) -> usize {
    lengths
        .iter()
        .rposition(|&length| length > 0)
        .map_or(0, |last| last + 1)
}

fn write_table(lengths: &Lengths, out: &mut Vec<u8>) -> Result<()> {
    let used = used(lengths);
    grow::push(out, u8::try_from(used).expect("fewer than 256"))?;
    let (pairs, last) = lengths[..used].as_chunks::<2>();
    for [low, high] in pairs {
        grow::push(out, low | high << 4)?;
    }
    grow::extend(out, last)
}

/// Indexed by the next `MAX_BITS` bits: the class times 2^16, plus the bits of code and rest times
/// 2^8, plus the bits of the code; `NONE` for no class.
type Table = [u32; 1 << MAX_BITS];

const NONE: u32 = u32::MAX;

fn entry(class: usize, length: u8) -> Option<u32> {
    let (class, code) = (u32::try_from(class).ok()?, u32::from(length));
    Some(class << 16 | (code + first_of(class as usize).1) << 8 | code)
}

/// Decodes changes; keeps its tables between blocks.
pub struct Decoder {
    gaps: Vec<u32>,
    values: Vec<u32>,
}

/// Reads code lengths, and sets the entries of a table; `None` if they do not form a code.
fn read_table<'a>(bytes: &'a [u8], table: &mut [u32]) -> Option<&'a [u8]> {
    let (&used, rest) = bytes.split_first()?;
    let used = usize::from(used);
    let (packed, rest) = rest.split_at_checked(used.div_ceil(2))?;
    let mut lengths = [0; CLASSES];
    for (at, length) in lengths.get_mut(..used)?.iter_mut().enumerate() {
        *length = packed[at / 2] >> (4 * (at % 2)) & 0xf;
    }
    table.fill(NONE);
    if is_single(&lengths) {
        let class = lengths.iter().position(|&length| length > 0)?;
        table.fill(entry(class, 0)?);
        return Some(rest);
    }
    let room = |&length: &u8| match usize::from(length) {
        0 => Some(0),
        length => Some(1_usize << MAX_BITS.checked_sub(length)?),
    };
    let taken: usize = lengths.iter().map(room).sum::<Option<usize>>()?;
    if taken != 1 << MAX_BITS {
        return None; // not complete
    }
    for (class, (code, length)) in codes(&lengths).into_iter().zip(lengths).enumerate() {
        if length > 0 {
            let entry = entry(class, length)?;
            let places = table[code.into()..].iter_mut().step_by(1 << length);
            places.for_each(|place| *place = entry);
        }
    }
    Some(rest)
}

impl Decoder {
    pub fn new() -> Result<Self> {
        Ok(Self {
            gaps: grow::filled(NONE, 1 << MAX_BITS)?,
            values: grow::filled(NONE, 1 << MAX_BITS)?,
        })
    }

    /// Reads the changes of a block of `elements` elements; returns false if they are malformed.
    pub fn read(&mut self, coded: &[u8], elements: usize, changes: &mut Changes) -> Result<bool> {
        changes.clear();
        let Some((count, rest)) = coded.split_first_chunk() else {
            return Ok(false);
        };
        let count = u32::from_le_bytes(*count) as usize;
        if count > elements {
            return Ok(false);
        }
        changes.reserve(count)?;
        Ok(self.fill(rest, count, elements, changes).is_some())
    }

    fn fill(
        &mut self,
        coded: &[u8],
        count: usize,
        elements: usize,
        changes: &mut Changes,
    ) -> Option<()> {
        let rest = read_table(coded, &mut self.gaps)?;
        let rest = read_table(rest, &mut self.values)?;
        let gaps: &Table = self.gaps.first_chunk()?;
        let values: &Table = self.values.first_chunk()?;
        let mut reader = BitReader::new(rest);
        changes.gaps.resize(count, 0);
        changes.values.resize(count, 0);
        let unchanged = elements - count;
        read_numbers(&mut reader, gaps, values, changes, unchanged)?;
        reader.ends().then_some(())
    }
}

/// Reads all numbers, of which gaps are at most `left` together.
#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
fn read_numbers(
    reader: &mut BitReader<'_>,
    gaps: &Table,
    values: &Table,
    changes: &mut Changes,
    left: usize,
) -> Option<()> {
    let firsts: [u64; CLASSES] = std::array::from_fn(|class| first_of(class).0);
    let (mut now, mut left) = (*reader, left as u64);
    for (gap, value) in changes.gaps.iter_mut().zip(&mut changes.values) {
        now.refill();
        let number = take(&mut now, gaps, &firsts)?;
        left = left.checked_sub(number)?;
        *gap = u32::try_from(number).ok()?;
        *value = take(&mut now, values, &firsts)?;
    }
    *reader = now;
    Some(())
}

/// Takes a number from the 56 bits that are ready; a gap before it takes at most 30.
#[inline(always)] // for the caller's instruction set
#[allow(clippy::cast_possible_truncation)] // only the lowest bits count
fn take(reader: &mut BitReader<'_>, table: &Table, firsts: &[u64; CLASSES]) -> Option<u64> {
    /// Bits of code and rest that are ready.
    const READY: u32 = 26;
    let bits = reader.peek();
    let entry = table[bits as usize & ((1 << MAX_BITS) - 1)];
    if entry == NONE {
        return None;
    }
    let (code, all, class) = (entry & 0xff, entry >> 8 & 0xff, entry >> 16);
    let first = firsts[class as usize];
    if all <= READY {
        reader.skip(all as u16);
        return Some(first + ((bits >> code) & ((1 << (all - code)) - 1)));
    }
    reader.skip(code as u16);
    let rest = all - code;
    let low = reader.take(rest.min(HALF) as u16) as u64;
    let high = reader.take(rest.saturating_sub(HALF) as u16) as u64;
    Some(first + (high << HALF | low))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gaps and values of any size, and mostly alike.
    fn changes() -> impl Strategy<Value = Vec<(u32, u64)>> {
        let gap = (0..20_u32, any::<u32>()).prop_map(|(bits, gap)| gap & ((1 << bits) - 1));
        let value = (0..=64_u32, any::<u64>()).prop_map(|(bits, value)| {
            let mask = 1_u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1);
            value & mask
        });
        prop_oneof![
            prop::collection::vec((gap, value), 1..400),
            prop::collection::vec((0..9_u32, 0..2_u64), 1..400),
            prop::collection::vec((Just(7), Just(1)), 1..40),
        ]
    }

    fn coded(pairs: &[(u32, u64)]) -> (Changes, Vec<u8>, usize) {
        let mut changes = Changes::default();
        changes.gaps.extend(pairs.iter().map(|pair| pair.0));
        changes.values.extend(pairs.iter().map(|pair| pair.1));
        let mut out = b"before".to_vec();
        let coded = Coded::new(&changes);
        let len = coded.len();
        coded.write(&mut out).unwrap();
        out.drain(..6);
        assert_eq!(out.len(), len);
        let elements = changes.gaps.iter().map(|gap| *gap as usize + 1).sum();
        (changes, out, elements)
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn changes_are_read_back(pairs in changes(), more in 0..100_usize) {
            let (changes, out, elements) = coded(&pairs);
            let (mut found, mut decoder) = (Changes::default(), Decoder::new().unwrap());
            prop_assert!(decoder.read(&out, elements + more, &mut found).unwrap());
            prop_assert_eq!(&found.gaps, &changes.gaps);
            prop_assert_eq!(&found.values, &changes.values);
            // One element fewer, and one byte more or fewer.
            prop_assert!(!decoder.read(&out, elements - 1, &mut found).unwrap());
            let longer = [&out[..], &[0]].concat();
            prop_assert!(!decoder.read(&longer, elements, &mut found).unwrap());
            prop_assert!(!decoder.read(&out[..out.len() - 1], elements + 9, &mut found).unwrap());
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn damaged_changes_stay_inside(pairs in changes(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let (_, mut out, elements) = coded(&pairs);
            let at = at.index(out.len());
            out[at] ^= flip;
            let mut found = Changes::default();
            if Decoder::new().unwrap().read(&out, elements, &mut found).unwrap() {
                let needed: usize = found.gaps.iter().map(|gap| *gap as usize + 1).sum();
                prop_assert!(needed <= elements);
            }
        }
    }

    #[test]
    fn classes_hold_their_numbers() {
        let near = |power: u32| (1_u64 << power).saturating_sub(3)..=(1_u64 << power) + 3;
        for number in (0..64).flat_map(near).chain(u64::MAX - 3..=u64::MAX) {
            let (class, rest) = class(number);
            let (first, expected) = first_of(class.into());
            assert_eq!(rest, expected);
            assert!(number >= first && number - first < 1 << rest, "{number}");
        }
        assert_eq!(usize::from(class(u64::MAX).0), CLASSES - 1);
    }

    #[test]
    fn few_changes_take_their_entropy() {
        // One in a hundred, at random, and up or down by one.
        let (mut state, mut pairs, mut gap) = (1_u64, Vec::new(), 0);
        for _ in 0..1 << 20 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if state >> 32 < (1 << 32) / 100 {
                pairs.push((std::mem::take(&mut gap), state >> 60 & 1));
            } else {
                gap += 1;
            }
        }
        let (rate, elements) = (0.01_f64, f64::from(1 << 20));
        let positions = -rate * rate.log2() - (1.0 - rate) * (1.0 - rate).log2();
        let bound = elements * (positions + rate) / 8.0;
        let found = f64::from(u32::try_from(coded(&pairs).1.len()).unwrap());
        assert!(
            found < 1.02 * bound,
            "{found} bytes, and {bound} are the entropy"
        );
    }
}
