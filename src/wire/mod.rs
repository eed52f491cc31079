//! The wire format: MessagePack as flax uses it.
//!
//! [`Head`] writes the header of a value at its smallest or at a chosen wider
//! width; [`Cursor`] reads values one by one and never past the end. What is
//! flax's own (extension codes, reserved keys) is written down here, once.
//!
//! Format: <https://github.com/msgpack/msgpack/blob/master/spec.md> and the
//! "on-the-wire" comment in `flax/serialization.py`.

mod head;
mod read;

pub use head::{Head, length};
pub use read::{Cursor, Token};

/// Extension type of an array: `[shape, dtype name, bytes]`.
pub const EXT_NDARRAY: i8 = 1;
/// Extension type of a Python `complex`: `[real, imag]`.
pub const EXT_COMPLEX: i8 = 2;
/// Extension type of a NumPy scalar; the body is that of an array of shape `[]`.
pub const EXT_NPSCALAR: i8 = 3;
/// Extension type that MessagePack itself reserves for timestamps.
pub const EXT_TIMESTAMP: i8 = -1;

/// The key whose presence makes a map stand for an array in chunks.
pub const CHUNKED_MARKER: &str = "__msgpack_chunked_array__";
/// The key whose presence makes a map stand for a typed PRNG key array.
pub const PRNG_MARKER: &str = "__prng_key__";

/// How deep containers may be nested: msgpack for Python, and so flax, writes at
/// most 511 levels. The walks are recursive, and threads may have small stacks.
pub const MAX_DEPTH: usize = 512;

/// The body of a Python `complex`.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Complex(
    /// Real part.
    pub f64,
    /// Imaginary part.
    pub f64,
);

impl Complex {
    /// The extension body `[real, imag]`.
    ///
    /// # Panics
    /// Never: writing two numbers to memory cannot fail.
    #[must_use]
    pub fn to_body(self) -> Vec<u8> {
        rmp_serde::to_vec(&self).expect("two floats always serialize")
    }

    /// Reads a body that starts at `offset` of the input: two numbers of any
    /// kind; further elements are ignored, as flax ignores them.
    pub fn from_body(body: &[u8], offset: usize) -> crate::Result<Self> {
        let mut cursor = Cursor::nested(body, offset);
        let count = match cursor.token()? {
            Token::Array(count) if count >= 2 => count,
            _ => {
                return Err(crate::Error::malformed(
                    offset,
                    "a complex number must be [real, imag]",
                ));
            }
        };
        let parts = (cursor.number()?, cursor.number()?);
        for _ in 2..count {
            cursor.skip()?;
        }
        cursor.finish()?;
        Ok(Self(parts.0, parts.1))
    }
}
