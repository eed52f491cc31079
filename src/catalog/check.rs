//! Compares leaves with the index as they are read, and in `verify` all headers.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Catalog, LeafSpan};
use crate::base::source::Source;
use crate::base::watch::{Steps, Watch};
use crate::format::events::{ArrayEvent, Event, Events, Reader};
use crate::format::index::{LeafKind, is_shape};
use crate::format::structure::{RECORD_KEY, ROOT_KEY};
use crate::format::wire::{Cursor, Head};
use crate::{Error, Result, base::grow};

impl Catalog {
    /// Reads a leaf.
    ///
    /// # Panics
    /// If the value is not a leaf.
    pub fn events_of(&self, source: &dyn Source, value: usize) -> Result<Events> {
        let leaf = self.leaf(value).expect("the value is a leaf");
        let read = self.read_leaf(source, leaf);
        read.map_err(|error| self.at(value, error))
    }

    /// Compares the kind of a leaf with its first event.
    pub fn check_kind(
        &self,
        source: &dyn Source,
        leaf: usize,
        events: &Events,
        first: Event,
    ) -> Result<()> {
        if self.is_expected(leaf, events, &[first]) {
            return Ok(());
        }
        self.read_leaf(source, leaf).map(drop) // an array in chunks or a PRNG key, or an error
    }

    pub(super) fn read_leaf(&self, source: &dyn Source, leaf: usize) -> Result<Events> {
        let LeafSpan { start, end, .. } = self.leaves[leaf];
        let events = Events::read_part(source, start..end)?;
        self.check_events(leaf, &events)?;
        Ok(events)
    }

    fn read_next<'a>(&self, reader: &'a mut Reader<'_>, leaf: usize) -> Result<&'a Events> {
        let LeafSpan { start, end, .. } = self.leaves[leaf];
        let events = reader.read(start..end)?;
        self.check_events(leaf, events)?;
        Ok(events)
    }

    fn check_events(&self, leaf: usize, events: &Events) -> Result<()> {
        if self.is_expected(leaf, events, events.as_slice()) {
            return Ok(());
        }
        Err(Error::malformed(self.leaves[leaf].start, OTHER_LEAF))
    }

    fn is_expected(&self, leaf: usize, events: &Events, list: &[Event]) -> bool {
        let kind = self.kind(leaf);
        // Leaves found by headers may change in place, except array shapes.
        let is_free = !self.is_indexed && !matches!(kind, LeafKind::Array(..));
        is_free || is_kind(events, list, kind)
    }

    /// Returns the leaves selected by `is_selected` that differ from the index. A number after the
    /// last leaf stands for the bytes up to the record.
    pub fn unlike_index(
        &self,
        source: &dyn Source,
        is_selected: impl Fn(usize) -> bool,
        watch: &dyn Watch,
    ) -> Result<Vec<usize>> {
        let mut changed = Vec::new();
        if !self.is_indexed {
            return Ok(changed);
        }
        let mut reader = Reader::new(source);
        let (mut first, mut steps) = (0, Steps::new(watch));
        for (value, entry) in self.entries.iter().enumerate() {
            steps.count()?;
            if !entry.is_leaf {
                continue;
            }
            let head = first..value + 1;
            first = head.end;
            if is_selected(entry.head) {
                let LeafSpan { region, start, .. } = self.leaves[entry.head];
                let done = self.compare_head(&mut reader.cursor, head, region..start);
                let done = done.and_then(|()| self.read_next(&mut reader, entry.head));
                if is_damaged(done.and_then(|events| expect(has_shapes(events))))? {
                    changed.push(entry.head);
                }
            }
        }
        if is_selected(self.len()) {
            let place = self.rest.start..self.record_key;
            let head = first..self.entries.len();
            if is_damaged(self.compare_head(&mut reader.cursor, head, place))? {
                changed.push(self.len());
            }
        }
        Ok(changed)
    }

    /// The dtypes of arrays inside leaves: typed keys, lists, maps with arbitrary keys, unknown
    /// kinds. Skips unreadable leaves.
    pub fn inner_dtypes(&self, source: &dyn Source, watch: &dyn Watch) -> Result<BTreeSet<String>> {
        let mut paths = BTreeSet::new();
        let mut reader = Reader::new(source);
        for (number, leaf) in self.leaves.iter().enumerate() {
            if !matches!(
                self.kinds.list[leaf.kind],
                LeafKind::PrngKey(..) | LeafKind::Container | LeafKind::Other
            ) {
                continue;
            }
            watch.check()?;
            let events = match self.read_next(&mut reader, number) {
                Ok(events) => events,
                Err(error) if error.is_no_damage() => return Err(error),
                Err(_) => continue,
            };
            for event in events.as_slice() {
                if let Event::Array(inner) | Event::Scalar(inner) = event {
                    let name = String::from_utf8_lossy(events.array(*inner).dtype);
                    if !paths.contains(&*name) {
                        paths.insert(grow::to_string(&name)?);
                    }
                }
            }
        }
        Ok(paths)
    }

    /// Compares the keys and containers before a leaf, or before the record.
    fn compare_head(
        &self,
        cursor: &mut Cursor<'_>,
        values: Range<usize>,
        place: Range<usize>,
    ) -> Result<()> {
        cursor.seek(place.start..self.rest.end);
        for value in values {
            let entry = &self.entries[value];
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
        expect(cursor.offset() == place.end)
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

/// Maps a mismatch or failed inflation to true; other errors remain.
fn is_damaged(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(false),
        Err(Error::Gzip(_) | Error::GzipTruncated) => Ok(true),
        Err(error) if is_of_format(&error) => Ok(true),
        Err(error) => Err(error),
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

fn is_kind(events: &Events, list: &[Event], kind: &LeafKind) -> bool {
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
                Event::Str(key),
                _,
                Event::Array(number),
            ],
        ) => events.text(*key) == name && has_shape(&events.array(*number), shape),
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

fn is_array(array: &ArrayEvent<'_>, dtype: &str, shape: &[u64]) -> bool {
    array.dtype == dtype.as_bytes() && has_shape(array, shape)
}

fn has_shape(array: &ArrayEvent<'_>, shape: &[u64]) -> bool {
    if let Some(known) = array.shape() {
        return is_shape(&known, shape);
    }
    let dims = array.dims.iter().map(|dim| u64::try_from(*dim).ok());
    let elements = shape
        .iter()
        .try_fold(1, |all: u64, dim| all.checked_mul(*dim));
    let fits = match elements {
        Some(0) => array.nbytes() == 0,
        Some(elements) => (array.nbytes() as u64).is_multiple_of(elements),
        None => false,
    };
    !array.has_known_size() && fits && dims.eq(shape.iter().copied().map(Some))
}
