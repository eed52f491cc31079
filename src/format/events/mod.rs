//! Decodes encoded bytes into events.
//!
//! A [`Reader`] reads the headers of a source once, without payloads, and enforces the format.
//! Short drivers turn the events into Python objects, leaves or values, one by one or all at once
//! ([`Events::read`]).
//!
//! | file | content |
//! |---|---|
//! | `read.rs` | headers to events, one by one, and the containers around them |
//! | `keys.rs` | texts of keys |
//! | `extensions.rs` | arrays, NumPy scalars, complex numbers |
//! | `recent.rs` | repeated headers of arrays |
//! | `chunks.rs` | joining the chunks of an array |

mod chunks;
mod extensions;
mod keys;
mod read;
mod recent;

use std::ops::Range;

use smallvec::SmallVec;

use crate::format::array::resolve;
use crate::format::dtypes::itemsize;

pub use read::{Closed, Reader};

/// One value. A container's values follow it, in a map each after its key. Packed into 16 bytes,
/// since each value of the input has one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    Nil,
    Bool(bool),
    /// Negative, or in a signed format.
    Int(i64),
    Uint(u64),
    Float(f64),
    Complex(u32),
    Str(Text),
    /// Its range in the source.
    Bin(Span),
    List(Container),
    Map(Container),
    /// A map that is a typed PRNG key, if its implementation is known.
    PrngKey(Container),
    Array(u32),
    /// A NumPy scalar, as an array of one element.
    Scalar(u32),
    /// An extension of another type: its body's range in the source.
    Ext(i8, Span),
}

const _: () = assert!(size_of::<Event>() == 16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // see `Event`
pub struct Container {
    pub len: u32,
    /// The first event after the container.
    pub end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // see `Event`
pub struct Span {
    pub len: u32,
    pub start: usize,
}

impl Span {
    #[inline]
    pub fn range(self) -> Range<usize> {
        self.start..self.start + self.len as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // see `Event`
pub struct Text {
    len: u32,
    start: usize,
}

/// An array with its dtype and shape as written, unchecked.
#[derive(Debug, Clone, Copy)]
pub struct ArrayEvent<'a> {
    /// One may be −1. See [`crate::format::array::resolve`].
    pub dims: &'a [isize],
    pub dims_start: usize,
    /// A dtype name, or an alias that NumPy knows.
    pub dtype: &'a [u8],
    /// Equal names have equal numbers.
    pub dtype_number: usize,
    /// The ranges of its bytes in order: one, or one per chunk.
    pub spans: &'a [Span],
    pub offset: usize,
}

impl ArrayEvent<'_> {
    pub fn shape(&self) -> Option<SmallVec<[usize; 6]>> {
        resolve(self.dims, self.nbytes(), self.itemsize()?, self.offset).ok()
    }

    /// The element size: by the name of the dtype, or for unknown names by the bytes and the
    /// dimensions.
    pub fn itemsize(&self) -> Option<usize> {
        let name = std::str::from_utf8(self.dtype).ok()?;
        itemsize(name).or_else(|| {
            let count =
                |product: usize, &dim: &isize| usize::try_from(dim).ok()?.checked_mul(product);
            match self.dims.iter().try_fold(1, count)? {
                0 => Some(1), // no elements
                elements => Some(self.nbytes() / elements).filter(|itemsize| *itemsize > 0),
            }
        })
    }

    pub fn has_known_size(&self) -> bool {
        let dtype = std::str::from_utf8(self.dtype).ok();
        dtype.and_then(itemsize).is_some()
    }

    #[inline]
    pub fn nbytes(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }
}

#[derive(Debug, Clone, Copy)]
struct ArrayEntry {
    offset: usize,
    dims_start: usize,
    spans_start: usize,
    spans: u32,
    dtype: u32,
    ndim: u8,
}

/// The events of a source, with their content. Methods panic for events of another source.
#[derive(Debug, Default)]
pub struct Events {
    list: Vec<Event>,
    /// All strings concatenated, each valid UTF-8.
    text: Vec<u8>,
    arrays: Vec<ArrayEntry>,
    dims: Vec<isize>,
    spans: Vec<Span>,
    dtypes: Vec<Vec<u8>>,
    complex: Vec<(f64, f64)>,
}

impl Events {
    #[inline]
    pub fn as_slice(&self) -> &[Event] {
        &self.list
    }

    #[inline]
    pub fn text(&self, text: Text) -> &str {
        // Checking short strings again costs less than `unsafe`.
        std::str::from_utf8(self.text_bytes(text)).unwrap_or_default()
    }

    #[inline]
    pub fn text_bytes(&self, text: Text) -> &[u8] {
        &self.text[text.start..text.start + text.len as usize]
    }

    #[inline]
    pub fn array(&self, number: u32) -> ArrayEvent<'_> {
        let entry = &self.arrays[number as usize];
        ArrayEvent {
            dims: &self.dims[entry.dims_start..][..entry.ndim.into()],
            dims_start: entry.dims_start,
            dtype: &self.dtypes[entry.dtype as usize],
            dtype_number: entry.dtype as usize,
            spans: &self.spans[entry.spans_start..][..entry.spans as usize],
            offset: entry.offset,
        }
    }

    pub fn complex(&self, number: u32) -> (f64, f64) {
        self.complex[number as usize]
    }

    /// Removes the events; dimensions and dtypes stay for recent headers.
    fn clear(&mut self) {
        self.list.clear();
        self.text.clear();
        self.arrays.clear();
        self.spans.clear();
        self.complex.clear();
    }

    /// Returns the index of the event after a value.
    #[inline]
    pub fn after(&self, event: usize) -> usize {
        match self.list[event] {
            Event::List(container) | Event::Map(container) | Event::PrngKey(container) => {
                container.end
            }
            _ => event + 1,
        }
    }
}
