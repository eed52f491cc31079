//! Elements as integers, and their differences.
//!
//! Floats become integers in the order of their values, so that one unit in the last place is a
//! difference of 1, and NaNs and −0.0 survive (docs/format.md, "Patches").

use multiversion::multiversion;
use wide::i8x16;

use super::sparse::Changes;
use crate::Result;

/// The comparison of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elements {
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: usize,
    pub are_floats: bool,
}

/// The bit of [`Elements::code`] for floats.
const FLOATS: u8 = 0x80;

impl Elements {
    /// The elements of a dtype; each half of a complex number is one.
    pub fn of(dtype: &str, itemsize: usize) -> Self {
        let is_complex = dtype.starts_with("complex");
        let width = if is_complex { itemsize / 2 } else { itemsize };
        let are_floats = is_complex || dtype.contains("float");
        match width {
            1 | 2 | 4 | 8 => Self { width, are_floats },
            _ => Self {
                width: 1,
                are_floats: false,
            },
        }
    }

    pub fn code(self) -> u8 {
        let width = u8::try_from(self.width).expect("at most 8");
        width | if self.are_floats { FLOATS } else { 0 }
    }

    pub fn read(code: u8) -> Option<Self> {
        let width = usize::from(code & !FLOATS);
        matches!(width, 1 | 2 | 4 | 8).then_some(Self {
            width,
            are_floats: code & FLOATS != 0,
        })
    }

    pub fn has_exponents(self) -> bool {
        self.are_floats && self.width > 1
    }
}

/// From the base to the result, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forth,
    Back,
}

pub trait Element: Copy + PartialEq {
    const WIDTH: usize;

    fn load(bytes: &[u8]) -> Self;
    /// The lowest element of a word.
    fn cut(word: u64) -> Self;
    fn store(self, bytes: &mut [u8]);
    fn number(self) -> u64;
    /// Bits of a float's exponent.
    fn exponent(self) -> u8;
    /// This element minus a base, zigzag.
    fn minus<const FLOATS: bool>(self, base: Self) -> Self;
    /// The element at this zigzag difference from this one.
    fn moved<const FLOATS: bool>(self, zigzag: u64, direction: Direction) -> Self;
}

macro_rules! element {
    ($unsigned:ty, $signed:ty) => {
        // Casts cut integers to the width; loops are inlined with their caller's instruction set.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            clippy::cast_sign_loss,
            clippy::cast_lossless
        )]
        impl Element for $unsigned {
            const WIDTH: usize = size_of::<$unsigned>();

            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                Self::from_le_bytes(*bytes.first_chunk().expect("a whole element"))
            }

            #[inline(always)]
            fn cut(word: u64) -> Self {
                word as Self
            }

            #[inline(always)]
            fn store(self, bytes: &mut [u8]) {
                bytes[..Self::WIDTH].copy_from_slice(&self.to_le_bytes());
            }

            #[inline(always)]
            fn number(self) -> u64 {
                self.into()
            }

            #[inline(always)]
            fn exponent(self) -> u8 {
                const SHIFT: u32 = [0, 7, 23, 52][size_of::<$unsigned>().ilog2() as usize];
                (self >> SHIFT) as u8
            }

            #[inline(always)]
            fn minus<const FLOATS: bool>(self, base: Self) -> Self {
                const SHIFT: u32 = <$unsigned>::BITS - 1;
                // Inverts all bits of a negative float, and only the sign of others.
                let ordered = |element: Self| match FLOATS {
                    true => element ^ ((element as $signed >> SHIFT) as Self | 1 << SHIFT),
                    false => element,
                };
                let difference = ordered(self).wrapping_sub(ordered(base));
                difference << 1 ^ (difference as $signed >> SHIFT) as Self
            }

            #[inline(always)]
            fn moved<const FLOATS: bool>(self, zigzag: u64, direction: Direction) -> Self {
                const SHIFT: u32 = <$unsigned>::BITS - 1;
                let zigzag = zigzag as Self;
                let difference = zigzag >> 1 ^ (zigzag & 1).wrapping_neg();
                let add = |element: Self| match direction {
                    Direction::Forth => element.wrapping_add(difference),
                    Direction::Back => element.wrapping_sub(difference),
                };
                if !FLOATS {
                    return add(self);
                }
                let ordered = add(self ^ ((self as $signed >> SHIFT) as Self | 1 << SHIFT));
                ordered ^ (!((ordered as $signed >> SHIFT) as Self) | 1 << SHIFT)
            }
        }
    };
}
element!(u8, i8);
element!(u16, i16);
element!(u32, i32);
element!(u64, i64);

/// Calls the function compiled for the elements.
macro_rules! for_elements {
    ($elements:expr, $function:ident($($argument:expr),*)) => {
        match ($elements.width, $elements.are_floats) {
            (1, false) => $function::<u8, false>($($argument),*),
            (1, true) => $function::<u8, true>($($argument),*),
            (2, false) => $function::<u16, false>($($argument),*),
            (2, true) => $function::<u16, true>($($argument),*),
            (4, false) => $function::<u32, false>($($argument),*),
            (4, true) => $function::<u32, true>($($argument),*),
            (_, false) => $function::<u64, false>($($argument),*),
            (_, true) => $function::<u64, true>($($argument),*),
        }
    };
}

pub(super) use for_elements;

/// Appends the elements that differ from the base to `changes`.
///
/// # Panics
/// If the lengths differ.
pub fn collect(elements: Elements, new: &[u8], base: &[u8], changes: &mut Changes) -> Result<()> {
    let before = changes.gap;
    let (gaps, values) = changes.room(new.len() / elements.width + LANES)?;
    let (count, after) = for_elements!(elements, collect_of(new, base, before, gaps, values));
    changes.take(count);
    changes.gap = after;
    Ok(())
}

/// Elements compared at a time: one bit for each makes a word.
const GROUP: usize = 64;

/// Groups compared at a time, without a branch for each, which would be mispredicted.
const GROUPS: usize = 16;

/// Changes written at a time: a loop over all of a group would be mispredicted.
const STEP: usize = 4;

/// Differences at a time, in vectors.
const LANES: usize = 16;

/// Writes gaps and values, which have room for `LANES` more than there can be changes. Returns the
/// number of changes, and of the elements after the last one; `before` elements precede the first.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn collect_of<E: Element, const FLOATS: bool>(
    new: &[u8],
    base: &[u8],
    before: u32,
    gaps: &mut [u32],
    values: &mut [u64],
) -> (usize, u32) {
    assert_eq!(new.len(), base.len());
    let count = places_of::<E>(new, base, gaps);
    gaps[count..][..LANES].fill(0);
    let mut next = before.wrapping_neg();
    let end = gaps[..count].last().map_or(next, |last| last + 1);
    let element = |bytes: &[u8], place: u32| E::load(&bytes[place as usize * E::WIDTH..]);
    for at in (0..count).step_by(LANES) {
        let mut pairs = [(E::cut(0), E::cut(0)); LANES];
        for (pair, gap) in pairs.iter_mut().zip(&mut gaps[at..][..LANES]) {
            let place = *gap;
            *pair = (element(new, place), element(base, place));
            *gap = place.wrapping_sub(next);
            next = place + 1;
        }
        for (value, (new, base)) in values[at..][..LANES].iter_mut().zip(pairs) {
            *value = new.minus::<FLOATS>(base).number().wrapping_sub(1);
        }
    }
    (count, elements_in::<E>(new.len()).wrapping_sub(end))
}

/// Writes the numbers of elements that differ; returns how many.
#[inline(always)] // for the caller's instruction set
fn places_of<E: Element>(new: &[u8], base: &[u8], places: &mut [u32]) -> usize {
    let (run_bytes, group_bytes) = (GROUPS * GROUP * E::WIDTH, GROUP * E::WIDTH);
    let (mut count, mut first) = (0, 0);
    for (new, base) in new.chunks(run_bytes).zip(base.chunks(run_bytes)) {
        let (mut groups, mut differing) = ([0; GROUPS], 0_u32);
        let pairs = new.chunks(group_bytes).zip(base.chunks(group_bytes));
        for (number, (group, (new, base))) in groups.iter_mut().zip(pairs).enumerate() {
            *group = if new.len() == group_bytes {
                differing_in::<E>(&new[..group_bytes], &base[..group_bytes])
            } else {
                differing_in_rest::<E>(new, base)
            };
            differing |= u32::from(*group != 0) << number;
        }
        while differing != 0 {
            let number = differing.trailing_zeros();
            differing &= differing - 1;
            let (first, mut left) = (first + u64::BITS * number, groups[number as usize]);
            let (mut at, end) = (count, count + left.count_ones() as usize);
            while at < end {
                for place in &mut places[at..][..STEP] {
                    *place = first + left.trailing_zeros() % u64::BITS;
                    left &= left.wrapping_sub(1);
                }
                at += STEP;
            }
            count = end;
        }
        first += elements_in::<E>(new.len());
    }
    count
}

#[allow(clippy::cast_possible_truncation)] // of at most a block
fn elements_in<E: Element>(bytes: usize) -> u32 {
    (bytes / E::WIDTH) as u32
}

/// One bit for each element of a group that differs.
#[inline(always)] // for the caller's instruction set
fn differing_in<E: Element>(new: &[u8], base: &[u8]) -> u64 {
    let mut flags = [0; GROUP];
    let pairs = new.chunks_exact(E::WIDTH).zip(base.chunks_exact(E::WIDTH));
    for (flag, (new, base)) in flags.iter_mut().zip(pairs) {
        *flag = -i8::from(E::load(new) != E::load(base));
    }
    let (quarters, _) = flags.as_chunks();
    let bits = quarters
        .iter()
        .map(|quarter| i8x16::new(*quarter).to_bitmask());
    bits.rev().fold(0, |all, bits| all << 16 | u64::from(bits))
}

fn differing_in_rest<E: Element>(new: &[u8], base: &[u8]) -> u64 {
    let (mut whole, mut base_whole) = ([0; GROUP * 8], [0; GROUP * 8]);
    whole[..new.len()].copy_from_slice(new);
    base_whole[..base.len()].copy_from_slice(base);
    let group_bytes = GROUP * E::WIDTH;
    differing_in::<E>(&whole[..group_bytes], &base_whole[..group_bytes])
}

/// Changes elements of a block's next bytes. `next` has the number of the next change, and the
/// elements before it.
pub fn apply(
    elements: Elements,
    bytes: &mut [u8],
    changes: &Changes,
    next: &mut (usize, usize),
    direction: Direction,
) {
    for_elements!(elements, apply_of(bytes, changes, next, direction));
}

fn apply_of<E: Element, const FLOATS: bool>(
    bytes: &mut [u8],
    changes: &Changes,
    next: &mut (usize, usize),
    direction: Direction,
) {
    let count = bytes.len() / E::WIDTH;
    let (mut number, mut at) = *next;
    let (gaps, values) = (changes.gaps(), changes.values());
    while at < count && number < values.len() {
        let place = &mut bytes[at * E::WIDTH..][..E::WIDTH];
        let value = values[number].wrapping_add(1);
        E::load(place)
            .moved::<FLOATS>(value, direction)
            .store(place);
        number += 1;
        at += 1 + gaps.get(number).map_or(0, |gap| *gap as usize);
    }
    *next = (number, at.saturating_sub(count));
}

/// Replaces elements by their zigzag differences from a base.
///
/// # Panics
/// If the lengths differ.
pub fn subtract(elements: Elements, new: &mut [u8], base: &[u8]) {
    for_elements!(elements, subtract_of(new, base));
}

#[multiversion(targets("x86_64+avx2"))]
fn subtract_of<E: Element, const FLOATS: bool>(new: &mut [u8], base: &[u8]) {
    assert_eq!(new.len(), base.len());
    let pairs = new
        .chunks_exact_mut(E::WIDTH)
        .zip(base.chunks_exact(E::WIDTH));
    for (place, base) in pairs {
        let difference = E::load(place).minus::<FLOATS>(E::load(base));
        difference.store(place);
    }
}

/// Moves elements by zigzag differences.
///
/// # Panics
/// If the lengths differ.
pub fn add(elements: Elements, block: &mut [u8], differences: &[u8], direction: Direction) {
    for_elements!(elements, add_of(block, differences, direction));
}

#[multiversion(targets("x86_64+avx2"))]
fn add_of<E: Element, const FLOATS: bool>(
    block: &mut [u8],
    differences: &[u8],
    direction: Direction,
) {
    assert_eq!(block.len(), differences.len());
    let pairs = block
        .chunks_exact_mut(E::WIDTH)
        .zip(differences.chunks_exact(E::WIDTH));
    for (place, difference) in pairs {
        let mut zigzag = [0; 8];
        zigzag[..E::WIDTH].copy_from_slice(difference);
        let zigzag = u64::from_le_bytes(zigzag);
        E::load(place)
            .moved::<FLOATS>(zigzag, direction)
            .store(place);
    }
}
