//! Comparing the headers in the data with what the index says of them.
//!
//! An index is believed only as far as nobody reads what it tells of. Whoever reads a leaf finds out
//! whether the keys that lead to it, its containers and its kind are those of the index, so that data
//! mean the same by their index and by their headers.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Catalog, Place};
use crate::events::{ArrayEvent, Event, Events, itemsize};
use crate::raw::RawBytes;
use crate::source::{Source, read_to};
use crate::structure::{LeafKind, RECORD_KEY, ROOT_KEY};
use crate::watch::Watch;
use crate::wire::{Cursor, Head};
use crate::{Error, Result, grow};

/// After so many leaves the caller is asked whether to go on.
const CHECK_LEAVES: usize = 1 << 10;

/// A source that reads more than this rather than make one more request is slow to answer.
const NEAR_BYTES: usize = 64 << 10;

/// Which heads are known to be as the index has them: the bytes before each leaf, and those before
/// the record.
#[derive(Debug, Default)]
pub(super) struct Checked(Vec<AtomicU64>);

impl Checked {
    /// None of so many.
    pub(super) fn none(heads: usize) -> Result<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(heads.div_ceil(64))?;
        words.resize_with(heads.div_ceil(64), AtomicU64::default);
        Ok(Self(words))
    }

    fn has(&self, head: usize) -> bool {
        // Of data without an index nothing is to be compared.
        let word = self.0.get(head / 64);
        word.is_none_or(|word| word.load(Ordering::Relaxed) & (1 << (head % 64)) != 0)
    }

    fn add(&self, head: usize) {
        if let Some(word) = self.0.get(head / 64) {
            word.fetch_or(1 << (head % 64), Ordering::Relaxed);
        }
    }
}

impl Catalog {
    /// Whether an index has told of the leaves, and not their headers.
    pub(super) fn is_indexed(&self) -> bool {
        !self.checked.0.is_empty()
    }

    /// Compares the keys that lead to a value, and the containers around it, with the data.
    ///
    /// Where each request takes long, only those that stand right before it: the others are
    /// anywhere before. The same in salvage, as another leaf begins with the others, and its
    /// checksum covers them.
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

    /// Reads what a leaf is, and compares that and the keys that lead to it with the index.
    ///
    /// # Panics
    /// If the value is no leaf.
    pub fn events_of(&self, source: &dyn Source, value: usize) -> Result<Events> {
        let leaf = self.leaf(value).expect("the value is a leaf");
        let near = self.in_order(source);
        self.check_around(&near, value)
            .and_then(|()| self.read_leaf(&near, leaf))
            .map_err(|error| self.at(value, error))
    }

    /// Compares a leaf and the keys that lead to it with the index, unless that has been done.
    ///
    /// # Panics
    /// If the value is no leaf.
    pub fn check_leaf(&self, source: &dyn Source, value: usize) -> Result<()> {
        let leaf = self.leaf(value).expect("the value is a leaf");
        if self.read.has(leaf) {
            return Ok(());
        }
        if self.is_plain(&self.in_order(source), value, leaf).is_ok() {
            self.checked.add(leaf);
            self.check_place(source, value)?;
        } else {
            self.events_of(source, value)?; // which tells what is wrong
        }
        self.read.add(leaf);
        Ok(())
    }

    /// Compares a leaf and its head, without events. An error tells nothing of other leaves than
    /// numbers, strings and arrays as most are.
    fn is_plain(&self, source: &dyn Source, value: usize, leaf: usize) -> Result<()> {
        let Place {
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
        let Place { start, end, .. } = self.leaves[leaf];
        let events = Events::read_part(source, start..end)?;
        let kind = self.kind(leaf);
        // What was found in the headers may change, and then only arrays have to be what they were.
        let is_free = !self.is_indexed() && !matches!(kind, LeafKind::Array(..));
        if is_free || is_kind(&events, kind) {
            return Ok(events);
        }
        let reason = "the leaf is not what the index of the file has there";
        Err(Error::malformed(start, reason))
    }

    /// Which leaves are not what the index has there, as far as they are asked for; the number
    /// after them is that of what lies between the last one and the record.
    pub fn unlike_index(
        &self,
        source: &dyn Source,
        is_asked: impl Fn(usize) -> bool,
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
            } else if entry.is_leaf && is_asked(entry.head) {
                let done = self.check_head(&near, value);
                let done = done.and_then(|()| self.read_leaf(&near, entry.head));
                let done = done.and_then(|events| expect(has_shapes(&events)));
                if is_damaged(done)? {
                    found.push(entry.head);
                }
            }
            if is_last && is_asked(self.len()) && is_damaged(self.check_rest(&near))? {
                found.push(self.len());
            }
        }
        Ok(found)
    }

    /// The names of the dtypes of arrays inside of leaves: of typed keys, lists, maps with any keys, and
    /// kinds that are not known. Leaves that cannot be read are left out.
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

    /// Compares the head that a value is in.
    fn check_head(&self, source: &dyn Source, value: usize) -> Result<()> {
        let head = self.entries[value].head;
        if self.checked.has(head) {
            return Ok(());
        }
        if head == self.len() {
            return self.check_rest(source);
        }
        let Place { region, start, .. } = self.leaves[head];
        let mut cursor = Cursor::within(source, region..source.len());
        let done = self.compare_head(&mut cursor, head, self.first_in_head(value));
        if differs(done)? || cursor.offset() != start {
            return Err(other_head(region));
        }
        self.checked.add(head);
        Ok(())
    }

    /// Compares what lies between the last leaf and the record.
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

    /// The first value whose key is in the head that a value is in.
    fn first_in_head(&self, value: usize) -> usize {
        let before = self.entries[..value].iter().rev();
        value - before.take_while(|entry| !entry.is_leaf).count()
    }

    /// Compares keys and headers of containers with the values from `first` on.
    fn compare_head(&self, cursor: &mut Cursor<'_>, head: usize, first: usize) -> Result<()> {
        for (value, entry) in self.entries.iter().enumerate().skip(first) {
            if entry.head != head {
                break;
            }
            if value > 0 {
                compare_text(cursor, self.key(value))?;
            } else if entry.is_leaf {
                // A tree that is a leaf stands in a map of its own.
                expect(cursor.head()? == Head::Map(2))?;
                compare_text(cursor, ROOT_KEY)?;
            }
            if !entry.is_leaf {
                let more = u32::from(value == 0); // the record
                let expected = entry.len.checked_add(more).map(Head::Map);
                expect(Some(cursor.head()?) == expected)?;
            }
        }
        Ok(())
    }

    /// An error with the path of a value.
    fn at(&self, value: usize, error: Error) -> Error {
        if !is_of_format(&error) {
            return error;
        }
        let (error, _) = error.split();
        Error::At {
            path: self.path_of(value),
            error: Box::new(error),
        }
    }

    /// How many bytes the headers have at least that lead to a value from the one before it.
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

/// What is wrong with a head.
fn other_head(offset: usize) -> Error {
    let reason = "the keys and containers are not what the index of the file has there";
    Error::malformed(offset, reason)
}

fn expect(is_same: bool) -> Result<()> {
    if is_same {
        Ok(())
    } else {
        Err(Error::Structure("another header".into()))
    }
}

/// Goes past the key of a record and the header of the byte string that it is, of any width, and
/// returns how many bytes that has.
pub(super) fn compare_record_key(cursor: &mut Cursor<'_>) -> Result<u32> {
    compare_text(cursor, RECORD_KEY)?;
    match cursor.head()? {
        Head::Bin(len) => Ok(len),
        _ => Err(Error::Structure("another header".into())),
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

/// Goes past the shape and the dtype of an array, and returns how many elements it has.
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

/// Whether the data are not what was expected; other errors stay errors.
fn is_other(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(false),
        Err(error) if is_of_format(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether the data are not what was expected, or cannot be inflated.
fn is_damaged(done: Result<()>) -> Result<bool> {
    match done {
        Err(Error::Gzip(_) | Error::GzipTruncated) => Ok(true),
        done => is_other(done),
    }
}

/// Whether an error is one of the headers, and not of those who read them.
fn is_of_format(error: &Error) -> bool {
    match error {
        Error::At { error, .. } => is_of_format(error),
        Error::Truncated { .. }
        | Error::Malformed { .. }
        | Error::Trailing { .. }
        | Error::TooDeep { .. }
        | Error::Structure(_) => true,
        _ => false,
    }
}

/// The same where damage of a gzip stream is told as such.
fn differs(done: Result<()>) -> Result<bool> {
    match done {
        Err(error @ Error::Gzip(_)) => Err(error),
        done => is_other(done),
    }
}

/// Whether all arrays have as many bytes as their shapes tell.
fn has_shapes(events: &Events) -> bool {
    events.as_slice().iter().all(|event| match event {
        Event::Array(number) | Event::Scalar(number) => events.array(*number).shape().is_some(),
        _ => true,
    })
}

/// Whether events are those of a leaf of a kind.
fn is_kind(events: &Events, kind: &LeafKind) -> bool {
    let list = events.as_slice();
    match (kind, list) {
        (LeafKind::Other, _)
        | (LeafKind::None, [Event::Nil])
        | (LeafKind::Bool, [Event::Bool(_)])
        | (LeafKind::Int, [Event::Int(_) | Event::Uint(_)])
        | (LeafKind::Float, [Event::Float(_)])
        | (LeafKind::Complex, [Event::Complex(_)])
        | (LeafKind::Str, [Event::Str(_)])
        | (LeafKind::Bytes, [Event::Bin(_)])
        | (LeafKind::Ext, [Event::Ext(..)])
        | (LeafKind::Container, [Event::List(_) | Event::Map(_), ..]) => true,
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
        _ => false,
    }
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
    // How large elements are tells only who knows the dtype.
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

/// A source that is read in order: what lies close together is one request.
struct InOrder<'a> {
    source: &'a dyn Source,
    window: &'a Mutex<Window>,
}

/// A part of a source that was read: where it begins, and its bytes.
pub(super) type Window = (usize, Vec<u8>);

/// A window has at most so many bytes.
const WINDOW_BYTES: usize = 64 << 10;

impl Source for InOrder<'_> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [std::mem::MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        let Ok(mut window) = self.window.try_lock() else {
            // Readers that meet do without, as does a forked process if it was held in its parent.
            return self.source.read_at(offset, target);
        };
        let (start, bytes) = &mut *window;
        let end = offset + target.len();
        if offset < *start || end > *start + bytes.len() {
            // As much again as before where that was read through, and little after a jump.
            let goes_on = (*start..=*start + bytes.len()).contains(&offset);
            let ahead = if goes_on { 2 * bytes.len() } else { 0 };
            let len = ahead.min(WINDOW_BYTES).max(target.len());
            let there = self.source.run(offset).max(target.len());
            let until = offset + len.min(there); // of what is there
            bytes.clear();
            *start = offset;
            read_to(self.source, offset..until, bytes)?;
        }
        let from = offset - *start;
        Ok(target.write_copy_of_slice(&bytes[from..from + target.len()]))
    }

    fn near(&self) -> usize {
        self.source.near()
    }

    fn run(&self, offset: usize) -> usize {
        self.source.run(offset)
    }

    fn present(&self, range: Range<usize>) -> usize {
        self.source.present(range)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        self.source.memory()
    }

    fn stable(&self) -> Option<&[u8]> {
        self.source.stable()
    }
}
