//! Converts numbers to another dtype, times scales and plus a constant, in one pass.
//!
//! Each step is computed in `f32` and rounded to the nearest, ties to even, as NumPy does.

use std::mem::MaybeUninit;
use std::num::NonZero;

use multiversion::multiversion;
use smallvec::SmallVec;

use super::strides::Rest;
use crate::base::raw::{RawBytes, Uninit};
use crate::{Result, base::grow, base::parallel};

/// Elements of which all forms fit the nearest cache.
const TILE: usize = 1024;

/// Elements of a row that are converted together, and approximately of a piece of work.
const PIECE: usize = 1 << 18;

/// The largest element in bytes.
const MAX_WIDTH: usize = 8;

/// The dtype of the source.
pub enum Source {
    /// Any dtype of one byte, by the values of its 256 elements.
    Byte(Box<[f32; 256]>),
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Source {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "float16" => Some(Self::Float16),
            "bfloat16" => Some(Self::Bfloat16),
            "float32" => Some(Self::Float32),
            "float64" => Some(Self::Float64),
            _ => None,
        }
    }

    fn width(&self) -> usize {
        match self {
            Self::Byte(_) => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }
}

#[derive(Clone, Copy)]
pub enum Target {
    Float16,
    Bfloat16,
    Float32,
}

impl Target {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "float16" => Some(Self::Float16),
            "bfloat16" => Some(Self::Bfloat16),
            "float32" => Some(Self::Float32),
            _ => None,
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Float32 => 4,
        }
    }
}

/// An axis of the box that is converted.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    pub count: usize,
    /// Distance between neighbours in the source, in bytes.
    pub source: usize,
    /// Distance between neighbours in the target, in bytes.
    pub target: usize,
    /// Elements with the same scale.
    pub block: NonZero<usize>,
    /// Elements of the first block before the box.
    pub skipped: usize,
}

impl Axis {
    fn scales(&self) -> Option<usize> {
        let last = self.skipped.checked_add(self.count.checked_sub(1)?)?;
        Some(last / self.block + 1)
    }

    /// Returns this axis and the next inner one as one, if nothing lies between their elements.
    fn joined(&self, inner: &Self) -> Option<Self> {
        let is_dense = |outer: usize, step: usize| inner.count.checked_mul(step) == Some(outer);
        let are_dense = is_dense(self.source, inner.source) && is_dense(self.target, inner.target);
        let count = self.count.checked_mul(inner.count)?;
        let have_one_scale = self.scales() == Some(1) && inner.scales() == Some(1);
        (are_dense && have_one_scale).then_some(Self {
            count,
            source: inner.source,
            target: inner.target,
            block: NonZero::<usize>::MAX,
            skipped: 0,
        })
    }
}

pub struct Pointwise {
    source: Source,
    target: Target,
    /// All axes but the last, whose elements are adjacent, each with the distance of its scales.
    outer: SmallVec<[(Axis, usize); 4]>,
    row: Axis,
    /// A scale for each block, in C order; empty without scales.
    scales: Vec<f32>,
    scale: Option<f32>,
    add: Option<f32>,
    pub source_extent: usize,
    pub target_extent: usize,
}

/// Where a piece of a row begins.
struct Place {
    source: usize,
    target: usize,
    scales: usize,
    column: usize,
    count: usize,
}

impl Pointwise {
    /// `None` if the elements of a row are not adjacent, those of the target are not in C order,
    /// there are none, or their number differs from that of the scales.
    pub fn new(
        (source, target): (Source, Target),
        axes: &[Axis],
        scales: Vec<f32>,
        [scale, add]: [Option<f32>; 2],
    ) -> Option<Self> {
        let (mut source_extent, mut target_extent) = (source.width(), target.width());
        let mut needed = 1_usize;
        let mut joined: SmallVec<[(Axis, usize); 4]> = SmallVec::new();
        let mut row = Axis {
            count: 1,
            source: source_extent,
            target: target_extent,
            block: NonZero::<usize>::MAX,
            skipped: 0,
        };
        let mut is_first = true;
        for axis in axes.iter().rev() {
            let distance = needed;
            needed = needed.checked_mul(axis.scales()?)?;
            if axis.count == 1 {
                continue;
            }
            if axis.target < target_extent {
                return None;
            }
            let last = axis.count - 1;
            source_extent = source_extent.checked_add(last.checked_mul(axis.source)?)?;
            target_extent = target_extent.checked_add(last.checked_mul(axis.target)?)?;
            if is_first {
                if axis.source != source.width() || axis.target != target.width() {
                    return None;
                }
                (row, is_first) = (*axis, false);
                continue;
            }
            let inner = joined.last_mut().map_or(&mut row, |(inner, _)| inner);
            match axis.joined(inner) {
                Some(both) => *inner = both,
                None => joined.push((*axis, distance)),
            }
        }
        (needed == scales.len().max(1)).then_some(Self {
            source,
            target,
            outer: joined,
            row,
            scales,
            scale,
            add,
            source_extent,
            target_extent,
        })
    }

    /// # Panics
    /// If the source or the target is too small.
    pub fn convert(
        &self,
        memory: RawBytes<'_>,
        target: &mut Uninit,
        threads: NonZero<usize>,
        check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let rows: usize = self.outer.iter().map(|(axis, _)| axis.count).product();
        let pieces = rows * self.pieces_of_row();
        let each = (PIECE / self.row.count).max(1);
        let (mut works, mut rest) = (Vec::new(), Rest::new(target));
        for pieces in parallel::blocks(0..pieces, each) {
            let (start, last) = (self.place(pieces.start), self.place(pieces.end - 1));
            let end = last.target + last.count * self.target.width();
            let memory = rest.take(start.target, end - start.target);
            grow::push(&mut works, (pieces, start.target, memory))?;
        }
        let work = |(pieces, start, target): (std::ops::Range<usize>, usize, &mut Uninit)| {
            let mut near = Near {
                source: [MaybeUninit::uninit(); TILE * MAX_WIDTH],
                values: [0.0; TILE],
                target: [0; TILE * MAX_WIDTH],
            };
            for piece in pieces {
                let place = self.place(piece);
                let target = &mut target[place.target - start..];
                self.convert_piece(&place, memory, target, &mut near);
            }
            Ok(())
        };
        parallel::for_each(works, threads, work, check)
    }

    fn pieces_of_row(&self) -> usize {
        self.row.count.div_ceil(PIECE)
    }

    fn place(&self, piece: usize) -> Place {
        let pieces = self.pieces_of_row();
        let column = piece % pieces * PIECE;
        let mut row = piece / pieces;
        let mut place = Place {
            source: column * self.source.width(),
            target: column * self.target.width(),
            scales: 0,
            column,
            count: PIECE.min(self.row.count - column),
        };
        for (axis, distance) in &self.outer {
            let at = row % axis.count;
            row /= axis.count;
            place.source += at * axis.source;
            place.target += at * axis.target;
            place.scales += (axis.skipped + at) / axis.block * distance;
        }
        place
    }

    fn convert_piece(
        &self,
        place: &Place,
        memory: RawBytes<'_>,
        target: &mut Uninit,
        near: &mut Near,
    ) {
        let (from, to) = (self.source.width(), self.target.width());
        let memory = memory.slice(place.source..place.source + place.count * from);
        let scales = self.scales.get(place.scales..).unwrap_or_default();
        let target = &mut target[..place.count * to];
        for (number, target) in target.chunks_mut(TILE * to).enumerate() {
            let (start, count) = (number * TILE, target.len() / to);
            let memory = memory.slice(start * from..(start + count) * from);
            let source = memory.copy_to(&mut near.source[..count * from]);
            let values = &mut near.values[..count];
            let converted = &mut near.target[..count * to];
            convert_tile(
                self,
                source,
                values,
                converted,
                scales,
                place.column + start,
            );
            target.write_copy_of_slice(converted);
        }
    }
}

/// A tile in the nearest cache, in all forms.
struct Near {
    source: [MaybeUninit<u8>; TILE * MAX_WIDTH],
    values: [f32; TILE],
    target: [u8; TILE * MAX_WIDTH],
}

/// Converts elements of a row from a column on; `scales` begin with those of the row.
#[multiversion(targets("x86_64+avx2"))]
fn convert_tile(
    steps: &Pointwise,
    source: &[u8],
    values: &mut [f32],
    target: &mut [u8],
    scales: &[f32],
    column: usize,
) {
    decode(&steps.source, source, values);
    match steps.scales[..] {
        [] => {}
        [scale] => {
            for value in values.iter_mut() {
                *value *= scale;
            }
        }
        _ => {
            let (mut at, mut rest) = (steps.row.skipped + column, &mut *values);
            while !rest.is_empty() {
                let (scale, block) = (scales[at / steps.row.block], steps.row.block.get());
                let count = (block - at % block).min(rest.len());
                let (now, later) = rest.split_at_mut(count);
                for value in now.iter_mut() {
                    *value *= scale;
                }
                (at, rest) = (at + count, later);
            }
        }
    }
    if let Some(scale) = steps.scale {
        for value in values.iter_mut() {
            *value *= scale;
        }
    }
    if let Some(add) = steps.add {
        for value in values.iter_mut() {
            *value += add;
        }
    }
    encode(steps.target, values, target);
}

#[inline(always)] // with the caller's instruction set
#[allow(clippy::cast_possible_truncation)] // rounds
fn decode(source: &Source, bytes: &[u8], values: &mut [f32]) {
    macro_rules! each {
        ($element:ty, $decode:expr) => {{
            let elements = bytes.as_chunks::<{ size_of::<$element>() }>().0;
            for (value, bytes) in values.iter_mut().zip(elements) {
                *value = $decode(<$element>::from_le_bytes(*bytes));
            }
        }};
    }
    match source {
        Source::Byte(table) => {
            for (value, byte) in values.iter_mut().zip(bytes) {
                *value = table[usize::from(*byte)];
            }
        }
        Source::Float16 => each!(u16, from_float16),
        Source::Bfloat16 => each!(u16, |bits| f32::from_bits(u32::from(bits) << 16)),
        Source::Float32 => each!(f32, |value| value),
        Source::Float64 => each!(f64, |value| value as f32),
    }
}

#[inline(always)] // with the caller's instruction set
fn encode(target: Target, values: &[f32], bytes: &mut [u8]) {
    macro_rules! each {
        ($element:ty, $encode:expr) => {{
            let elements = bytes.as_chunks_mut::<{ size_of::<$element>() }>().0;
            for (bytes, value) in elements.iter_mut().zip(values) {
                let element: $element = $encode(*value);
                *bytes = element.to_le_bytes();
            }
        }};
    }
    match target {
        Target::Float16 => each!(u16, to_float16),
        Target::Bfloat16 => each!(u16, to_bfloat16),
        Target::Float32 => each!(f32, |value| value),
    }
}

/// Position of the fraction of a `f32`.
const FRACTION: u32 = 23;

/// Additional fraction bits of a `f32` compared with float16.
const SHIFT: u32 = 13;

/// Difference of the exponents' biases of `f32` and float16.
const BIAS: u32 = 127 - 15;

const INFINITY: u32 = f32::INFINITY.to_bits();

// Conversions have no branches, so that loops of them become vector instructions.
#[inline(always)] // with the caller's instruction set
fn from_float16(bits: u16) -> f32 {
    const EXPONENT: u32 = 0x1f << FRACTION;
    const SMALLEST: u32 = (BIAS + 1) << FRACTION;
    let sign = u32::from(bits & 0x8000) << 16;
    let shifted = u32::from(bits & 0x7fff) << SHIFT;
    let normal = shifted + (BIAS << FRACTION);
    let subnormal = f32::from_bits(shifted + SMALLEST) - f32::from_bits(SMALLEST);
    let magnitude = match shifted & EXPONENT {
        EXPONENT => normal + (BIAS << FRACTION),
        0 => subnormal.to_bits(),
        _ => normal,
    };
    f32::from_bits(sign | magnitude)
}

#[inline(always)] // with the caller's instruction set
#[allow(clippy::cast_possible_truncation)] // the sum of 16 bits
fn to_float16(value: f32) -> u16 {
    /// Adding it leaves the fraction of a subnormal float16 in the lowest bits, rounded.
    const ALIGN: u32 = (BIAS + SHIFT + 1) << FRACTION;
    let bits = value.to_bits();
    let sign = bits & 0x8000_0000;
    let magnitude = bits ^ sign;
    let odd = magnitude >> SHIFT & 1;
    let normal = magnitude
        .wrapping_sub(BIAS << FRACTION)
        .wrapping_add(0xfff + odd)
        >> SHIFT;
    let subnormal = (f32::from_bits(magnitude) + f32::from_bits(ALIGN)).to_bits() - ALIGN;
    let finite = if magnitude < (BIAS + 1) << FRACTION {
        subnormal
    } else {
        normal
    };
    let large = if magnitude > INFINITY { 0x7e00 } else { 0x7c00 };
    let is_large = magnitude >= (BIAS + 31) << FRACTION;
    (sign >> 16 | if is_large { large } else { finite }) as u16
}

#[inline(always)] // with the caller's instruction set
#[allow(clippy::cast_possible_truncation)] // the upper 16 bits
fn to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let nan = bits & 0x8000_0000 | 0x7fc0_0000;
    (if value.is_nan() { nan } else { rounded } >> 16) as u16
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // small numbers
mod tests {
    use super::*;

    /// The value of a finite float16 by its definition.
    fn value_of(bits: u16) -> f32 {
        let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
        let magnitude = match exponent {
            0 => fraction * 2.0_f32.powi(-24),
            _ => (fraction + 1024.0) * 2.0_f32.powi(exponent - 25),
        };
        if bits >> 15 == 1 {
            -magnitude
        } else {
            magnitude
        }
    }

    #[test]
    fn each_float16_has_its_value() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
            assert_eq!(from_float16(bits).to_bits(), value_of(bits).to_bits());
            assert_eq!(to_float16(value_of(bits)), bits);
        }
        for (bits, value) in [(0x7c00, f32::INFINITY), (0xfc00, f32::NEG_INFINITY)] {
            assert_eq!((from_float16(bits), to_float16(value)), (value, bits));
        }
        assert!(from_float16(0x7c01).is_nan() && from_float16(0xfe00).is_nan());
        assert_eq!(
            (to_float16(f32::NAN), to_float16(-f32::NAN)),
            (0x7e00, 0xfe00)
        );
    }

    #[test]
    fn numbers_between_two_are_rounded_to_the_nearest_and_even() {
        for bits in 0..0x7bff_u16 {
            let middle = f32::midpoint(value_of(bits), value_of(bits + 1));
            let even = bits + (bits & 1);
            for (sign, value) in [(0, middle), (0x8000, -middle)] {
                assert_eq!(to_float16(value), sign | even);
            }
            assert_eq!(to_float16(middle.next_down()), bits);
            assert_eq!(to_float16(middle.next_up()), bits + 1);
        }
        for (value, bits) in [
            (65520.0_f32, 0x7c00),
            (65519.996, 0x7bff),
            (65537.0, 0x7c00),
        ] {
            assert_eq!(to_float16(value), bits);
        }
        let upper = |bits: u32| to_bfloat16(f32::from_bits(bits));
        assert_eq!([upper(0x3f80_8000), upper(0x3f81_8000)], [0x3f80, 0x3f82]);
        assert_eq!([upper(0x3f80_8001), upper(0x3f81_7fff)], [0x3f81, 0x3f81]);
        assert_eq!([upper(0x7f7f_ffff), upper(1)], [0x7f80, 0]);
        assert_eq!([upper(0x7f80_0001), upper(0xffff_ffff)], [0x7fc0, 0xffc0]);
    }

    fn axis(count: usize, source: usize, target: usize, block: usize, skipped: usize) -> Axis {
        let block = NonZero::new(block).unwrap();
        Axis {
            count,
            source,
            target,
            block,
            skipped,
        }
    }

    #[allow(unsafe_code)]
    fn bytes_of(steps: &Pointwise, source: &[u8], threads: usize) -> Vec<u8> {
        let mut memory = vec![MaybeUninit::new(0xaa_u8); steps.target_extent];
        let threads = NonZero::new(threads).unwrap();
        let done = steps.convert(source.into(), &mut memory, threads, || Ok(()));
        done.unwrap();
        // SAFETY: all of it was initialized.
        unsafe { memory.assume_init_ref() }.to_vec()
    }

    #[test]
    fn blocks_are_scaled_and_gaps_are_left_alone() {
        // Rows of 5 in memory with 7, of which the target has 6; blocks of 2 × 3 that begin before.
        let table = std::array::from_fn(|byte| byte as f32);
        let axes = [axis(3, 7, 24, 2, 1), axis(5, 1, 4, 3, 2)];
        let scales: Vec<f32> = (1..=6).map(|scale| scale as f32).collect();
        let dtypes = (Source::Byte(Box::new(table)), Target::Float32);
        let given = [Some(0.5), Some(1.0)];
        let steps = Pointwise::new(dtypes, &axes, scales, given).unwrap();
        let source: Vec<u8> = (0..19).collect();
        let bytes = bytes_of(&steps, &source, 2);
        assert_eq!(bytes.len(), 2 * 24 + 5 * 4);
        for row in 0..3_usize {
            for column in 0..5_usize {
                let scale = (1 + row.div_ceil(2) * 3 + column.div_ceil(3)) as f32;
                let expected = (row * 7 + column) as f32 * scale * 0.5 + 1.0;
                let at = row * 24 + column * 4;
                assert_eq!(bytes[at..at + 4], expected.to_le_bytes());
            }
        }
        assert_eq!(bytes[20..24], [0xaa; 4]);
    }

    #[test]
    fn pieces_of_all_rows_are_converted_on_any_number_of_threads() {
        for (rows, columns) in [(3, PIECE + 5), (PIECE / 8, 24)] {
            let source: Vec<u8> = (0..2 * rows * columns).map(|at| (at % 251) as u8).collect();
            // The gap keeps rows from becoming one.
            let axes = [
                axis(rows, 2 * columns, 2 * columns + 2, rows, 0),
                axis(columns, 2, 2, columns, 0),
            ];
            let dtypes = || (Source::Bfloat16, Target::Bfloat16);
            for threads in [1, 3] {
                let steps = Pointwise::new(dtypes(), &axes, vec![], [None; 2]).unwrap();
                let bytes = bytes_of(&steps, &source, threads);
                for (row, expected) in source.chunks(2 * columns).enumerate() {
                    assert_eq!(&bytes[row * (2 * columns + 2)..][..2 * columns], expected);
                }
            }
        }
    }

    #[test]
    fn other_memory_and_scales_are_refused() {
        let new = |axes: &[Axis], scales: usize| {
            let dtypes = (Source::Float32, Target::Float16);
            Pointwise::new(dtypes, axes, vec![1.0; scales], [None; 2]).is_some()
        };
        assert!(new(&[], 0) && new(&[], 1) && new(&[axis(3, 4, 2, 3, 0)], 1));
        assert!(new(&[axis(5, 4, 2, 2, 1)], 3) && !new(&[axis(5, 4, 2, 2, 1)], 2));
        assert!(!new(&[axis(3, 4, 2, 1, 0)], 0), "scales are missing");
        assert!(!new(&[axis(0, 4, 2, 1, 0)], 0), "no elements");
        assert!(!new(&[axis(3, 8, 2, 3, 0)], 0) && !new(&[axis(3, 4, 4, 3, 0)], 0));
        let inner = axis(3, 4, 2, 3, 0);
        assert!(new(&[axis(2, 0, 6, 2, 0), inner], 0));
        assert!(!new(&[axis(2, 12, 4, 2, 0), inner], 0), "rows overlap");
        let most = axis(usize::MAX, usize::MAX, usize::MAX, 1, 0);
        assert!(!new(&[most, inner], 0) && !new(&[axis(2, 12, 6, 1, usize::MAX), inner], 0));
    }
}
