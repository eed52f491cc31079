//! Compares headers in the data with the index before a leaf is read, so that a reader by index and
//! a reader by headers see the same tree.

use std::collections::BTreeSet;

use super::heads::InOrder;
use super::{Catalog, LeafSpan};
use crate::events::{ArrayEvent, Event, Events, itemsize};
use crate::source::Source;
use crate::structure::{LeafKind, RECORD_KEY, ROOT_KEY};
use crate::watch::Watch;
use crate::wire::{Cursor, Head};
use crate::{Error, Result, grow};

const CHECK_LEAVES: usize = 1 << 10;

/// A source that reads more than this in one request is slow to answer.
const NEAR_BYTES: usize = 64 << 10;

impl Catalog {
    pub(super) fn is_indexed(&self) -> bool {
        !self.checked.is_empty()
    }

    /// Compares a value's keys and containers with the data.
    ///
    /// In salvage, and where requests are slow, only compares the headers right before the value.
    pub fn check_place(&self, source: &dyn Source, value: usize) -> Result<()> {
        let done = self.check_around(&self.in_order(source), value);
        done.map_err(|error| self.at(value, error))
    }

    fn in_order<'a>(&'a self, source: &'a dyn Source) -> InOrder<'a> {
        InOrder {
            source,
            window: &self.window,
        }
    }

    fn check_around(&self, source: &dyn Source, value: usize) -> Result<()> {
        let is_near = source.memory().is_some() || source.near() <= NEAR_BYTES;
        let mut at = value;
        if self.is_salvage && !self.entries[value].is_leaf {
            return Ok(());
        }
        loop {
            self.check_head(source, at)?;
            if at == 0 || !is_near || self.is_salvage {
                return Ok(());
            }
            at = self.entries[at].parent;
        }
    }

    /// Reads a leaf and compares it and its path with the index.
    ///
    /// # Panics
    /// If the value is not a leaf.
    pub fn events_of(&self, source: &dyn Source, value: usize) -> Result<Events> {
        let leaf = self.leaf(value).expect("the value is a leaf");
        let near = self.in_order(source);
        self.check_around(&near, value)
            .and_then(|()| self.read_leaf(&near, leaf))
            .map_err(|error| self.at(value, error))
    }

    /// Compares a leaf and its path with the index, once.
    ///
    /// # Panics
    /// If the value is not a leaf.
    pub fn check_leaf(&self, source: &dyn Source, value: usize) -> Result<()> {
        let leaf = self.leaf(value).expect("the value is a leaf");
        if self.read.has(leaf) {
            return Ok(());
        }
        if self.is_plain(&self.in_order(source), value, leaf).is_ok() {
            self.checked.add(leaf);
            self.check_place(source, value)?;
        } else {
            self.events_of(source, value)?;
        }
        self.read.add(leaf);
        Ok(())
    }

    /// Quickly checks numbers, strings, plain arrays and their heads. For other leaves an error is
    /// inconclusive.
    fn is_plain(&self, source: &dyn Source, value: usize, leaf: usize) -> Result<()> {
        let LeafSpan {
            region, start, end, ..
        } = self.leaves[leaf];
        let mut cursor = Cursor::within(source, region..source.len());
        self.compare_head(&mut cursor, leaf, self.first_in_head(value))?;
        expect(cursor.offset() == start)?;
        let head = cursor.head()?;
        let body = cursor.offset();
        let payload = match (self.kind(leaf), head) {
            (LeafKind::None, Head::Nil)
            | (LeafKind::Bool, Head::Bool(_))
            | (LeafKind::Int, Head::Int(_) | Head::Uint(_))
            | (LeafKind::Float, Head::Float(_)) => 0,
            (LeafKind::Bytes, Head::Bin(len)) => len,
            (LeafKind::Str, Head::Str(len)) => {
                let mut text = Vec::new();
                cursor.read(len as usize, &mut text)?;
                expect(std::str::from_utf8(&text).is_ok())?;
                0
            }
            (LeafKind::Array(dtype, shape), Head::Ext(1, len)) => {
                expect(body + len as usize == end)?;
                let elements = compare_array(&mut cursor, dtype, shape)?;
                let Head::Bin(len) = cursor.head()? else {
                    return expect(false);
                };
                let size = itemsize(dtype).map(|size| elements.checked_mul(size as u64));
                expect(size == Some(Some(len.into())))?;
                len
            }
            _ => return expect(false),
        };
        expect(cursor.offset() + payload as usize == end)
    }

    pub(super) fn read_leaf(&self, source: &dyn Source, leaf: usize) -> Result<Events> {
        let LeafSpan { start, end, .. } = self.leaves[leaf];
        let events = Events::read_part(source, start..end)?;
        let kind = self.kind(leaf);
        // Leaves found by headers may change in place, except array shapes.
        let is_free = !self.is_indexed() && !matches!(kind, LeafKind::Array(..));
        if is_free || is_kind(&events, kind) {
            return Ok(events);
        }
        Err(Error::malformed(start, OTHER_LEAF))
    }

    /// Returns the leaves selected by `is_selected` that differ from the index. A number after the
    /// last leaf stands for the bytes up to the record.
    pub fn unlike_index(
        &self,
        source: &dyn Source,
        is_selected: impl Fn(usize) -> bool,
        watch: &dyn Watch,
    ) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        if !self.is_indexed() {
            return Ok(found);
        }
        let near = self.in_order(source);
        for (value, entry) in self.entries.iter().enumerate() {
            let is_last = value + 1 == self.entries.len();
            if !entry.is_leaf && !is_last {
                continue;
            }
            if value.is_multiple_of(CHECK_LEAVES) {
                watch.check()?;
            }
            let is_plain = entry.is_leaf && self.is_plain(&near, value, entry.head).is_ok();
            if is_plain {
                self.checked.add(entry.head);
            } else if entry.is_leaf && is_selected(entry.head) {
                let done = self.check_head(&near, value);
                let done = done.and_then(|()| self.read_leaf(&near, entry.head));
                let done = done.and_then(|events| expect(has_shapes(&events)));
                if is_damaged(done)? {
                    found.push(entry.head);
                }
            }
            if is_last && is_selected(self.len()) && is_damaged(self.check_rest(&near))? {
                found.push(self.len());
            }
        }
        Ok(found)
    }

    /// The dtypes of arrays inside leaves: typed keys, lists, maps with arbitrary keys, unknown
    /// kinds. Skips unreadable leaves.
    pub fn inner_dtypes(&self, source: &dyn Source, watch: &dyn Watch) -> Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for (number, leaf) in self.leaves.iter().enumerate() {
            if !matches!(
                self.kinds[leaf.kind],
                LeafKind::PrngKey(..) | LeafKind::Container | LeafKind::Other
            ) {
                continue;
            }
            watch.check()?;
            let events = match self.read_leaf(source, number) {
                Ok(events) => events,
                Err(error) if error.is_no_damage() => return Err(error),
                Err(_) => continue,
            };
            for event in events.as_slice() {
                if let Event::Array(inner) | Event::Scalar(inner) = event {
                    let name = String::from_utf8_lossy(events.array(*inner).dtype);
                    if !found.contains(&*name) {
                        found.insert(grow::to_string(&name)?);
                    }
                }
            }
        }
        Ok(found)
    }

    fn check_head(&self, source: &dyn Source, value: usize) -> Result<()> {
        let head = self.entries[value].head;
        if self.checked.has(head) {
            return Ok(());
        }
        if head == self.len() {
            return self.check_rest(source);
        }
        let LeafSpan { region, start, .. } = self.leaves[head];
        let mut cursor = Cursor::within(source, region..source.len());
        let done = self.compare_head(&mut cursor, head, self.first_in_head(value));
        if differs(done)? || cursor.offset() != start {
            return Err(other_head(region));
        }
        self.checked.add(head);
        Ok(())
    }

    fn check_rest(&self, source: &dyn Source) -> Result<()> {
        let head = self.len();
        if self.checked.has(head) {
            return Ok(());
        }
        let last = self.entries.len() - 1;
        let first = if self.entries[last].is_leaf {
            last + 1
        } else {
            self.first_in_head(last)
        };
        let mut cursor = Cursor::within(source, self.rest.start..source.len());
        let done = self.compare_head(&mut cursor, head, first);
        let done = done.and_then(|()| {
            expect(cursor.offset() == self.record_key)?;
            let len = compare_record_key(&mut cursor)?;
            expect(cursor.offset() == self.rest.end)?;
            expect(source.len() - self.rest.end == len as usize)
        });
        if differs(done)? {
            return Err(other_head(self.rest.start));
        }
        self.checked.add(head);
        Ok(())
    }

    fn first_in_head(&self, value: usize) -> usize {
        let before = self.entries[..value].iter().rev();
        value - before.take_while(|entry| !entry.is_leaf).count()
    }

    fn compare_head(&self, cursor: &mut Cursor<'_>, head: usize, first: usize) -> Result<()> {
        for (value, entry) in self.entries.iter().enumerate().skip(first) {
            if entry.head != head {
                break;
            }
            if value > 0 {
                compare_text(cursor, self.key(value))?;
            } else if entry.is_leaf {
                // A map wraps a tree that is a leaf.
                expect(cursor.head()? == Head::Map(2))?;
                compare_text(cursor, ROOT_KEY)?;
            }
            if !entry.is_leaf {
                let more = u32::from(value == 0);
                let expected = entry.len.checked_add(more).map(Head::Map);
                expect(Some(cursor.head()?) == expected)?;
            }
        }
        Ok(())
    }

    fn at(&self, value: usize, error: Error) -> Error {
        if is_of_format(&error) {
            return Error::at(self.path_of(value), error);
        }
        error
    }

    pub(super) fn least_head(&self, value: usize) -> u64 {
        let entry = &self.entries[value];
        let key = match (value, entry.is_leaf) {
            (0, true) => 2 + ROOT_KEY.len(),
            (0, false) => 0,
            _ => 1 + self.key(value).len(),
        };
        (key + usize::from(!entry.is_leaf)) as u64
    }
}

pub(super) const OTHER_LEAF: &str = "the leaf does not match the index of the file";

fn other_head(offset: usize) -> Error {
    let reason = "the keys and containers do not match the index of the file";
    Error::malformed(offset, reason)
}

fn expect(is_same: bool) -> Result<()> {
    if is_same {
        Ok(())
    } else {
        Err(Error::Structure("unexpected header".into()))
    }
}

pub(super) fn compare_record_key(cursor: &mut Cursor<'_>) -> Result<u32> {
    compare_text(cursor, RECORD_KEY)?;
    match cursor.head()? {
        Head::Bin(len) => Ok(len),
        _ => Err(Error::Structure("unexpected header".into())),
    }
}

fn compare_text(cursor: &mut Cursor<'_>, key: &str) -> Result<()> {
    let Head::Str(len) = cursor.head()? else {
        return expect(false);
    };
    expect(len as usize == key.len())?;
    let mut text = Vec::new();
    cursor.read(key.len(), &mut text)?;
    expect(text == key.as_bytes())
}

fn compare_array(cursor: &mut Cursor<'_>, dtype: &str, shape: &[u64]) -> Result<u64> {
    expect(cursor.head()? == Head::Array(3))?;
    expect(matches!(cursor.head()?, Head::Array(len) if len as usize == shape.len()))?;
    let mut elements: u64 = 1;
    for dim in shape {
        expect(cursor.head()? == Head::Uint(*dim))?;
        elements = elements.checked_mul(*dim).ok_or(Error::OutOfMemory)?;
    }
    compare_text(cursor, dtype)?;
    Ok(elements)
}

/// Maps a mismatch to true; damage to a gzip stream remains an error.
fn differs(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(false),
        Err(error) if is_of_format(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Maps a mismatch or failed inflation to true; other errors remain.
fn is_damaged(done: Result<()>) -> Result<bool> {
    match done {
        Err(Error::Gzip(_) | Error::GzipTruncated) => Ok(true),
        done => differs(done),
    }
}

fn is_of_format(error: &Error) -> bool {
    matches!(error, Error::Structure(_)) || error.offset().is_some()
}

fn has_shapes(events: &Events) -> bool {
    events.as_slice().iter().all(|event| match event {
        Event::Array(number) | Event::Scalar(number) => events.array(*number).shape().is_some(),
        _ => true,
    })
}

fn is_kind(events: &Events, kind: &LeafKind) -> bool {
    let list = events.as_slice();
    match (kind, list) {
        (LeafKind::Other, _) | (LeafKind::Container, [Event::List(_) | Event::Map(_), ..]) => true,
        (LeafKind::Array(dtype, shape), [Event::Array(number)]) => {
            is_array(&events.array(*number), dtype, shape)
        }
        (LeafKind::Scalar(dtype), [Event::Scalar(number)]) => {
            is_array(&events.array(*number), dtype, &[])
        }
        (
            LeafKind::PrngKey(name, shape),
            [
                Event::PrngKey(_),
                _,
                Event::Str(found),
                _,
                Event::Array(number),
            ],
        ) => events.text(*found) == name && has_shape(&events.array(*number), shape),
        (kind, [event]) => plain_kind(event).as_ref() == Some(kind),
        _ => false,
    }
}

/// Returns the kind of a leaf of one event that is not an array.
pub(super) fn plain_kind(event: &Event) -> Option<LeafKind> {
    Some(match event {
        Event::Nil => LeafKind::None,
        Event::Bool(_) => LeafKind::Bool,
        Event::Int(_) | Event::Uint(_) => LeafKind::Int,
        Event::Float(_) => LeafKind::Float,
        Event::Complex(_) => LeafKind::Complex,
        Event::Str(_) => LeafKind::Str,
        Event::Bin(_) => LeafKind::Bytes,
        Event::Ext(..) => LeafKind::Ext,
        _ => return None,
    })
}

fn is_array(found: &ArrayEvent<'_>, dtype: &str, shape: &[u64]) -> bool {
    found.dtype == dtype.as_bytes() && has_shape(found, shape)
}

fn has_shape(found: &ArrayEvent<'_>, shape: &[u64]) -> bool {
    if let Some(found) = found.shape() {
        return found
            .iter()
            .map(|dim| *dim as u64)
            .eq(shape.iter().copied());
    }
    let dims = found.dims.iter().map(|dim| u64::try_from(*dim).ok());
    let elements = shape
        .iter()
        .try_fold(1, |all: u64, dim| all.checked_mul(*dim));
    let fits = match elements {
        Some(0) => found.nbytes() == 0,
        Some(elements) => (found.nbytes() as u64).is_multiple_of(elements),
        None => false,
    };
    !found.has_known_size() && fits && dims.eq(shape.iter().copied().map(Some))
}
