//! What encoded bytes contain, as a list of events: the grammar of reading.
//!
//! A [`Reader`] goes through the headers of a source once, without a payload being touched.
//! Everything that the format prescribes is checked or done there: lengths, depth, UTF-8,
//! arrays in chunks that become one, complex numbers, PRNG keys, which keys a map may have.
//! What is made of the events – objects of Python, a list of leaves, values of a program – is
//! up to short drivers: they ask the reader for one event after the other, or take all of them
//! ([`Events::read`]).
//!
//! | file | what is there |
//! |---|---|
//! | `read.rs` | from headers to events, one by one |
//! | `open.rs` | the containers around a value |
//! | `extensions.rs` | arrays, scalars of NumPy, complex numbers |
//! | `recent.rs` | headers of arrays that are like those of one before |
//! | `chunks.rs` | a map that stands for an array in chunks becomes that array |
//! | `itemsize.rs` | how many bytes elements have, by the name of their dtype |

mod chunks;
mod extensions;
mod itemsize;
mod open;
mod read;
mod recent;

use std::borrow::Cow;
use std::ops::Range;

use smallvec::SmallVec;

use crate::array::resolve;

pub(crate) use extensions::no_dtype;
pub(crate) use itemsize::itemsize;
pub use read::{Closed, Reader};

/// One value. Those that are in a container follow it, and in a map each value its key.
///
/// There is one for each value of the input, so they are kept small: 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// `nil`.
    Nil,
    /// A boolean.
    Bool(bool),
    /// A negative integer, or one that was written in a signed format.
    Int(i64),
    /// A non-negative integer.
    Uint(u64),
    /// A float.
    Float(f64),
    /// A complex number; see [`Events::complex`].
    Complex(u32),
    /// A string; see [`Events::text`].
    Str(Text),
    /// A byte string: where it is in the source.
    Bin(Span),
    /// A list of so many elements; its events end before that number.
    List(Container),
    /// A map of so many pairs; its events end before that number.
    Map(Container),
    /// A map of two pairs that is a typed PRNG key, if its implementation is known.
    PrngKey(Container),
    /// An array; see [`Events::array`].
    Array(u32),
    /// A scalar of NumPy: the only element of an array.
    Scalar(u32),
    /// An extension of another type: where its body is in the source.
    Ext(i8, Span),
}

const _: () = assert!(size_of::<Event>() == 16);

/// How many elements or pairs a container has, and where its events end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // see `Event`
pub struct Container {
    /// Elements or pairs.
    pub len: u32,
    /// The number of the first event after the container.
    pub end: usize,
}

/// Bytes of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // see `Event`
pub struct Span {
    /// How many.
    pub len: u32,
    /// The offset of the first.
    pub start: usize,
}

impl Span {
    /// Their offsets.
    #[inline]
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start..self.start + self.len as usize
    }
}

/// A string among [`Events::text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))] // see `Event`
pub struct Text {
    len: u32,
    start: usize,
}

/// An array whose dtype and shape are as written: neither is checked yet.
#[derive(Debug, Clone, Copy)]
pub struct ArrayEvent<'a> {
    /// Its dimensions; one may be −1. See [`crate::array::resolve`].
    pub dims: &'a [isize],
    /// Where they are among all dimensions: the same for arrays that have the same headers.
    pub dims_start: usize,
    /// The name of its dtype, or an alias that NumPy knows.
    pub dtype: &'a [u8],
    /// The number of that name: equal names have equal numbers.
    pub dtype_number: usize,
    /// Where its bytes are in the source, in order: once, or once for each chunk.
    pub spans: &'a [Span],
    /// Where the value begins in the source, for errors.
    pub offset: usize,
}

impl ArrayEvent<'_> {
    /// Its shape, if that can be told without asking anybody for the dtype.
    #[must_use]
    pub fn shape(&self) -> Option<SmallVec<[usize; 6]>> {
        resolve(self.dims, self.nbytes(), self.itemsize()?, self.offset).ok()
    }

    /// How many bytes an element takes: what the name of the dtype tells, or, for names that are
    /// not known here, what the bytes and the dimensions tell.
    #[must_use]
    pub fn itemsize(&self) -> Option<usize> {
        let name = std::str::from_utf8(self.dtype).ok()?;
        itemsize(name).or_else(|| {
            let count =
                |product: usize, &dim: &isize| usize::try_from(dim).ok()?.checked_mul(product);
            match self.dims.iter().try_fold(1, count)? {
                0 => Some(1), // there are no elements
                elements => Some(self.nbytes() / elements).filter(|itemsize| *itemsize > 0),
            }
        })
    }

    /// Whether the name of the dtype tells how many bytes an element has.
    #[must_use]
    pub fn has_known_size(&self) -> bool {
        let dtype = std::str::from_utf8(self.dtype).ok();
        dtype.and_then(itemsize).is_some()
    }

    /// How many bytes the elements have.
    #[inline]
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }
}

/// An array in the lists of `Events`.
#[derive(Debug, Clone, Copy)]
struct ArrayEntry {
    offset: usize,
    dims_start: usize,
    spans_start: usize,
    spans: u32,
    dtype: u32,
    ndim: u8,
}

/// The events of a source, and what they refer to.
#[derive(Debug, Default)]
pub struct Events {
    list: Vec<Event>,
    /// All strings, one after the other. Each was found to be UTF-8.
    text: Vec<u8>,
    arrays: Vec<ArrayEntry>,
    dims: Vec<isize>,
    spans: Vec<Span>,
    dtypes: Vec<Vec<u8>>,
    complex: Vec<(f64, f64)>,
}

impl Events {
    /// All events in order: at least one.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Event] {
        &self.list
    }

    /// What a string is.
    ///
    /// # Panics
    /// If it is not of these events.
    #[inline]
    #[must_use]
    pub fn text(&self, text: Text) -> &str {
        let bytes = &self.text[text.start..text.start + text.len as usize];
        // Short strings are checked again, which costs less than a promise.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// The bytes of a string.
    ///
    /// # Panics
    /// If it is not of these events.
    #[inline]
    #[must_use]
    pub fn text_bytes(&self, text: Text) -> &[u8] {
        &self.text[text.start..text.start + text.len as usize]
    }

    /// What an array is.
    ///
    /// # Panics
    /// If it is not of these events.
    #[inline]
    #[must_use]
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

    /// The real and the imaginary part of a complex number.
    ///
    /// # Panics
    /// If it is not of these events.
    #[must_use]
    pub fn complex(&self, number: u32) -> (f64, f64) {
        self.complex[number as usize]
    }

    /// The number of the event after this one and all in it.
    #[inline]
    fn after(&self, event: usize) -> usize {
        match self.list[event] {
            Event::List(it) | Event::Map(it) | Event::PrngKey(it) => it.end,
            _ => event + 1,
        }
    }

    /// How an event reads as a key in a path.
    #[must_use]
    pub fn key_text(&self, event: Event) -> Cow<'_, str> {
        match event {
            Event::Nil => "None".into(),
            Event::Bool(true) => "True".into(),
            Event::Bool(false) => "False".into(),
            Event::Int(value) => value.to_string().into(),
            Event::Uint(value) => value.to_string().into(),
            Event::Float(value) => float_text(value).into(),
            Event::Str(text) => self.text(text).into(),
            _ => "?".into(),
        }
    }
}

/// A number as Python writes it: `2.0`, `nan`, `1e-07`. Rust writes others as `NaN` and `1e-7`.
fn float_text(value: f64) -> String {
    let text = format!("{value:?}").to_lowercase();
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().expect("Rust writes exponents in digits");
            format!("{digits}e{exponent:+03}")
        }
        None => text,
    }
}
