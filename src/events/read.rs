//! From headers to events, one by one.
//!
//! Nothing is read twice, and the work is linear in the bytes of the input, whatever they are.
//! That a map stands for an array in chunks may be known only at its last key. So from a key
//! on that such a map has, the events are kept until the map ends.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{ArrayEntry, Container, Event, Events, Span, Text};
use crate::array::Dims;
use crate::error::Path;
use crate::source::Source;
use crate::wire::{
    self, AHEAD, CHUNKED_MARKER, Complex, Cursor, EXT_COMPLEX, EXT_NDARRAY, EXT_NPSCALAR, Head,
    PRNG_MARKER,
};
use crate::{Error, Result};

/// After so many values the caller is asked whether to go on.
const CHECK_VALUES: usize = 1 << 14;

/// The longest name that a dtype may have; those that are known have 17 bytes at most.
const MAX_DTYPE_NAME: usize = 64;

/// How many keys of a map may be of types whose hashes somebody could make equal on purpose.
/// Each costs a comparison with all others of its hash.
const MAX_EXT_KEYS: u32 = 1024;

/// Dtypes whose scalars have hashes like numbers, and those are different.
const PLAIN_SCALARS: [&[u8]; 4] = [b"int", b"uint", b"bool", b"float"];

impl Events {
    /// Reads all of a source, which has to be one value. `check` is asked now and then whether
    /// to go on. An error tells the path to where it is.
    pub fn read(source: &dyn Source, check: impl FnMut() -> Result<()>) -> Result<Self> {
        let mut reader = Reader::new(source);
        reader.keep_all = true;
        match reader.all(check) {
            Ok(()) => Ok(reader.found),
            Err(error) => {
                let path = path(&reader.found, &reader.open);
                let error = Box::new(error);
                Err(Error::At { path, error })
            }
        }
    }
}

/// What a container has turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// What it was begun as.
    Same,
    /// An array in chunks, in place of the map.
    Array(u32),
    /// A typed PRNG key, if its implementation is known.
    PrngKey,
}

/// A container that is being read.
#[derive(Debug)]
struct Open {
    /// The number of its event, if events are kept.
    event: usize,
    /// Where it begins in the source.
    offset: usize,
    /// How many values are still to come; in a map, keys count.
    left: u64,
    is_map: bool,
    /// Where the key of the value that is being read is, or the last element.
    last: usize,
    /// What the last key means for the value after it.
    key: Key,
    /// Whether a key was the marker of an array in chunks.
    is_chunked: bool,
    /// Whether a key was neither a string nor bytes.
    has_other_keys: bool,
    /// The events of the values of these keys, if those are maps.
    shape: Option<usize>,
    chunks: Option<usize>,
    /// What was kept before the first of them.
    kept: Option<Kept>,
    /// How far it looks like a typed PRNG key: 4 for entirely.
    prng: u8,
    /// How many keys were of types with foreseeable hashes.
    ext_keys: u32,
}

/// Keys that may have a meaning.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Key {
    Other,
    Shape,
    Chunks,
}

/// The lengths of lists at some time.
#[derive(Debug, Clone, Copy)]
struct Kept {
    list: usize,
    arrays: usize,
    spans: usize,
}

/// Reads events one by one. Whoever reads a container asks for its values, and closes it then.
pub struct Reader<'a> {
    cursor: Cursor<'a>,
    found: Events,
    dtype_numbers: HashMap<Vec<u8>, u32>,
    /// The number that was looked up last.
    last_dtype: usize,
    /// Headers of arrays that were read last, and which of them is replaced next.
    recent: Vec<RecentHeaders>,
    oldest: usize,
    open: Vec<Open>,
    /// Whether all events are kept, and not only those that an open container needs.
    keep_all: bool,
    /// How many open containers need events.
    needing: usize,
}

/// All that stands before the payload in the body of an array. A tree has many arrays of few
/// shapes, and to compare their headers with these costs less than to read them.
struct RecentHeaders {
    bytes: SmallVec<[u8; AHEAD]>,
    /// How many bytes the body has.
    len: u32,
    /// The array that they were read of.
    array: ArrayEntry,
}

/// How many of them are known.
const RECENT: usize = 4;

impl<'a> Reader<'a> {
    /// Begins at the start of a source.
    #[must_use]
    pub fn new(source: &'a dyn Source) -> Self {
        Self {
            cursor: Cursor::new(source),
            found: Events {
                // Enough for most small trees.
                text: Vec::with_capacity(512),
                ..Events::default()
            },
            dtype_numbers: HashMap::new(),
            last_dtype: usize::MAX,
            recent: Vec::with_capacity(RECENT),
            oldest: 0,
            open: Vec::with_capacity(8),
            keep_all: false,
            needing: 0,
        }
    }

    /// What the last event refers to; strings of others are there, too.
    #[inline]
    #[must_use]
    pub fn events(&self) -> &Events {
        &self.found
    }

    fn all(&mut self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let mut until_check = CHECK_VALUES;
        loop {
            until_check -= 1;
            if until_check == 0 {
                check()?;
                until_check = CHECK_VALUES;
            }
            self.next()?;
            while let Some(open) = self.open.last()
                && open.left == 0
            {
                self.close()?;
            }
            if self.open.is_empty() {
                return self.finish();
            }
        }
    }

    /// Errors unless the source ends here.
    pub fn finish(&self) -> Result<()> {
        self.cursor.finish()
    }

    /// The next value, or the beginning of a container. In a map, keys are values.
    #[inline]
    #[allow(clippy::should_implement_trait)] // an iterator cannot tell errors as simply
    pub fn next(&mut self) -> Result<Event> {
        let Some(open) = self.open.last_mut() else {
            return self.value(false);
        };
        open.left = open.left.wrapping_sub(1);
        if !open.is_map {
            open.last = self.found.list.len();
            return self.value(false);
        }
        if open.left % 2 == 1 {
            open.last = self.found.list.len();
            let key = self.value(true)?;
            self.note_key(key);
            return Ok(key);
        }
        if open.key != Key::Other || open.prng > 0 {
            return self.value_of_key();
        }
        self.value(false)
    }

    /// Takes note of what a key may mean.
    #[inline]
    fn note_key(&mut self, key: Event) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        open.key = Key::Other;
        match key {
            Event::Str(text) => match self.found.text_bytes(text) {
                b"shape" => open.key = Key::Shape,
                b"chunks" => open.key = Key::Chunks,
                b"data" if open.prng == 2 => open.prng = 3,
                text if text.starts_with(b"__") => {
                    open.is_chunked |= text == CHUNKED_MARKER.as_bytes();
                    // The first of two pairs, of which three values are still to come.
                    if text == PRNG_MARKER.as_bytes() && open.left == 3 {
                        open.prng = 1;
                    }
                }
                _ => {}
            },
            Event::Bin(_) => {}
            _ => open.has_other_keys = true,
        }
    }

    /// The value after a key that may have a meaning.
    #[inline(never)]
    fn value_of_key(&mut self) -> Result<Event> {
        let at = self.open.len() - 1;
        let kept = Kept {
            list: self.found.list.len(),
            arrays: self.found.arrays.len(),
            spans: self.found.spans.len(),
        };
        let key = self.open[at].key;
        if key != Key::Other && self.open[at].kept.is_none() {
            // From here on, until this container ends.
            self.open[at].kept = Some(kept);
            self.needing += 1;
        }
        let event = self.value(false)?;
        let open = &mut self.open[at];
        let map = matches!(event, Event::Map(_)).then_some(kept.list);
        match key {
            Key::Shape => open.shape = map,
            Key::Chunks => open.chunks = map,
            Key::Other => {}
        }
        open.prng = match (open.prng, event) {
            (1, Event::Str(_)) => 2,
            (3, Event::Array(_)) => 4,
            (0 | 4, _) => open.prng,
            _ => 0,
        };
        Ok(event)
    }

    /// Reads a value, or the header of a container.
    #[inline]
    fn value(&mut self, is_key: bool) -> Result<Event> {
        let offset = self.cursor.offset();
        let event = match self.cursor.head_inlined()? {
            Head::Nil => Event::Nil,
            Head::Bool(value) => Event::Bool(value),
            Head::Int(value) => Event::Int(value),
            Head::Uint(value) => Event::Uint(value),
            Head::Float(value) => Event::Float(value),
            Head::Str(len) => Event::Str(self.string(len, offset)?),
            Head::Bin(len) => Event::Bin(self.span(len)),
            Head::Array(len) => return self.enter(len, false, offset, is_key),
            Head::Map(len) => return self.enter(len, true, offset, is_key),
            Head::Ext(code, len) => self.ext(code, len, offset, is_key)?,
        };
        self.push(event)
    }

    #[inline]
    fn push(&mut self, event: Event) -> Result<Event> {
        if self.keep_all || self.needing > 0 {
            let list = &mut self.found.list;
            if list.len() == list.capacity() {
                list.try_reserve(list.len().max(16))?;
            }
            list.push(event);
        }
        Ok(event)
    }

    #[inline]
    fn string(&mut self, len: u32, offset: usize) -> Result<Text> {
        let all = &mut self.found.text;
        let start = all.len();
        self.cursor.read(len as usize, all)?;
        let text = &all[start..];
        if !text.is_ascii()
            && let Err(error) = std::str::from_utf8(text)
        {
            let reason = format!("a string is not UTF-8: {error}");
            all.truncate(start);
            return Err(Error::malformed(offset, reason));
        }
        Ok(Text { len, start })
    }

    #[inline]
    fn span(&mut self, len: u32) -> Span {
        let start = self.cursor.offset();
        self.cursor.skip(len as usize);
        Span { len, start }
    }

    fn enter(&mut self, len: u32, is_map: bool, offset: usize, is_key: bool) -> Result<Event> {
        if is_key {
            let kind = if is_map { "dict" } else { "list" };
            return Err(unhashable(offset, kind));
        }
        let limit = wire::MAX_DEPTH;
        if self.open.len() >= limit {
            return Err(Error::TooDeep { offset, limit });
        }
        let event = self.found.list.len();
        let container = Container { len, end: 0 };
        let begun = self.push(if is_map {
            Event::Map(container)
        } else {
            Event::List(container)
        })?;
        self.open.try_reserve(1)?;
        self.open.push(Open {
            event,
            offset,
            left: u64::from(len) * if is_map { 2 } else { 1 },
            is_map,
            last: event,
            key: Key::Other,
            is_chunked: false,
            has_other_keys: false,
            shape: None,
            chunks: None,
            kept: None,
            prng: 0,
            ext_keys: 0,
        });
        Ok(begun)
    }

    /// Ends the container that was begun last, whose values have all been read.
    #[inline]
    pub fn close(&mut self) -> Result<Closed> {
        // What has failed stays open, so that its path is told.
        let closed = match self.open.last() {
            None => return Ok(Closed::Same),
            Some(open) if open.is_chunked || open.kept.is_some() || open.prng == 4 => {
                self.close_special()?
            }
            Some(_) => Closed::Same,
        };
        if let Some(open) = self.open.pop()
            && (self.keep_all || self.needing > 0)
            && !matches!(closed, Closed::Array(_))
        {
            let end = self.found.list.len();
            if let Some(Event::List(it) | Event::Map(it)) = self.found.list.get_mut(open.event) {
                it.end = end;
                if closed == Closed::PrngKey {
                    self.found.list[open.event] = Event::PrngKey(Container { end, ..*it });
                }
            }
        }
        Ok(closed)
    }

    /// The same for a map that has keys with a meaning.
    #[inline(never)]
    fn close_special(&mut self) -> Result<Closed> {
        let Some(open) = self.open.last() else {
            return Ok(Closed::Same);
        };
        let array = if open.is_chunked {
            let (shape, chunks) = (open.shape, open.chunks);
            let joined = self
                .found
                .join_chunks(shape, chunks, open.has_other_keys, open.offset)?;
            Some(joined)
        } else {
            None
        };
        let is_key = open.prng == 4 && open.left == 0;
        let event = open.event;
        if let Some(kept) = open.kept {
            self.needing -= 1;
            if !self.keep_all && self.needing == 0 {
                self.found.list.truncate(kept.list);
                self.found.arrays.truncate(kept.arrays);
                self.found.spans.truncate(kept.spans);
            }
        }
        if let Some((dims, dtype, spans, offset)) = array {
            let number = self
                .found
                .add_array(dims.as_slice(), dtype, &spans, offset)?;
            if self.keep_all || self.needing > 0 {
                self.found.list.truncate(event);
                self.push(Event::Array(number))?;
            }
            return Ok(Closed::Array(number));
        }
        Ok(if is_key {
            Closed::PrngKey
        } else {
            Closed::Same
        })
    }

    /// Forgets arrays that nobody needs any more, before the next one.
    #[inline]
    fn forget_arrays(&mut self) {
        if !self.keep_all && self.needing == 0 {
            self.found.arrays.clear();
            self.found.spans.clear();
        }
    }

    #[inline]
    fn ext(&mut self, code: i8, len: u32, offset: usize, is_key: bool) -> Result<Event> {
        if code == EXT_NDARRAY && !is_key {
            return Ok(Event::Array(self.array(len)?));
        }
        self.rare_ext(code, len, offset, is_key)
    }

    #[inline(never)]
    fn rare_ext(&mut self, code: i8, len: u32, offset: usize, is_key: bool) -> Result<Event> {
        let event = match code {
            EXT_NDARRAY => return Err(unhashable(offset, "numpy.ndarray")),
            EXT_NPSCALAR => Event::Scalar(self.array(len)?),
            EXT_COMPLEX => {
                let end = self.cursor.limit(len as usize);
                let Complex(real, imaginary) = Complex::read(&mut self.cursor)?;
                self.cursor.unlimit(end);
                let number = number(self.found.complex.len())?;
                self.found.complex.try_reserve(1)?;
                self.found.complex.push((real, imaginary));
                Event::Complex(number)
            }
            _ => Event::Ext(code, self.span(len)),
        };
        let is_plain = |array: u32| {
            let name = self.found.array(array).dtype;
            PLAIN_SCALARS.iter().any(|plain| name.starts_with(plain))
        };
        if is_key
            && !matches!(event, Event::Scalar(array) if is_plain(array))
            && let Some(open) = self.open.last_mut()
        {
            open.ext_keys += 1;
            if open.ext_keys > MAX_EXT_KEYS {
                let reason = format!(
                    "a map with more than {MAX_EXT_KEYS} keys that are neither strings nor \
                     plain numbers"
                );
                return Err(Error::malformed(offset, reason));
            }
        }
        Ok(event)
    }

    /// Reads the body of an array, `[shape, dtype name, bytes]`, leniently as flax does.
    #[inline]
    fn array(&mut self, len: u32) -> Result<u32> {
        // Near the end nobody needs to be fast.
        let Some(ahead) = self.cursor.ahead() else {
            return self.other_array(len, None);
        };
        let same = |recent: &&RecentHeaders| {
            recent.len == len && ahead[..recent.bytes.len()] == recent.bytes[..]
        };
        let Some(recent) = self.recent.iter().find(same) else {
            return self.other_array(len, Some(ahead));
        };
        let headers = recent.bytes.len();
        let offset = self.cursor.offset();
        let span = Span {
            len: len - u32::try_from(headers).unwrap_or(len),
            start: offset + headers,
        };
        let entry = ArrayEntry {
            offset,
            ..recent.array
        };
        self.cursor.skip(len as usize);
        self.forget_arrays();
        self.found.add_entry(entry, &[span])
    }

    /// The same, header by header.
    #[inline(never)]
    fn other_array(&mut self, len: u32, ahead: Option<[u8; AHEAD]>) -> Result<u32> {
        let offset = self.cursor.offset();
        let end = self.cursor.limit(len as usize);
        let Head::Array(3) = self.cursor.head()? else {
            let reason = "an array must be [shape, dtype, bytes]";
            return Err(Error::malformed(offset, reason));
        };
        let dims = Dims::read(&mut self.cursor)?;
        // Old writers knew only one type for strings and bytes.
        let at = self.cursor.offset();
        let (Head::Str(name) | Head::Bin(name)) = self.cursor.head()? else {
            return Err(Error::malformed(at, "an array's dtype must be a string"));
        };
        let dtype = self.dtype(name as usize, at)?;
        let at = self.cursor.offset();
        let (Head::Str(nbytes) | Head::Bin(nbytes)) = self.cursor.head()? else {
            return Err(Error::malformed(
                at,
                "an array's data must be a byte string",
            ));
        };
        let span = self.span(nbytes);
        self.cursor.finish()?;
        self.cursor.unlimit(end);
        self.forget_arrays();
        let array = self
            .found
            .add_array(dims.as_slice(), dtype, &[span], offset)?;
        let headers = span.start - offset;
        if let Some(bytes) = ahead.as_ref().and_then(|ahead| ahead.get(..headers)) {
            self.remember(RecentHeaders {
                bytes: SmallVec::from_slice(bytes),
                len,
                array: self.found.arrays[array as usize],
            });
        }
        Ok(array)
    }

    fn remember(&mut self, headers: RecentHeaders) {
        if self.recent.len() < RECENT {
            self.recent.push(headers);
        } else {
            self.recent[self.oldest] = headers;
            self.oldest = (self.oldest + 1) % RECENT;
        }
    }

    /// The number of the name of a dtype.
    #[inline]
    fn dtype(&mut self, len: usize, offset: usize) -> Result<u32> {
        if len > MAX_DTYPE_NAME {
            let mut name = Vec::new();
            self.cursor.read(MAX_DTYPE_NAME, &mut name)?;
            return Err(no_dtype(&name, offset));
        }
        // Read to where strings go, and taken back from there.
        let start = self.found.text.len();
        self.cursor.read(len, &mut self.found.text)?;
        let name = &self.found.text[start..];
        let last = self.found.dtypes.get(self.last_dtype);
        if last.is_none_or(|last| last != name) {
            // A tree has a handful. More are looked up in a table.
            const FEW: usize = 8;
            let dtypes = &mut self.found.dtypes;
            let known = dtypes.iter().take(FEW).position(|known| known == name);
            let known = known.or_else(|| self.dtype_numbers.get(name).map(|it| *it as usize));
            self.last_dtype = known.unwrap_or(dtypes.len());
            if known.is_none() {
                if dtypes.len() >= FEW {
                    self.dtype_numbers
                        .insert(name.to_vec(), number(dtypes.len())?);
                }
                dtypes.push(name.to_vec());
            }
        }
        self.found.text.truncate(start);
        number(self.last_dtype)
    }
}

impl Events {
    /// Adds an array to the list.
    #[inline]
    pub(super) fn add_array(
        &mut self,
        dims: &[isize],
        dtype: u32,
        spans: &[Span],
        offset: usize,
    ) -> Result<u32> {
        self.dims.try_reserve(dims.len())?;
        let entry = ArrayEntry {
            offset,
            dims_start: self.dims.len(),
            spans_start: 0,
            spans: 0,
            dtype,
            ndim: u8::try_from(dims.len()).map_err(|_| too_many())?,
        };
        self.dims.extend_from_slice(dims);
        self.add_entry(entry, spans)
    }

    /// Adds an array with its own spans and the dimensions of another one.
    #[inline]
    fn add_entry(&mut self, entry: ArrayEntry, spans: &[Span]) -> Result<u32> {
        self.arrays.try_reserve(1)?;
        self.spans.try_reserve(spans.len())?;
        let array = number(self.arrays.len())?;
        self.arrays.push(ArrayEntry {
            spans_start: self.spans.len(),
            spans: number(spans.len())?,
            ..entry
        });
        self.spans.extend_from_slice(spans);
        Ok(array)
    }
}

/// The error for a dtype that there is not.
#[must_use]
pub fn no_dtype(name: &[u8], offset: usize) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::malformed(
        offset,
        format!("{name:?} is no dtype that an array can have"),
    )
}

fn unhashable(offset: usize, kind: &str) -> Error {
    let reason = format!("a map key cannot be hashed: unhashable type: '{kind}'");
    Error::malformed(offset, reason)
}

#[inline]
fn number(index: usize) -> Result<u32> {
    u32::try_from(index).map_err(|_| too_many())
}

#[cold]
fn too_many() -> Error {
    Error::malformed(0, "more than 2**32 values of one kind")
}

/// The path to the value that is being read.
fn path(found: &Events, open: &[Open]) -> Path {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        Events::read(&bytes.to_vec(), || Ok(()))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn errors_tell_the_path() {
        // {"a": [0, {"b": <reserved byte>}]}
        let text = error(b"\x81\xa1a\x92\x00\x81\xa1b\xc1");
        assert!(text.ends_with("(at ./a/1/b)"), "{text}");
        // A key itself has no path below its map.
        let text = error(b"\x81\xa1a\x81\xc1\x00");
        assert!(text.ends_with("(at ./a)"), "{text}");
        assert!(error(b"\x91\x90\x00").ends_with("(at .)"));
    }

    #[test]
    fn keys_with_foreseeable_hashes_are_few() {
        let map = |count: u16| {
            let mut bytes = vec![0xde];
            bytes.extend_from_slice(&count.to_be_bytes());
            for index in 0..count {
                let [high, low] = index.to_be_bytes();
                // ext 2 of 5 bytes: [high, low]; nil
                bytes.extend_from_slice(&[0xc7, 5, 2, 0x92, 0xcc, high, 0xcc, low, 0xc0]);
            }
            bytes
        };
        assert!(Events::read(&map(1024), || Ok(())).is_ok());
        assert!(error(&map(1025)).contains("more than 1024 keys"));
    }

    #[test]
    fn whoever_is_asked_can_stop_the_work() {
        let mut bytes = vec![0xdd];
        bytes.extend_from_slice(&100_000_u32.to_be_bytes());
        bytes.resize(bytes.len() + 100_000, 0xc0);
        let mut asked = 0;
        let stopped = Events::read(&bytes, || {
            asked += 1;
            if asked == 3 {
                Err(Error::Stopped)
            } else {
                Ok(())
            }
        });
        assert!(matches!(stopped.unwrap_err().split().0, Error::Stopped));
    }
}
