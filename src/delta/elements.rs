//! Elements as integers, and their differences.
//!
//! Floats become integers in the order of their values, so that one unit in the last place is a
//! difference of 1, and NaNs and −0.0 survive (docs/format.md, "Patches").

use multiversion::multiversion;

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
}

/// From the base to the result, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forth,
    Back,
}

trait Element: Copy + PartialEq {
    const WIDTH: usize;

    fn load(bytes: &[u8]) -> Self;
    /// The lowest element of a word.
    fn cut(word: u64) -> Self;
    fn store(self, bytes: &mut [u8]);
    fn number(self) -> u64;
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
            clippy::cast_lossless,
            clippy::inline_always
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

/// Appends the elements that differ from the base to `changes`.
///
/// # Panics
/// If the lengths differ.
pub fn collect(elements: Elements, new: &[u8], base: &[u8], changes: &mut Changes) -> Result<()> {
    let before = changes.gap;
    let (gaps, values) = changes.room(new.len() / elements.width + STEP)?;
    let mut search = Search {
        gaps,
        values,
        found: 0,
        next: 0,
    };
    let end = for_elements!(elements, collect_of(new, base, before, &mut search));
    let (found, next) = (search.found, search.next);
    changes.take(found);
    changes.gap = end - next;
    Ok(())
}

/// Elements compared at a time: one bit for each makes a word.
const GROUP: usize = 64;

/// Groups compared at a time, without a branch for each, which would be mispredicted.
const GROUPS: usize = 16;

/// Changes written at a time: a loop over all of a group would be mispredicted.
const STEP: usize = 4;

/// Searches a block for changes.
struct Search<'a> {
    /// Room for `STEP` more than there can be changes.
    gaps: &'a mut [u32],
    values: &'a mut [u64],
    found: usize,
    /// The number of the element after the last change.
    next: u32,
}

/// Returns the number of the element after these bytes; `before` is the first one's.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt+popcnt"))]
fn collect_of<E: Element, const FLOATS: bool>(
    new: &[u8],
    base: &[u8],
    before: u32,
    search: &mut Search<'_>,
) -> u32 {
    assert_eq!(new.len(), base.len());
    let group_bytes = GROUP * E::WIDTH;
    let mut first = before;
    let runs = new.chunks(GROUPS * group_bytes);
    for (new, base) in runs.zip(base.chunks(GROUPS * group_bytes)) {
        let (news, bases) = (
            new.chunks_exact(group_bytes),
            base.chunks_exact(group_bytes),
        );
        let (rest, base_rest) = (news.remainder(), bases.remainder());
        let mut differing = 0_u32;
        for (number, (new, base)) in news.zip(bases).enumerate() {
            differing |= u32::from(differ(new, base)) << number;
        }
        while differing != 0 {
            let start = differing.trailing_zeros() as usize * group_bytes;
            differing &= differing - 1;
            let (new, base) = (&new[start..][..group_bytes], &base[start..][..group_bytes]);
            search.group::<E, FLOATS>(first + elements_in::<E>(start), new, base);
        }
        if differ(rest, base_rest) {
            let first = first + elements_in::<E>(new.len() - rest.len());
            let (mut new, mut base) = ([0; GROUP * 8], [0; GROUP * 8]);
            new[..rest.len()].copy_from_slice(rest);
            base[..rest.len()].copy_from_slice(base_rest);
            search.group::<E, FLOATS>(first, &new[..group_bytes], &base[..group_bytes]);
        }
        first += elements_in::<E>(new.len());
    }
    first
}

/// The number of elements in these bytes.
#[allow(clippy::cast_possible_truncation)] // of at most a block
fn elements_in<E: Element>(bytes: usize) -> u32 {
    (bytes / E::WIDTH) as u32
}

#[inline(always)]
#[allow(clippy::inline_always)] // for the caller's instruction set
fn differ(new: &[u8], base: &[u8]) -> bool {
    let bytes = new.iter().zip(base);
    bytes.fold(0, |all, (new, base)| all | new ^ base) != 0
}

#[allow(clippy::inline_always)] // for the caller's instruction set
impl Search<'_> {
    /// Appends the changes of a group that has some.
    #[inline(always)]
    fn group<E: Element, const FLOATS: bool>(&mut self, first: u32, new: &[u8], base: &[u8]) {
        let mut differences = [E::cut(0); GROUP];
        let pairs = new.chunks_exact(E::WIDTH).zip(base.chunks_exact(E::WIDTH));
        for (place, (new, base)) in differences.iter_mut().zip(pairs) {
            *place = E::load(new).minus::<FLOATS>(E::load(base));
        }
        let mut left = bits_of(differences.map(|difference| u8::from(difference != E::cut(0))));
        let (mut at, end) = (self.found, self.found + left.count_ones() as usize);
        let mut next = self.next;
        self.next = first + (u64::BITS - left.leading_zeros());
        while at < end {
            let places = self.gaps[at..][..STEP]
                .iter_mut()
                .zip(&mut self.values[at..][..STEP]);
            for (gap, value) in places {
                let number = left.trailing_zeros() % u64::BITS;
                left &= left.wrapping_sub(1);
                *gap = (first + number).wrapping_sub(next);
                *value = differences[number as usize].number().wrapping_sub(1);
                next = first + number + 1;
            }
            at += STEP;
        }
        self.found = end;
    }
}

/// One bit for each byte, which is 0 or 1.
#[inline(always)]
#[allow(clippy::inline_always)] // for the caller's instruction set
fn bits_of(flags: [u8; GROUP]) -> u64 {
    /// Moves the lowest bit of byte `n` to bit `56 + n`.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let (words, _) = flags.as_chunks();
    let bits = words
        .iter()
        .map(|word| u64::from_le_bytes(*word).wrapping_mul(GATHER) >> 56);
    bits.rev().fold(0, |all, bits| all << 8 | bits)
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
