//! Writing the header of a value at any legal width.
//!
//! MessagePack lets every length and every integer be written wider than it
//! needs to be. The smallest width is what flax writes; the wider ones are how
//! [`crate::array`] moves a payload to an aligned offset.

// Most callers know the kind of header, so that little of these functions is left there.
#![allow(clippy::inline_always)]

use rmp::Marker;

use crate::{Error, Result};

/// The header of one value: everything of it but its bytes or elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// A string of so many bytes.
    Str(u32),
    /// A byte string of so many bytes.
    Bin(u32),
    /// An array of so many elements.
    Array(u32),
    /// A map of so many pairs.
    Map(u32),
    /// A whole non-negative integer.
    Uint(u64),
    /// An extension: its type, and how many bytes its body has.
    Ext(i8, u32),
}

impl Head {
    /// All widths in bytes that this header can be written in, ascending.
    #[inline(always)]
    #[must_use]
    pub fn widths(self) -> &'static [usize] {
        /// The tail of `all` that begins with the first width that is wide enough.
        fn from(all: &'static [usize], limits: &[u64], value: u64) -> &'static [usize] {
            let narrow = limits.iter().take_while(|&&limit| value > limit).count();
            &all[narrow..]
        }
        match self {
            Self::Str(len) => from(&[1, 2, 3, 5], &[31, 0xff, 0xffff], len.into()),
            Self::Bin(len) => from(&[2, 3, 5], &[0xff, 0xffff], len.into()),
            Self::Array(len) | Self::Map(len) => from(&[1, 3, 5], &[15, 0xffff], len.into()),
            Self::Uint(value) => from(&[1, 2, 3, 5, 9], &[0x7f, 0xff, 0xffff, 0xffff_ffff], value),
            Self::Ext(_, 1 | 2 | 4 | 8 | 16) => &[2, 3, 4, 6],
            Self::Ext(_, len) => from(&[3, 4, 6], &[0xff, 0xffff], len.into()),
        }
    }

    /// The smallest width: what flax writes.
    #[inline(always)]
    #[must_use]
    pub fn width(self) -> usize {
        self.widths()[0]
    }

    /// Appends this header at its smallest width.
    #[inline(always)]
    pub fn write(self, out: &mut Vec<u8>) {
        self.write_wide(self.width(), out);
    }

    /// Appends this header at `width`, one of [`Head::widths`].
    // The casts cannot truncate: a width is only legal when the value fits it.
    #[allow(clippy::cast_possible_truncation)]
    #[inline(always)]
    pub fn write_wide(self, width: usize, out: &mut Vec<u8>) {
        debug_assert!(self.widths().contains(&width), "{self:?} at {width}");
        let (marker, value) = match self {
            Self::Str(len) => (
                match width {
                    1 => Marker::FixStr(len as u8),
                    2 => Marker::Str8,
                    3 => Marker::Str16,
                    _ => Marker::Str32,
                },
                u64::from(len),
            ),
            Self::Bin(len) => (
                match width {
                    2 => Marker::Bin8,
                    3 => Marker::Bin16,
                    _ => Marker::Bin32,
                },
                len.into(),
            ),
            Self::Array(len) => (
                match width {
                    1 => Marker::FixArray(len as u8),
                    3 => Marker::Array16,
                    _ => Marker::Array32,
                },
                len.into(),
            ),
            Self::Map(len) => (
                match width {
                    1 => Marker::FixMap(len as u8),
                    3 => Marker::Map16,
                    _ => Marker::Map32,
                },
                len.into(),
            ),
            Self::Uint(value) => (
                match width {
                    1 => Marker::FixPos(value as u8),
                    2 => Marker::U8,
                    3 => Marker::U16,
                    5 => Marker::U32,
                    _ => Marker::U64,
                },
                value,
            ),
            Self::Ext(code, len) => return write_ext(code, len, width, out),
        };
        // Copies of a constant length are a store or two.
        let first = marker.to_u8();
        let be = value.to_be_bytes();
        match width {
            1 => out.push(first),
            2 => out.extend_from_slice(&[first, be[7]]),
            3 => out.extend_from_slice(&[first, be[6], be[7]]),
            5 => out.extend_from_slice(&[first, be[4], be[5], be[6], be[7]]),
            _ => {
                out.push(first);
                out.extend_from_slice(&be);
            }
        }
    }
}

/// A length as the format can hold it; `what` is for the error.
#[inline]
pub fn length(what: &'static str, len: usize) -> Result<u32> {
    u32::try_from(len).map_err(|_| Error::TooLarge { what, len })
}

/// Extension headers carry their type after the length.
fn write_ext(code: i8, len: u32, width: usize, out: &mut Vec<u8>) {
    let marker = match (width, len) {
        (2, 1) => Marker::FixExt1,
        (2, 2) => Marker::FixExt2,
        (2, 4) => Marker::FixExt4,
        (2, 8) => Marker::FixExt8,
        (2, _) => Marker::FixExt16,
        (3, _) => Marker::Ext8,
        (4, _) => Marker::Ext16,
        _ => Marker::Ext32,
    };
    let (first, code) = (marker.to_u8(), code.cast_unsigned());
    let be = len.to_be_bytes();
    match width {
        2 => out.extend_from_slice(&[first, code]),
        3 => out.extend_from_slice(&[first, be[3], code]),
        4 => out.extend_from_slice(&[first, be[2], be[3], code]),
        _ => out.extend_from_slice(&[first, be[0], be[1], be[2], be[3], code]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Cursor, Token};

    #[test]
    fn every_width_reads_back_as_the_same_value() {
        let lens = [
            0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 127, 128, 255, 256, 65535, 65536,
        ];
        for len in lens {
            for head in [Head::Str(len), Head::Bin(len), Head::Ext(7, len)] {
                for &width in head.widths() {
                    let mut out = Vec::new();
                    head.write_wide(width, &mut out);
                    assert_eq!(out.len(), width);
                    out.resize(width + len as usize, 0);
                    let token = Cursor::new(&out).token().unwrap();
                    let body = &out[width..];
                    match head {
                        Head::Str(_) => assert_eq!(token, Token::Str(body)),
                        Head::Bin(_) => assert_eq!(token, Token::Bin(body)),
                        _ => assert_eq!(token, Token::Ext(7, body)),
                    }
                }
            }
        }
    }

    #[test]
    fn integers_read_back_at_every_width() {
        let edges = [
            0,
            127,
            128,
            255,
            256,
            65535,
            65536,
            0xffff_ffff,
            1 << 32,
            u64::MAX,
        ];
        for value in edges {
            for &width in Head::Uint(value).widths() {
                let mut out = Vec::new();
                Head::Uint(value).write_wide(width, &mut out);
                assert_eq!(out.len(), width);
                assert_eq!(Cursor::new(&out).token().unwrap(), Token::Uint(value));
            }
        }
    }

    #[test]
    fn the_smallest_width_is_what_the_reference_writes() {
        for len in [0u32, 15, 16, 31, 32, 255, 256, 65535, 65536, u32::MAX] {
            let mut ours = Vec::new();
            let mut theirs = Vec::new();
            Head::Str(len).write(&mut ours);
            Head::Bin(len).write(&mut ours);
            Head::Array(len).write(&mut ours);
            Head::Map(len).write(&mut ours);
            Head::Uint(len.into()).write(&mut ours);
            Head::Ext(1, len).write(&mut ours);
            rmp::encode::write_str_len(&mut theirs, len).unwrap();
            rmp::encode::write_bin_len(&mut theirs, len).unwrap();
            rmp::encode::write_array_len(&mut theirs, len).unwrap();
            rmp::encode::write_map_len(&mut theirs, len).unwrap();
            rmp::encode::write_uint(&mut theirs, len.into()).unwrap();
            rmp::encode::write_ext_meta(&mut theirs, len, 1).unwrap();
            assert_eq!(ours, theirs);
        }
    }
}
