//! The wire format: MessagePack as flax uses it.
//!
//! [`Head`] is the header of a value; [`Cursor`] reads headers. This file has flax's extension
//! codes and reserved keys.
//!
//! Format: <https://github.com/msgpack/msgpack/blob/master/spec.md> and the "on-the-wire" comment
//! in `flax/serialization.py`.

mod cursor;
mod head;

pub(crate) use cursor::AHEAD;
pub use cursor::Cursor;
pub use head::{Head, length};

/// `[shape, dtype name, bytes]`.
pub const EXT_NDARRAY: i8 = 1;
/// A Python `complex`: `[real, imag]`.
pub(crate) const EXT_COMPLEX: i8 = 2;
/// A NumPy scalar, as an array of shape `[]`.
pub const EXT_NPSCALAR: i8 = 3;
/// A Python `int` beyond 64 bits: its two's complement, big-endian.
pub(crate) const EXT_INT: i8 = 73;
/// Extension type of an array that is a difference from another one; only in patches.
pub const EXT_DELTA: i8 = 68;
/// MessagePack's extension type of timestamps.
pub const EXT_TIMESTAMP: i8 = -1;

/// Key of a map that is an array in chunks.
pub const CHUNKED_MARKER: &str = "__msgpack_chunked_array__";
/// Key of a map that is a typed PRNG key array.
pub(crate) const PRNG_MARKER: &str = "__prng_key__";

/// msgpack for Python, and so flax, writes at most 511 levels. The walks are recursive, and threads
/// may have small stacks.
pub const MAX_DEPTH: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Complex(pub f64, pub f64);

impl Complex {
    pub fn to_body(self) -> Vec<u8> {
        rmp_serde::to_vec(&self).expect("two floats always serialize")
    }

    /// Reads a body of two numbers of any kind; ignores further elements, as flax does.
    pub fn read(cursor: &mut Cursor<'_>) -> crate::Result<Self> {
        let offset = cursor.offset();
        let count = match cursor.head()? {
            Head::Array(count) if count >= 2 => count,
            _ => {
                return Err(crate::Error::malformed(
                    offset,
                    "a complex number must be [real, imag]",
                ));
            }
        };
        let parts = (number(cursor)?, number(cursor)?);
        let mut open = vec![u64::from(count - 2)];
        while let Some(last) = open.last_mut() {
            if *last == 0 {
                open.pop();
                continue;
            }
            *last -= 1;
            let offset = cursor.offset();
            match cursor.head()? {
                Head::Array(len) => open.push(len.into()),
                Head::Map(pairs) => open.push(2 * u64::from(pairs)),
                Head::Str(len) | Head::Bin(len) | Head::Ext(_, len) => cursor.skip(len as usize),
                _ => {}
            }
            if open.len() > MAX_DEPTH {
                let limit = MAX_DEPTH;
                return Err(crate::Error::TooDeep { offset, limit });
            }
        }
        cursor.finish()?;
        Ok(Self(parts.0, parts.1))
    }
}

#[allow(clippy::cast_precision_loss)] // as Python's complex() does
fn number(cursor: &mut Cursor<'_>) -> crate::Result<f64> {
    let offset = cursor.offset();
    match cursor.head()? {
        Head::Float(value) => Ok(value),
        Head::Int(value) => Ok(value as f64),
        Head::Uint(value) => Ok(value as f64),
        Head::Bool(value) => Ok(value.into()),
        _ => Err(crate::Error::malformed(offset, "expected a number")),
    }
}
