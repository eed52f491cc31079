//! Elements as integers, and their differences.
//!
//! Floats become integers in the order of their values, so that one unit in the last place is a
//! difference of 1, and NaNs and −0.0 survive (docs/format.md, "Patches").

use std::marker::PhantomData;

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
    /// This element minus a base, zigzag.
    fn minus<const FLOATS: bool>(self, base: Self) -> u64;
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
            fn minus<const FLOATS: bool>(self, base: Self) -> u64 {
                const SHIFT: u32 = <$unsigned>::BITS - 1;
                // Inverts all bits of a negative float, and only the sign of others.
                let ordered = |element: Self| match FLOATS {
                    true => element ^ ((element as $signed >> SHIFT) as Self | 1 << SHIFT),
                    false => element,
                };
                let difference = ordered(self).wrapping_sub(ordered(base));
                (difference << 1 ^ (difference as $signed >> SHIFT) as Self) as u64
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
    changes.reserve(new.len() / elements.width)?;
    for_elements!(elements, collect_of(new, base, changes));
    Ok(())
}

const WORD_BYTES: usize = size_of::<u64>();

type Line = [[u8; WORD_BYTES]; 8];

/// Lines compared at a time, without a branch for each, which would be mispredicted.
const LINES: usize = 64;

/// Searches a block for changes.
struct Search<'a, E, const FLOATS: bool> {
    changes: &'a mut Changes,
    /// Elements before these bytes that count as a gap.
    before: u32,
    /// The number of the element after the last change.
    next: u32,
    elements: PhantomData<E>,
}

#[multiversion(targets("x86_64+avx2+bmi1+bmi2+lzcnt"))]
fn collect_of<E: Element, const FLOATS: bool>(new: &[u8], base: &[u8], changes: &mut Changes) {
    assert_eq!(new.len(), base.len());
    let mut search = Search::<E, FLOATS> {
        before: changes.gap,
        next: 0,
        changes,
        elements: PhantomData,
    };
    let ((words, rest), (base_words, base_rest)) = (new.as_chunks(), base.as_chunks());
    let ((lines, words), (base_lines, base_words)) = (words.as_chunks(), base_words.as_chunks());
    let groups = lines.chunks(LINES).zip(base_lines.chunks(LINES));
    for (number, (lines, base)) in groups.enumerate() {
        search.lines(number * LINES * size_of::<Line>(), lines, base);
    }
    let mut at = size_of_val(lines);
    for (word, base) in words.iter().zip(base_words) {
        search.word(at, *word, *base);
        at += WORD_BYTES;
    }
    let (mut word, mut base) = ([0; WORD_BYTES], [0; WORD_BYTES]);
    word[..rest.len()].copy_from_slice(rest);
    base[..rest.len()].copy_from_slice(base_rest);
    search.word(at, word, base);
    let all = search.before + elements_in::<E>(new.len());
    changes.gap = all - search.next;
}

/// The number of elements in these bytes.
#[allow(clippy::cast_possible_truncation)] // of at most a block
fn elements_in<E: Element>(bytes: usize) -> u32 {
    (bytes / E::WIDTH) as u32
}

#[allow(clippy::inline_always)] // for the caller's instruction set
impl<E: Element, const FLOATS: bool> Search<'_, E, FLOATS> {
    #[inline(always)]
    fn lines(&mut self, at: usize, lines: &[Line], base: &[Line]) {
        let mut differing = 0_u64;
        for (number, (line, base)) in lines.iter().zip(base).enumerate() {
            differing |= u64::from(differ(line, base)) << number;
        }
        while differing != 0 {
            let number = differing.trailing_zeros() as usize;
            differing &= differing - 1;
            let at = at + number * size_of::<Line>();
            self.line(at, &lines[number], &base[number]);
        }
    }

    #[inline(always)]
    fn line(&mut self, at: usize, line: &Line, base: &Line) {
        let mut differing = 0_u8;
        for (number, (word, base)) in line.iter().zip(base).enumerate() {
            differing |= u8::from(word != base) << number;
        }
        while differing != 0 {
            let number = differing.trailing_zeros() as usize;
            differing &= differing - 1;
            self.word(at + number * WORD_BYTES, line[number], base[number]);
        }
    }

    #[inline(always)]
    fn word(&mut self, at: usize, new: [u8; WORD_BYTES], base: [u8; WORD_BYTES]) {
        let (new, base) = (u64::from_le_bytes(new), u64::from_le_bytes(base));
        let bits = 8 * elements_bytes::<E>();
        let first = self.before + elements_in::<E>(at);
        let mut differing = new ^ base;
        while differing != 0 {
            let number = differing.trailing_zeros() / bits;
            let shift = number * bits;
            let (element, from) = (E::cut(new >> shift), E::cut(base >> shift));
            let place = first + number;
            self.changes.gaps.push(place - self.next);
            self.changes.values.push(element.minus::<FLOATS>(from) - 1);
            self.next = place + 1;
            differing &= u64::MAX.unbounded_shl(shift + bits);
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // at most 8
fn elements_bytes<E: Element>() -> u32 {
    E::WIDTH as u32
}

#[inline(always)]
#[allow(clippy::inline_always)] // for the caller's instruction set
fn differ(line: &Line, base: &Line) -> bool {
    let bytes = line.as_flattened().iter().zip(base.as_flattened());
    bytes.fold(0, |all, (new, base)| all | new ^ base) != 0
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
    while at < count && number < changes.values.len() {
        let place = &mut bytes[at * E::WIDTH..][..E::WIDTH];
        let value = changes.values[number].wrapping_add(1);
        E::load(place)
            .moved::<FLOATS>(value, direction)
            .store(place);
        number += 1;
        at += 1 + changes.gaps.get(number).map_or(0, |gap| *gap as usize);
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
        place.copy_from_slice(&difference.to_le_bytes()[..E::WIDTH]);
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
