//! Headers of values.
//!
//! flax writes the smallest form of each; [`crate::format::array`] uses wider ones to align payloads.

use crate::base::raw::{Buffer, Tail};
use crate::{Error, Result};

pub trait Out {
    fn extend_from_slice(&mut self, bytes: &[u8]);
}

impl Out for Vec<u8> {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Out for Buffer {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Out for Tail<'_> {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.append(bytes.into());
    }
}

/// The header of one value, without its bytes or elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Head {
    Nil,
    Bool(bool),
    /// Negative, or in a signed format.
    Int(i64),
    Uint(u64),
    /// A float; 32 bits are only read.
    Float(f64),
    Str(u32),
    Bin(u32),
    Array(u32),
    Map(u32),
    /// The type, and the bytes of the body.
    Ext(i8, u32),
}

/// A first byte, then a big-endian field.
#[derive(Clone, Copy)]
struct Form {
    /// Without a field, the value is added to it.
    first: u8,
    field: u8,
    max: u64,
}

const fn fix(first: u8, max: u64) -> Form {
    Form {
        first,
        field: 0,
        max,
    }
}

const fn field(first: u8, field: u8) -> Form {
    Form {
        first,
        field,
        max: u64::MAX >> (64 - 8 * field as u32),
    }
}

// The forms of each family, from narrow to wide (the format's specification, "Formats"). `INT`
// holds two's complement, so its limits are elsewhere.
const STR: &[Form] = &[
    fix(0xa0, 31),
    field(0xd9, 1),
    field(0xda, 2),
    field(0xdb, 4),
];
const BIN: &[Form] = &[field(0xc4, 1), field(0xc5, 2), field(0xc6, 4)];
const ARRAY: &[Form] = &[fix(0x90, 15), field(0xdc, 2), field(0xdd, 4)];
const MAP: &[Form] = &[fix(0x80, 15), field(0xde, 2), field(0xdf, 4)];
const UINT: &[Form] = &[
    fix(0x00, 0x7f),
    field(0xcc, 1),
    field(0xcd, 2),
    field(0xce, 4),
    field(0xcf, 8),
];
const INT: &[Form] = &[
    fix(0xe0, 31),
    field(0xd0, 1),
    field(0xd1, 2),
    field(0xd2, 4),
    field(0xd3, 8),
];
const FLOAT: &[Form] = &[field(0xcb, 8)];
const NIL: &[Form] = &[fix(0xc0, 0)];
const BOOL: &[Form] = &[fix(0xc2, 1)];
const EXT: &[Form] = &[field(0xc7, 1), field(0xc8, 2), field(0xc9, 4)];
/// Extensions of 1, 2, 4, 8 and 16 bytes have a form without a field, before the others.
const FIXED_EXT: &[&[Form]] = &[
    &[fix(0xd4, u64::MAX), EXT[0], EXT[1], EXT[2]],
    &[fix(0xd5, u64::MAX), EXT[0], EXT[1], EXT[2]],
    &[fix(0xd6, u64::MAX), EXT[0], EXT[1], EXT[2]],
    &[fix(0xd7, u64::MAX), EXT[0], EXT[1], EXT[2]],
    &[fix(0xd8, u64::MAX), EXT[0], EXT[1], EXT[2]],
];

impl Head {
    pub const MAX_BYTES: usize = 9;

    #[inline(always)] // here and below: callers that know the kind of header need little of this
    fn forms(self) -> (&'static [Form], u64) {
        match self {
            Self::Nil => (NIL, 0),
            Self::Bool(value) => (BOOL, value.into()),
            Self::Int(value) if value >= 0 => (UINT, value.cast_unsigned()),
            Self::Int(value) => {
                let limits = [-32, i8::MIN.into(), i16::MIN.into(), i32::MIN.into()];
                let narrow = limits.iter().take_while(|&&limit| value < limit).count();
                let form = &INT[narrow..=narrow];
                let field = value.cast_unsigned();
                // Without a field, the five lowest bits are added to the first byte.
                (form, if narrow == 0 { field & 0x1f } else { field })
            }
            Self::Uint(value) => (UINT, value),
            Self::Float(value) => (FLOAT, value.to_bits()),
            Self::Str(len) => (STR, len.into()),
            Self::Bin(len) => (BIN, len.into()),
            Self::Array(len) => (ARRAY, len.into()),
            Self::Map(len) => (MAP, len.into()),
            Self::Ext(_, len @ (1 | 2 | 4 | 8 | 16)) => {
                (FIXED_EXT[len.trailing_zeros() as usize], len.into())
            }
            Self::Ext(_, len) => (EXT, len.into()),
        }
    }

    #[inline(always)]
    fn fixed_bytes(self) -> usize {
        match self {
            Self::Ext(..) => 2, // the type is after the length
            _ => 1,
        }
    }

    /// In bytes, ascending.
    #[inline(always)]
    pub fn widths(self) -> impl Iterator<Item = usize> {
        let (forms, value) = self.forms();
        let fits = move |form: &&Form| value <= form.max || forms.len() == 1;
        let fixed = self.fixed_bytes();
        let width = move |form: &Form| form.field as usize + fixed;
        forms.iter().filter(fits).map(width)
    }

    /// The smallest width, which flax writes.
    #[inline(always)]
    pub fn width(self) -> usize {
        self.widths().next().unwrap_or(Self::MAX_BYTES)
    }

    #[inline(always)]
    pub fn write(self, out: &mut impl Out) {
        let (forms, value) = self.forms();
        for form in forms {
            if value <= form.max || forms.len() == 1 {
                return self.write_form(*form, value, out);
            }
        }
    }

    /// `width` must be one of [`Head::widths`].
    #[inline]
    pub fn write_wide(self, width: usize, out: &mut impl Out) {
        debug_assert!(self.widths().any(|w| w == width), "{self:?} at {width}");
        let (forms, value) = self.forms();
        let field = width - self.fixed_bytes();
        for form in forms {
            if form.field as usize == field {
                return self.write_form(*form, value, out);
            }
        }
    }

    // Copies of a constant length are a store or two.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // a value without a field is small
    fn write_form(self, form: Form, value: u64, out: &mut impl Out) {
        let first = form.first;
        let be = value.to_be_bytes();
        if let Self::Ext(code, _) = self {
            let code = code.cast_unsigned();
            return match form.field {
                0 => out.extend_from_slice(&[first, code]),
                1 => out.extend_from_slice(&[first, be[7], code]),
                2 => out.extend_from_slice(&[first, be[6], be[7], code]),
                _ => out.extend_from_slice(&[first, be[4], be[5], be[6], be[7], code]),
            };
        }
        match form.field {
            0 => out.extend_from_slice(&[first + value as u8]),
            1 => out.extend_from_slice(&[first, be[7]]),
            2 => out.extend_from_slice(&[first, be[6], be[7]]),
            4 => out.extend_from_slice(&[first, be[4], be[5], be[6], be[7]]),
            _ => out.extend_from_slice(&[
                first, be[0], be[1], be[2], be[3], be[4], be[5], be[6], be[7],
            ]),
        }
    }

    /// Reads a header and its width from the first `available` of `bytes`. Does not check lengths.
    ///
    /// `Err` is the width if more bytes are needed, or 0 for a byte that starts no value.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // the field has four bytes
    pub fn read(bytes: &[u8; 16], available: usize) -> std::result::Result<(Self, usize), usize> {
        let first = bytes[0];
        let wide = u64::from_be_bytes(*bytes[1..].first_chunk().expect("16 bytes"));
        let signed = wide.cast_signed();
        let [one, two, four] = [56, 48, 32].map(|unused| (wide >> unused) as u32);
        let (head, width) = match first {
            0x00..=0x7f => (Self::Uint(first.into()), 1),
            0x80..=0x8f => (Self::Map((first & 0x0f).into()), 1),
            0x90..=0x9f => (Self::Array((first & 0x0f).into()), 1),
            0xa0..=0xbf => (Self::Str((first & 0x1f).into()), 1),
            0xc0 => (Self::Nil, 1),
            0xc1 => return Err(usize::from(available == 0)), // past the end, a byte is missing
            0xc2 | 0xc3 => (Self::Bool(first == 0xc3), 1),
            0xc4 => (Self::Bin(one), 2),
            0xc5 => (Self::Bin(two), 3),
            0xc6 => (Self::Bin(four), 5),
            0xc7 => (Self::Ext(bytes[2].cast_signed(), one), 3),
            0xc8 => (Self::Ext(bytes[3].cast_signed(), two), 4),
            0xc9 => (Self::Ext(bytes[5].cast_signed(), four), 6),
            0xca => (Self::Float(f32::from_bits(four).into()), 5),
            0xcb => (Self::Float(f64::from_bits(wide)), 9),
            0xcc => (Self::Uint(one.into()), 2),
            0xcd => (Self::Uint(two.into()), 3),
            0xce => (Self::Uint(four.into()), 5),
            0xcf => (Self::Uint(wide), 9),
            0xd0 => (Self::Int(signed >> 56), 2),
            0xd1 => (Self::Int(signed >> 48), 3),
            0xd2 => (Self::Int(signed >> 32), 5),
            0xd3 => (Self::Int(signed), 9),
            0xd4..=0xd8 => (Self::Ext(bytes[1].cast_signed(), 1 << (first - 0xd4)), 2),
            0xd9 => (Self::Str(one), 2),
            0xda => (Self::Str(two), 3),
            0xdb => (Self::Str(four), 5),
            0xdc => (Self::Array(two), 3),
            0xdd => (Self::Array(four), 5),
            0xde => (Self::Map(two), 3),
            0xdf => (Self::Map(four), 5),
            0xe0..=0xff => (Self::Int(first.cast_signed().into()), 1),
        };
        if available < width {
            return Err(width);
        }
        Ok((head, width))
    }
}

/// `kind` is for the error.
#[inline]
pub fn length(kind: &'static str, len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| Error::TooLarge { kind, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> std::result::Result<(Head, usize), usize> {
        let mut padded = [0; 16];
        padded[..bytes.len()].copy_from_slice(bytes);
        Head::read(&padded, bytes.len())
    }

    fn edges() -> impl Iterator<Item = u64> {
        let last = [0, 7, 15, 31, 127, 255, 0xffff, 0xffff_ffff, u64::MAX - 1];
        last.into_iter().flat_map(|last| [last, last + 1])
    }

    #[test]
    fn every_width_reads_back_as_the_same_header() {
        let mut heads = vec![Head::Nil, Head::Bool(true), Head::Bool(false)];
        heads.extend([0.0, -1.5, f64::MAX].map(Head::Float));
        for value in edges() {
            heads.push(Head::Uint(value));
            let negative = (value >> 1).cast_signed().wrapping_neg();
            heads.extend(
                [negative - 1, negative]
                    .into_iter()
                    .filter(|&n| n < 0)
                    .map(Head::Int),
            );
            if let Ok(len) = u32::try_from(value) {
                heads.extend([
                    Head::Str(len),
                    Head::Bin(len),
                    Head::Array(len),
                    Head::Map(len),
                ]);
                heads.extend([Head::Ext(7, len), Head::Ext(-1, len)]);
            }
        }
        for head in heads {
            assert!(head.widths().is_sorted());
            for width in head.widths() {
                let mut out = Vec::new();
                head.write_wide(width, &mut out);
                assert_eq!(out.len(), width);
                assert_eq!(read(&out), Ok((head, width)));
                for cut in 1..width {
                    assert_eq!(read(&out[..cut]), Err(width));
                }
            }
        }
    }

    #[test]
    fn the_smallest_width_matches_the_reference() {
        let mut ours = Vec::new();
        let mut theirs = Vec::new();
        for value in edges() {
            let signed = (value >> 1).cast_signed().wrapping_neg();
            Head::Uint(value).write(&mut ours);
            rmp::encode::write_uint(&mut theirs, value).unwrap();
            for signed in [signed, signed - 1, -signed] {
                Head::Int(signed).write(&mut ours);
                rmp::encode::write_sint(&mut theirs, signed).unwrap();
            }
            let Ok(len) = u32::try_from(value) else {
                continue;
            };
            Head::Str(len).write(&mut ours);
            Head::Bin(len).write(&mut ours);
            Head::Array(len).write(&mut ours);
            Head::Map(len).write(&mut ours);
            Head::Ext(1, len).write(&mut ours);
            Head::Float(f64::from(len)).write(&mut ours);
            rmp::encode::write_str_len(&mut theirs, len).unwrap();
            rmp::encode::write_bin_len(&mut theirs, len).unwrap();
            rmp::encode::write_array_len(&mut theirs, len).unwrap();
            rmp::encode::write_map_len(&mut theirs, len).unwrap();
            rmp::encode::write_ext_meta(&mut theirs, len, 1).unwrap();
            rmp::encode::write_f64(&mut theirs, f64::from(len)).unwrap();
        }
        assert_eq!(ours, theirs);
    }

    #[test]
    fn every_first_byte_matches_the_reference() {
        for first in 0..=255 {
            let is_valid = rmp::Marker::from_u8(first) != rmp::Marker::Reserved;
            let head = read(&[first, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(head.is_ok(), is_valid, "{first:#x}");
            if !is_valid {
                assert_eq!(head, Err(0));
            }
        }
    }
}
