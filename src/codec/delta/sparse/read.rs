//! Reads changes by tables.

use multiversion::multiversion;

use super::{CLASSES, Changes, HALF, first_of, is_single};
use crate::codec::gzip::{BitReader, MAX_BITS, fill_table};
use crate::{Result, base::grow};

/// Indexed by the next `MAX_BITS` bits: the class times 2^16, plus the bits of code and rest times
/// 2^8, plus the bits of the code.
type Table = [u32; 1 << MAX_BITS];

fn entry(class: u16, length: u8) -> u32 {
    let code = u32::from(length);
    u32::from(class) << 16 | (code + first_of(class.into()).1) << 8 | code
}

/// Indexed by the next `MAX_BITS` bits: a change if it has no more bits, as the number of its bits,
/// plus the gap times 2^4, plus the value times 2^18; or `LONG`.
type Whole = [u32; 1 << MAX_BITS];

const LONG: u32 = 0xf;

/// Bits of a gap or a value: a rest of 11 bits belongs to a number of 14.
const NUMBER_BITS: u32 = 14;

/// From this many changes on, a `Whole` pays.
const MANY: usize = 1 << MAX_BITS;

/// Decodes changes; keeps its tables between blocks.
pub struct Decoder {
    gaps: Vec<u32>,
    values: Vec<u32>,
    whole: Vec<u32>,
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
    if is_single(&lengths) {
        let class = (0..).zip(lengths).find(|(_, length)| *length > 0)?.0;
        table.fill(entry(class, 0));
    } else {
        fill_table(&lengths, table, entry)?;
    }
    Some(rest)
}

impl Decoder {
    pub fn new() -> Result<Self> {
        Ok(Self {
            gaps: grow::filled(0, 1 << MAX_BITS)?,
            values: grow::filled(0, 1 << MAX_BITS)?,
            whole: grow::filled(LONG, 1 << MAX_BITS)?,
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
        let (gaps, values) = changes.room(count)?;
        let (gaps, values) = (&mut gaps[..count], &mut values[..count]);
        let is_whole = self.fill(rest, elements - count, gaps, values).is_some();
        changes.take(count);
        Ok(is_whole)
    }

    fn fill(
        &mut self,
        coded: &[u8],
        unchanged: usize,
        out_gaps: &mut [u32],
        out_values: &mut [u64],
    ) -> Option<()> {
        let rest = read_table(coded, &mut self.gaps)?;
        let rest = read_table(rest, &mut self.values)?;
        let gaps: &Table = self.gaps.first_chunk()?;
        let values: &Table = self.values.first_chunk()?;
        let whole: &mut Whole = self.whole.first_chunk_mut()?;
        if out_gaps.len() < MANY {
            whole.fill(LONG);
        } else {
            set_whole(whole, gaps, values);
        }
        let mut reader = BitReader::new(rest);
        let tables = Tables(gaps, values, whole);
        read_numbers(&mut reader, &tables, out_gaps, out_values)?;
        let skipped = out_gaps.iter().map(|gap| u64::from(*gap)).sum::<u64>();
        (skipped <= unchanged as u64 && reader.ends()).then_some(())
    }
}

fn set_whole(whole: &mut Whole, gaps: &Table, values: &Table) {
    for (bits, place) in whole.iter_mut().enumerate() {
        let entry = number_in(bits, gaps).and_then(|(gap, gap_bits)| {
            let (value, value_bits) = number_in(bits >> gap_bits, values)?;
            let bits = gap_bits + value_bits;
            (bits as usize <= MAX_BITS).then_some(value << (4 + NUMBER_BITS) | gap << 4 | bits)
        });
        *place = entry.unwrap_or(LONG);
    }
}

/// The number at the start of `MAX_BITS` bits, and its number of bits, unless there are more.
fn number_in(bits: usize, table: &Table) -> Option<(u32, u32)> {
    let entry = table[bits];
    let (code, all, class) = (entry & 0xff, entry >> 8 & 0xff, entry >> 16);
    if all as usize > MAX_BITS {
        return None;
    }
    let rest = (bits >> code) & ((1 << (all - code)) - 1);
    let number = first_of(class as usize).0 + rest as u64;
    Some((u32::try_from(number).ok()?, all))
}

struct Tables<'a>(&'a Table, &'a Table, &'a Whole);

#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
#[allow(clippy::cast_possible_truncation)] // only the lowest bits count
fn read_numbers(
    reader: &mut BitReader<'_>,
    tables: &Tables<'_>,
    out_gaps: &mut [u32],
    out_values: &mut [u64],
) -> Option<()> {
    /// Whole changes in the 56 bits that are ready.
    const FIT: usize = 5;
    let Tables(gaps, values, whole) = tables;
    let firsts: [u64; CLASSES] = std::array::from_fn(|class| first_of(class).0);
    let mut now = *reader;
    let groups = out_gaps.chunks_mut(FIT).zip(out_values.chunks_mut(FIT));
    for (gap_group, value_group) in groups {
        now.refill();
        for (gap, value) in gap_group.iter_mut().zip(value_group) {
            let entry = whole[now.peek() as usize & ((1 << MAX_BITS) - 1)];
            let bits = entry & 0xf;
            if bits == LONG {
                now.refill();
                *gap = u32::try_from(take(&mut now, gaps, &firsts)).ok()?;
                *value = take(&mut now, values, &firsts);
                now.refill();
            } else {
                now.skip(bits as u16);
                *gap = entry >> 4 & ((1 << NUMBER_BITS) - 1);
                *value = (entry >> (4 + NUMBER_BITS)).into();
            }
        }
    }
    *reader = now;
    Some(())
}

/// Takes a number from the 56 bits that are ready; a gap before it takes at most 30.
#[inline(always)] // for the caller's instruction set
#[allow(clippy::cast_possible_truncation)] // only the lowest bits count
fn take(reader: &mut BitReader<'_>, table: &Table, firsts: &[u64; CLASSES]) -> u64 {
    /// Bits of code and rest that are ready.
    const READY: u32 = 26;
    let bits = reader.peek();
    let entry = table[bits as usize & ((1 << MAX_BITS) - 1)];
    let (code, all, class) = (entry & 0xff, entry >> 8 & 0xff, entry >> 16);
    let first = firsts[class as usize];
    if all <= READY {
        reader.skip(all as u16);
        return first + ((bits >> code) & ((1 << (all - code)) - 1));
    }
    reader.skip(code as u16);
    let rest = all - code;
    let low = reader.take(rest.min(HALF) as u16) as u64;
    let high = reader.take(rest.saturating_sub(HALF) as u16) as u64;
    first + (high << HALF | low)
}
