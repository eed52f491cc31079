//! Writes changes in the shortest codes.

use multiversion::multiversion;

use super::{CLASSES, Changes, HALF, Lengths, class, first_of, is_single};
use crate::codec::gzip::{BitWriter, MAX_BITS, code_bits, code_lengths, codes};
use crate::{Result, base::grow};

type ClassCounts = [u32; CLASSES];

/// Numbers below this one are looked up.
const SMALL: usize = 256;

/// How often numbers occur. Two counts: equal numbers in turn would wait for each other.
#[derive(Clone)]
struct Counts {
    small: [[u32; SMALL]; 2],
    classes: ClassCounts,
}

pub struct Frequencies {
    gaps: Counts,
    values: Counts,
}

impl Default for Frequencies {
    fn default() -> Self {
        let none = Counts {
            small: [[0; SMALL]; 2],
            classes: [0; CLASSES],
        };
        Self {
            gaps: none.clone(),
            values: none,
        }
    }
}

impl Frequencies {
    /// Counts the changes from number `start` on.
    pub fn add(&mut self, changes: &Changes, start: usize) {
        count(self, &changes.gaps()[start..], &changes.values()[start..]);
    }
}

impl Counts {
    fn of_classes(&self) -> ClassCounts {
        let mut counts = self.classes;
        for number in 0..SMALL {
            counts[usize::from(class(number as u64).0)] +=
                self.small[0][number] + self.small[1][number];
        }
        counts
    }
}

#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
fn count(frequencies: &mut Frequencies, gaps: &[u32], values: &[u64]) {
    for (at, (&gap, &value)) in gaps.iter().zip(values).enumerate() {
        count_one(
            gap.into(),
            &mut frequencies.gaps.small[at % 2],
            &mut frequencies.gaps.classes,
        );
        count_one(
            value,
            &mut frequencies.values.small[at % 2],
            &mut frequencies.values.classes,
        );
    }
}

#[inline(always)] // for the caller's instruction set
fn count_one(number: u64, small: &mut [u32; SMALL], classes: &mut ClassCounts) {
    match usize::try_from(number)
        .ok()
        .and_then(|number| small.get_mut(number))
    {
        Some(count) => *count += 1,
        None => classes[usize::from(class(number).0)] += 1,
    }
}

/// Code lengths for numbers of these classes, and the bits that they then take.
fn lengths_of(counts: &ClassCounts) -> (Lengths, u64) {
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

/// Changes with their codes.
pub struct Coded<'a> {
    changes: &'a Changes,
    gaps: Lengths,
    values: Lengths,
    bits: u64,
}

impl<'a> Coded<'a> {
    /// Codes at least one change.
    pub fn new(changes: &'a Changes, frequencies: &Frequencies) -> Self {
        let (gaps, gap_bits) = lengths_of(&frequencies.gaps.of_classes());
        let (values, value_bits) = lengths_of(&frequencies.values.of_classes());
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

/// Codes and rests of small numbers, and their number of bits, at most 16.
type SmallCodes = [(u64, u32); SMALL];

fn small_codes(codes: &Codes) -> SmallCodes {
    std::array::from_fn(|number| coded(codes, number as u64))
}

/// Bits that fit beside at most seven unwritten ones.
const FIT: u32 = 56;

#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
fn write_bits(changes: &Changes, gaps: &Codes, values: &Codes, writer: &mut BitWriter<'_>) {
    let (small_gaps, small_values) = (small_codes(gaps), small_codes(values));
    let small = |gap: u32, value: u64| {
        let (gap, gap_bits) = small_gaps.get(usize::try_from(gap).ok()?)?;
        let (value, value_bits) = small_values.get(usize::try_from(value).ok()?)?;
        Some((gap | value << gap_bits, gap_bits + value_bits))
    };
    // Two at a time: each flush waits for the one before it.
    let (gap_pairs, last_gap) = changes.gaps().as_chunks::<2>();
    let (value_pairs, last_value) = changes.values().as_chunks::<2>();
    for (&[gap, next_gap], &[value, next_value]) in gap_pairs.iter().zip(value_pairs) {
        match (small(gap, value), small(next_gap, next_value)) {
            (Some((change, bits)), Some((next, next_bits))) if bits + next_bits <= FIT => {
                writer.put(change | next << bits, bits + next_bits);
                writer.flush();
            }
            _ => {
                write_change(gap, value, gaps, values, writer);
                write_change(next_gap, next_value, gaps, values, writer);
            }
        }
    }
    for (&gap, &value) in last_gap.iter().zip(last_value) {
        write_change(gap, value, gaps, values, writer);
    }
}

fn write_change(gap: u32, value: u64, gaps: &Codes, values: &Codes, writer: &mut BitWriter<'_>) {
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

/// The code of a number with a short rest, the rest above it, and their number of bits.
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
