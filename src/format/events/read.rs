//! Reads headers to events, one by one, in time linear in the input; no byte is read twice.
//!
//! A map shows only by its last key whether it is an array in chunks. So from its first key with a
//! meaning on, events are kept until the map ends.

use std::collections::HashMap;
use std::ops::Range;

use super::recent::RecentHeaders;
use super::{Container, Event, Events, Span, Text};
use crate::base::source::Source;
use crate::format::wire::{self, CHUNKED_MARKER, Cursor, Head, PRNG_MARKER};
use crate::{Error, Result};

impl Events {
    /// Reads a source, which must be one value.
    pub fn read(source: &dyn Source) -> Result<Self> {
        Self::read_part(source, 0..source.len())
    }

    /// Reads a part of a source, which must be one value.
    ///
    /// # Panics
    /// If the part exceeds the source.
    pub fn read_part(source: &dyn Source, part: Range<usize>) -> Result<Self> {
        let mut reader = Reader::within(source, part.clone());
        reader.read(part)?;
        Ok(reader.events)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    Same,
    Array(u32),
    PrngKey,
}

/// The events of a small message.
const FEW: usize = 32;

/// Reads events one by one; the caller closes containers.
pub struct Reader<'a> {
    /// Also reads headers around a part.
    pub cursor: Cursor<'a>,
    pub(super) events: Events,
    pub(super) dtype_numbers: HashMap<Vec<u8>, usize>,
    pub(super) last_dtype: usize,
    pub(super) recent: RecentHeaders,
    pub(super) open: Vec<Open>,
    /// Whether all events are kept, or only those that an open container needs.
    pub(super) keep_all: bool,
    pub(super) needing: usize,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a dyn Source) -> Self {
        Self::within(source, 0..source.len())
    }

    /// Reads a part of a source, which must be one value.
    ///
    /// # Panics
    /// If the part exceeds the source.
    pub fn within(source: &'a dyn Source, part: Range<usize>) -> Self {
        Self {
            cursor: Cursor::within(source, part),
            events: Events {
                text: Vec::with_capacity(512),
                ..Events::default()
            },
            dtype_numbers: HashMap::new(),
            last_dtype: usize::MAX,
            recent: RecentHeaders::new(),
            open: Vec::with_capacity(8),
            keep_all: false,
            needing: 0,
        }
    }

    /// Continues with another part, which must be one value.
    ///
    /// # Panics
    /// If the part exceeds the source, or a value is unfinished.
    pub fn seek(&mut self, part: Range<usize>) {
        assert!(self.open.is_empty() && self.needing == 0);
        self.events.text.clear();
        self.cursor.seek(part);
    }

    /// Reads another part, which must be one value, also after an error.
    ///
    /// # Panics
    /// If the part exceeds the source.
    pub fn read(&mut self, part: Range<usize>) -> Result<&Events> {
        self.open.clear();
        self.needing = 0;
        self.events.clear();
        self.cursor.seek(part);
        while self.keep_next()? {}
        Ok(&self.events)
    }

    /// Keeps the next event; returns whether more follow in the part.
    #[inline]
    pub fn keep_next(&mut self) -> Result<bool> {
        if !self.keep_all {
            self.keep_all = true;
            self.events.list.try_reserve(FEW)?; // at once, since most messages are small
            self.events.arrays.try_reserve(FEW / 2)?;
            self.events.spans.try_reserve(FEW / 2)?;
        }
        self.next()?;
        while self.open.last().is_some_and(|open| open.left == 0) {
            self.close()?;
        }
        if self.open.is_empty() {
            self.finish()?;
        }
        Ok(!self.open.is_empty())
    }

    #[inline]
    pub fn offset(&self) -> usize {
        self.cursor.offset()
    }

    #[inline]
    pub fn events(&self) -> &Events {
        &self.events
    }

    pub fn finish(&self) -> Result<()> {
        self.cursor.finish()
    }

    /// The next value, or the start of a container. In a map, keys are values.
    #[inline]
    #[allow(clippy::should_implement_trait)] // an iterator makes errors harder
    pub fn next(&mut self) -> Result<Event> {
        let Some(open) = self.open.last_mut() else {
            return self.value(false);
        };
        open.left = open.left.wrapping_sub(1);
        if !open.is_map {
            return self.value(false);
        }
        if open.left % 2 == 1 {
            let key = self.value(true)?;
            self.note_key(key);
            return Ok(key);
        }
        if open.key != Key::Other || open.prng > 0 {
            return self.value_of_key();
        }
        self.value(false)
    }

    /// Skips the next value; returns whether it is the expected string.
    #[inline]
    pub fn next_is(&mut self, expected: &str) -> Result<bool> {
        if !self.keep_all
            && self.needing == 0
            && let Some(open) = self.open.last_mut()
            && open.is_map
            && open.left > 0
            && open.left.is_multiple_of(2)
            && self.cursor.skip_text(expected)
        {
            open.left -= 1;
            open.note_key(expected.as_bytes());
            return Ok(true);
        }
        let Event::Str(text) = self.next()? else {
            return Ok(false);
        };
        Ok(self.events.text_bytes(text) == expected.as_bytes())
    }

    #[inline]
    fn note_key(&mut self, key: Event) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        open.key = Key::Other;
        match key {
            Event::Str(text) => open.note_key(self.events.text_bytes(text)),
            Event::Bin(_) => {}
            _ => open.has_other_keys = true,
        }
    }

    #[inline(never)]
    fn value_of_key(&mut self) -> Result<Event> {
        let at = self.open.len() - 1;
        let kept = Kept {
            list: self.events.list.len(),
            arrays: self.events.arrays.len(),
            spans: self.events.spans.len(),
        };
        let key = self.open[at].key;
        if key != Key::Other && self.open[at].kept.is_none() {
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
            (3, Event::Map(_)) => 3,
            (0 | 4, _) => open.prng,
            _ => 0,
        };
        Ok(event)
    }

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
            let list = &mut self.events.list;
            if list.len() == list.capacity() {
                list.try_reserve(list.len().max(16))?;
            }
            list.push(event);
        }
        Ok(event)
    }

    #[inline]
    fn string(&mut self, len: u32, offset: usize) -> Result<Text> {
        let all = &mut self.events.text;
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
    pub(super) fn span(&mut self, len: u32) -> Span {
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
        let event = self.events.list.len();
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

    #[inline]
    pub fn close(&mut self) -> Result<Closed> {
        let Some(open) = self.open.pop() else {
            return Ok(Closed::Same);
        };
        let mut closed = Closed::Same;
        if open.is_chunked || open.kept.is_some() || open.prng == 4 {
            closed = self.close_special(&open)?;
        }
        if matches!(closed, Closed::Array(_)) {
            if let Some(outer) = self.open.last_mut().filter(|outer| outer.prng == 3) {
                outer.prng = 4;
            }
        } else if self.keep_all || self.needing > 0 {
            let end = self.events.list.len();
            if let Some(event) = self.events.list.get_mut(open.event)
                && let Event::List(container) | Event::Map(container) = event
            {
                container.end = end;
                if closed == Closed::PrngKey {
                    *event = Event::PrngKey(*container);
                }
            }
        }
        Ok(closed)
    }

    #[inline(never)]
    fn close_special(&mut self, open: &Open) -> Result<Closed> {
        let joined = open.is_chunked.then(|| self.events.join_chunks(open));
        let joined = joined.transpose()?;
        if let Some(kept) = open.kept {
            self.needing -= 1;
            if !self.keep_all && self.needing == 0 {
                self.events.list.truncate(kept.list);
                self.events.arrays.truncate(kept.arrays);
                self.events.spans.truncate(kept.spans);
            }
        }
        if let Some((dims, dtype, spans)) = joined {
            let events = &mut self.events;
            let number = events.add_array(dims.as_slice(), dtype, &spans, open.offset)?;
            if self.keep_all || self.needing > 0 {
                self.events.list.truncate(open.event);
                self.push(Event::Array(number))?;
            }
            return Ok(Closed::Array(number));
        }
        let is_key = open.prng == 4 && open.left == 0;
        Ok(if is_key {
            Closed::PrngKey
        } else {
            Closed::Same
        })
    }
}

/// A container around the current value.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_keys_mean_the_same() {
        // {"a": a typed key, "b": "c", "shape": {}}, where "b" and "c" have wider headers.
        let data =
            b"\x83\xa1a\x82\xac__prng_key__\xa1x\xa4data\xc7\x0c\x01\x93\x91\x01\xa5uint8\xc4\x01z\
            \xd9\x01b\xd9\x01c\xa5shape\x80";
        let padded = [&data[..], &[0xc0; 40]].concat();
        for source in [data.to_vec(), padded] {
            let read = |by_key: bool| {
                let mut reader = Reader::within(&source, 0..data.len());
                let mut found = Vec::new();
                let mut next = |reader: &mut Reader<'_>, text: &str| {
                    let is_same = if by_key {
                        reader.next_is(text).unwrap()
                    } else {
                        let Event::Str(key) = reader.next().unwrap() else {
                            panic!("no string")
                        };
                        reader.events().text(key) == text
                    };
                    found.push((is_same, reader.offset()));
                };
                reader.next().unwrap();
                next(&mut reader, "a");
                reader.next().unwrap();
                next(&mut reader, "__prng_key__");
                next(&mut reader, "y");
                next(&mut reader, "data");
                reader.next().unwrap();
                let key = reader.close().unwrap();
                next(&mut reader, "b");
                next(&mut reader, "c");
                next(&mut reader, "shape");
                reader.next().unwrap();
                let closed = (reader.close().unwrap(), reader.close().unwrap());
                reader.finish().unwrap();
                (found, key, closed)
            };
            assert_eq!(read(true), read(false));
            assert_eq!(read(true).1, Closed::PrngKey);
            assert!(read(true).0.iter().filter(|(is_same, _)| !is_same).count() == 1);
        }
    }
}
