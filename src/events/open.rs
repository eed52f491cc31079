//! The containers around the value that is being read.

use super::{Event, Events};
use crate::Error;
use crate::error::Path;
use crate::wire::{CHUNKED_MARKER, PRNG_MARKER};

/// A container that is being read.
#[derive(Debug)]
pub(super) struct Open {
    /// The number of its event, if events are kept.
    pub(super) event: usize,
    /// Where it begins in the source.
    pub(super) offset: usize,
    /// How many values are still to come; in a map, keys count.
    pub(super) left: u64,
    pub(super) is_map: bool,
    /// Where the key of the value that is being read is, or the last element.
    pub(super) last: usize,
    /// What the last key means for the value after it.
    pub(super) key: Key,
    /// Whether a key was the marker of an array in chunks.
    pub(super) is_chunked: bool,
    /// Whether a key was neither a string nor bytes.
    pub(super) has_other_keys: bool,
    /// The events of the values of these keys, if those are maps.
    pub(super) shape: Option<usize>,
    pub(super) chunks: Option<usize>,
    /// What was kept before the first of them.
    pub(super) kept: Option<Kept>,
    /// How far it looks like a typed PRNG key: 4 for entirely.
    pub(super) prng: u8,
    /// How many keys were of types with foreseeable hashes.
    pub(super) ext_keys: u32,
}

impl Open {
    /// Takes note of what a key that is a string may mean.
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
            // The first of two pairs, of which three values are still to come.
            if text == PRNG_MARKER.as_bytes() && self.left == 3 {
                self.prng = 1;
            }
        }
    }
}

/// Keys that may have a meaning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Key {
    Other,
    Shape,
    Chunks,
}

/// The lengths of lists at some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) list: usize,
    pub(super) arrays: usize,
    pub(super) spans: usize,
}

/// The path to the value that is being read.
pub(super) fn path(found: &Events, open: &[Open]) -> Path {
    let mut path = Path::default();
    for open in open.iter().rev() {
        if open.last == open.event {
            continue; // nothing in it has begun
        }
        if !open.is_map {
            // Elements are counted from the end, as their number is known there.
            if let Event::List(list) = found.list[open.event] {
                path.push_outer((u64::from(list.len) - open.left - 1).to_string());
            }
        } else if open.left.is_multiple_of(2)
            && let Some(key) = found.list.get(open.last)
        {
            path.push_outer(found.key_text(*key));
        }
    }
    path
}

/// The error for a key that is a container or an array.
pub(super) fn unhashable(offset: usize, kind: &str) -> Error {
    let reason = format!("a map key cannot be hashed: unhashable type: '{kind}'");
    Error::malformed(offset, reason)
}
