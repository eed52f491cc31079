//! Reading values one by one from bytes, never past their end.

// Casts here narrow what was just read from as many bytes, or was just checked against a `usize`.
#![allow(clippy::cast_possible_truncation)]

use rmp::Marker;

use super::MAX_DEPTH;
use crate::{Error, Result};

/// One value, or the header of a container whose elements follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    /// `nil`.
    Nil,
    /// A boolean.
    Bool(bool),
    /// A negative integer, or one written in a signed format.
    Int(i64),
    /// A non-negative integer.
    Uint(u64),
    /// A float of either width.
    Float(f64),
    /// The bytes of a string; not checked to be UTF-8.
    Str(&'a [u8]),
    /// A byte string.
    Bin(&'a [u8]),
    /// An array; so many values follow.
    Array(usize),
    /// A map; so many pairs follow.
    Map(usize),
    /// An extension: its type and its body.
    Ext(i8, &'a [u8]),
}

/// A position in encoded bytes.
///
/// Every length is checked against what is left before it is believed, so that
/// a caller may allocate for it.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    data: &'a [u8],
    position: usize,
    base: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of the input.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self::nested(data, 0)
    }

    /// A cursor over a part of the input that begins at `base`, for offsets in errors.
    #[must_use]
    pub fn nested(data: &'a [u8], base: usize) -> Self {
        Self {
            data,
            position: 0,
            base,
        }
    }

    /// The offset of the next byte in the whole input.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.base + self.position
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.data.len() - self.position
    }

    /// Errors unless everything has been read.
    pub fn finish(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(Error::malformed(
                self.offset(),
                format!("{left} trailing bytes after the end of the value"),
            )),
        }
    }

    /// Reads the next value or container header.
    #[inline]
    pub fn token(&mut self) -> Result<Token<'a>> {
        let start = self.position;
        let result = self.token_or_fail();
        if let Err(error) = result {
            // An error points at the start of its value, and the cursor stays there.
            self.position = start;
            return Err(match error {
                Error::Truncated { missing, .. } => Error::Truncated {
                    offset: self.offset(),
                    missing,
                },
                other => other,
            });
        }
        result
    }

    #[inline]
    fn token_or_fail(&mut self) -> Result<Token<'a>> {
        Ok(match Marker::from_u8(self.take_be::<1>()? as u8) {
            Marker::FixPos(value) => Token::Uint(value.into()),
            Marker::FixNeg(value) => Token::Int(value.into()),
            Marker::Null => Token::Nil,
            Marker::True => Token::Bool(true),
            Marker::False => Token::Bool(false),
            Marker::U8 => Token::Uint(self.take_be::<1>()?),
            Marker::U16 => Token::Uint(self.take_be::<2>()?),
            Marker::U32 => Token::Uint(self.take_be::<4>()?),
            Marker::U64 => Token::Uint(self.take_be::<8>()?),
            Marker::I8 => Token::Int(i64::from(self.take_be::<1>()? as i8)),
            Marker::I16 => Token::Int(i64::from(self.take_be::<2>()? as i16)),
            Marker::I32 => Token::Int(i64::from(self.take_be::<4>()? as i32)),
            Marker::I64 => Token::Int(self.take_be::<8>()?.cast_signed()),
            Marker::F32 => Token::Float(f32::from_bits(self.take_be::<4>()? as u32).into()),
            Marker::F64 => Token::Float(f64::from_bits(self.take_be::<8>()?)),
            Marker::FixStr(len) => Token::Str(self.take(len.into())?),
            Marker::Str8 => Token::Str(self.take_sized::<1>()?),
            Marker::Str16 => Token::Str(self.take_sized::<2>()?),
            Marker::Str32 => Token::Str(self.take_sized::<4>()?),
            Marker::Bin8 => Token::Bin(self.take_sized::<1>()?),
            Marker::Bin16 => Token::Bin(self.take_sized::<2>()?),
            Marker::Bin32 => Token::Bin(self.take_sized::<4>()?),
            Marker::FixArray(len) => Token::Array(self.elements(len.into(), 1)?),
            Marker::Array16 => Token::Array(self.take_be::<2>().and_then(|n| self.elements(n, 1))?),
            Marker::Array32 => Token::Array(self.take_be::<4>().and_then(|n| self.elements(n, 1))?),
            Marker::FixMap(len) => Token::Map(self.elements(len.into(), 2)?),
            Marker::Map16 => Token::Map(self.take_be::<2>().and_then(|n| self.elements(n, 2))?),
            Marker::Map32 => Token::Map(self.take_be::<4>().and_then(|n| self.elements(n, 2))?),
            Marker::FixExt1 => self.ext(1)?,
            Marker::FixExt2 => self.ext(2)?,
            Marker::FixExt4 => self.ext(4)?,
            Marker::FixExt8 => self.ext(8)?,
            Marker::FixExt16 => self.ext(16)?,
            Marker::Ext8 => self.take_be::<1>().and_then(|len| self.ext(len))?,
            Marker::Ext16 => self.take_be::<2>().and_then(|len| self.ext(len))?,
            Marker::Ext32 => self.take_be::<4>().and_then(|len| self.ext(len))?,
            Marker::Reserved => {
                return Err(Error::malformed(
                    self.offset() - 1,
                    "byte 0xc1 starts no msgpack value",
                ));
            }
        })
    }

    /// Reads past the next value, whatever it contains.
    pub fn skip(&mut self) -> Result<()> {
        // How many values are still to be read at each open level.
        let mut open = vec![1usize];
        while let Some(last) = open.last_mut() {
            if *last == 0 {
                open.pop();
                continue;
            }
            *last -= 1;
            let offset = self.offset();
            let inside = match self.token()? {
                Token::Array(len) => len,
                Token::Map(len) => 2 * len,
                _ => continue,
            };
            if open.len() > MAX_DEPTH {
                return Err(Error::TooDeep { offset });
            }
            open.push(inside);
        }
        Ok(())
    }

    /// Reads a number of any kind as a float.
    #[allow(clippy::cast_precision_loss)] // what Python's complex() does as well
    pub fn number(&mut self) -> Result<f64> {
        let offset = self.offset();
        match self.token()? {
            Token::Float(value) => Ok(value),
            Token::Int(value) => Ok(value as f64),
            Token::Uint(value) => Ok(value as f64),
            Token::Bool(value) => Ok(value.into()),
            _ => Err(Error::malformed(offset, "expected a number")),
        }
    }

    #[inline]
    fn ext(&mut self, len: u64) -> Result<Token<'a>> {
        let code = self.take_be::<1>()? as i8;
        Ok(Token::Ext(code, self.take(len)?))
    }

    /// An element takes at least one byte, so a count beyond what is left is a lie.
    #[inline]
    fn elements(&self, count: u64, bytes_each: u64) -> Result<usize> {
        if count * bytes_each > self.left() as u64 {
            return Err(self.truncated(count * bytes_each));
        }
        Ok(count as usize)
    }

    #[inline]
    fn take_sized<const N: usize>(&mut self) -> Result<&'a [u8]> {
        let len = self.take_be::<N>()?;
        self.take(len)
    }

    #[inline]
    fn take_be<const N: usize>(&mut self) -> Result<u64> {
        let bytes = self.take(N as u64)?;
        let mut wide = [0; 8];
        wide[8 - N..].copy_from_slice(bytes);
        Ok(u64::from_be_bytes(wide))
    }

    #[inline]
    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        if len > self.left() as u64 {
            return Err(self.truncated(len));
        }
        let end = self.position + len as usize;
        let bytes = &self.data[self.position..end];
        self.position = end;
        Ok(bytes)
    }

    /// `wanted` counts from here; `token` moves the report to the start of the value.
    #[cold]
    fn truncated(&self, wanted: u64) -> Error {
        Error::Truncated {
            offset: self.offset(),
            missing: wanted - self.left() as u64,
        }
    }
}
