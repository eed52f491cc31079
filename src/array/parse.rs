//! Reading the headers of an array back, leniently as flax does, and checking them.
//!
//! Nothing here knows dtypes: the caller looks the name up, and comes back with
//! the size of an element to have the shape resolved against the payload.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::MAX_NDIM;
use crate::wire::{CHUNKED_MARKER, Cursor, Token};
use crate::{Error, Result};

/// The dimensions of an array; one may be −1, which stands for "whatever fits".
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dims(SmallVec<[isize; 6]>);

impl Dims {
    /// The dimensions as they are written.
    #[must_use]
    pub fn as_slice(&self) -> &[isize] {
        &self.0
    }

    fn push(&mut self, value: isize, offset: usize) -> Result<()> {
        if value < -1 {
            return Err(Error::malformed(
                offset,
                format!("negative dimension {value}"),
            ));
        }
        if self.0.len() == MAX_NDIM {
            return Err(Error::malformed(
                offset,
                format!("an array of more than {MAX_NDIM} dimensions"),
            ));
        }
        self.0.push(value);
        Ok(())
    }

    /// Reads one integer, or an array of integers.
    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut dims = Self::default();
        let offset = cursor.offset();
        match cursor.token()? {
            Token::Array(count) => {
                for _ in 0..count {
                    let offset = cursor.offset();
                    dims.push(dimension(cursor.token()?, offset)?, offset)?;
                }
            }
            token => dims.push(dimension(token, offset)?, offset)?,
        }
        Ok(dims)
    }

    /// Puts a number in place of −1 and checks that the dimensions account for
    /// exactly `nbytes` bytes in elements of `itemsize`. `offset` is for the error.
    pub fn resolve(mut self, nbytes: usize, itemsize: usize, offset: usize) -> Result<Self> {
        let fail = |dims: &Self| {
            Error::malformed(
                offset,
                format!(
                    "an array of shape {:?} with {itemsize} bytes an element does not fit \
                     its {nbytes} bytes of data",
                    dims.as_slice()
                ),
            )
        };
        if itemsize == 0 || !nbytes.is_multiple_of(itemsize) {
            return Err(fail(&self));
        }
        let mut known: u64 = 1;
        // NumPy wants the product to fit even where another dimension is zero.
        let mut size = itemsize;
        let mut open = None;
        for (axis, &dim) in self.as_slice().iter().enumerate() {
            let Ok(dim) = usize::try_from(dim) else {
                if open.replace(axis).is_some() {
                    return Err(fail(&self));
                }
                continue;
            };
            known = if dim == 0 {
                0
            } else {
                known.saturating_mul(dim as u64)
            };
            size = size.saturating_mul(dim.max(1));
        }
        if size > isize::MAX as usize {
            return Err(fail(&self));
        }
        let total = (nbytes / itemsize) as u64;
        let fits = match open {
            None => known == total,
            Some(axis) if known > 0 && total.is_multiple_of(known) => {
                self.0[axis] = isize::try_from(total / known).map_err(|_| fail(&self))?;
                true
            }
            Some(_) => false,
        };
        if fits { Ok(self) } else { Err(fail(&self)) }
    }
}

fn dimension(token: Token<'_>, offset: usize) -> Result<isize> {
    let dimension = match token {
        Token::Int(value) => isize::try_from(value).ok(),
        Token::Uint(value) => isize::try_from(value).ok(),
        _ => None,
    };
    dimension.ok_or_else(|| Error::malformed(offset, "an array's shape must be made of integers"))
}

/// The body of an array: `[shape, dtype name, bytes]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayBody<'a> {
    /// Its dimensions as written, not yet checked against the payload.
    pub dims: Dims,
    /// The name of its dtype, or an alias that NumPy knows.
    pub dtype: &'a [u8],
    /// The bytes of its elements in C order.
    pub payload: &'a [u8],
    /// Where the body begins in the input.
    pub offset: usize,
}

impl<'a> ArrayBody<'a> {
    /// Reads an extension body that starts at `offset` of the input.
    pub fn parse(body: &'a [u8], offset: usize) -> Result<Self> {
        let mut cursor = Cursor::nested(body, offset);
        let Token::Array(3) = cursor.token()? else {
            return Err(Error::malformed(
                offset,
                "an array must be [shape, dtype, bytes]",
            ));
        };
        let dims = Dims::read(&mut cursor)?;
        let dtype = bytes(&mut cursor, "an array's dtype must be a string")?;
        let payload = bytes(&mut cursor, "an array's data must be a byte string")?;
        cursor.finish()?;
        Ok(Self {
            dims,
            dtype,
            payload,
            offset,
        })
    }
}

/// Old writers knew only one type for strings and bytes.
fn bytes<'a>(cursor: &mut Cursor<'a>, expected: &str) -> Result<&'a [u8]> {
    let offset = cursor.offset();
    match cursor.token()? {
        Token::Str(bytes) | Token::Bin(bytes) => Ok(bytes),
        _ => Err(Error::malformed(offset, expected)),
    }
}

/// An array that was written in chunks.
#[derive(Debug)]
pub struct ChunkedArray<'a> {
    /// The dimensions of the whole.
    pub dims: Dims,
    /// The chunks in order, at least one, all of one dtype.
    pub chunks: Vec<ArrayBody<'a>>,
    /// Where the map begins in the input.
    pub offset: usize,
}

impl<'a> ChunkedArray<'a> {
    /// Reads a map of `pairs` pairs after its header, which began at `offset`.
    ///
    /// The marker counts by its presence, whatever its value; other keys are skipped.
    pub fn parse(cursor: &mut Cursor<'a>, pairs: usize, offset: usize) -> Result<Self> {
        let fail = |reason: &str| {
            Error::malformed(
                offset,
                format!("a map with the key {CHUNKED_MARKER:?} {reason}"),
            )
        };
        let mut shape = None;
        let mut chunks = None;
        for _ in 0..pairs {
            match cursor.token()? {
                Token::Str(b"shape") => shape = Some(indexed(cursor)?),
                Token::Str(b"chunks") => chunks = Some(indexed(cursor)?),
                Token::Str(_) | Token::Bin(_) => cursor.skip()?,
                _ => return Err(fail("has a key that is not a string")),
            }
        }
        let shape = shape.ok_or_else(|| fail("has no 'shape'"))?;
        let chunks = chunks.ok_or_else(|| fail("has no 'chunks'"))?;
        let mut dims = Dims::default();
        for (token, offset) in shape {
            dims.push(dimension(token, offset)?, offset)?;
        }
        let mut bodies: Vec<ArrayBody<'a>> = Vec::with_capacity(chunks.len());
        for (token, offset) in chunks {
            let Token::Ext(crate::wire::EXT_NDARRAY, body) = token else {
                return Err(Error::malformed(offset, "a chunk must be an array"));
            };
            let body = ArrayBody::parse(body, offset)?;
            if bodies
                .first()
                .is_some_and(|first| first.dtype != body.dtype)
            {
                return Err(Error::malformed(offset, "the chunks differ in dtype"));
            }
            bodies.push(body);
        }
        if bodies.is_empty() {
            return Err(fail("has no chunks"));
        }
        Ok(Self {
            dims,
            chunks: bodies,
            offset,
        })
    }
}

/// Reads `{'0': …, '1': …}` with values that are no containers, in order of the keys.
fn indexed<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<(Token<'a>, usize)>> {
    let offset = cursor.offset();
    let fail = || {
        Error::malformed(
            offset,
            "the shape and the chunks of an array must be maps with the keys '0', '1', …",
        )
    };
    let Token::Map(count) = cursor.token()? else {
        return Err(fail());
    };
    let mut found = HashMap::new();
    for _ in 0..count {
        let Token::Str(key) = cursor.token()? else {
            return Err(fail());
        };
        let value = cursor.token()?;
        found.insert(key, (value, cursor.offset() - body_len(&value)));
    }
    (0..found.len())
        .map(|index| {
            found
                .get(index.to_string().as_bytes())
                .copied()
                .ok_or_else(fail)
        })
        .collect()
}

/// The bytes of a token that follow its header.
fn body_len(token: &Token<'_>) -> usize {
    match token {
        Token::Str(body) | Token::Bin(body) | Token::Ext(_, body) => body.len(),
        _ => 0,
    }
}
