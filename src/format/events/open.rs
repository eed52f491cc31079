//! The containers around the current value.

use crate::Error;
use crate::format::wire::{CHUNKED_MARKER, PRNG_MARKER};

#[derive(Debug)]
pub(super) struct Open {
    pub(super) event: usize,
    pub(super) offset: usize,
    /// Remaining values; map keys count.
    pub(super) left: u64,
    pub(super) is_map: bool,
    pub(super) key: Key,
    pub(super) is_chunked: bool,
    pub(super) has_other_keys: bool,
    /// The values of these keys, if those are maps.
    pub(super) shape: Option<usize>,
    pub(super) chunks: Option<usize>,
    /// The state of the lists before the first of them.
    pub(super) kept: Option<Kept>,
    /// Matching steps towards a typed PRNG key; 4 for all.
    pub(super) prng: u8,
    /// Keys of types with predictable hashes.
    pub(super) ext_keys: u32,
}

impl Open {
    #[inline]
    pub(super) fn note_key(&mut self, text: &[u8]) {
        self.key = match text {
            b"shape" => Key::Shape,
            b"chunks" => Key::Chunks,
            _ => Key::Other,
        };
        if text == b"data" && self.prng == 2 {
            self.prng = 3;
        } else if text.starts_with(b"__") {
            self.is_chunked |= text == CHUNKED_MARKER.as_bytes();
            // The first of two pairs, so three values remain.
            if text == PRNG_MARKER.as_bytes() && self.left == 3 {
                self.prng = 1;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Key {
    Other,
    Shape,
    Chunks,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) list: usize,
    pub(super) arrays: usize,
    pub(super) spans: usize,
}

pub(super) fn unhashable(offset: usize, kind: &str) -> Error {
    let reason = format!("a map key cannot be hashed: unhashable type: '{kind}'");
    Error::malformed(offset, reason)
}
