//! Encoded bytes as a cursor for a template: one pass lists their events, which are found by name.

use std::borrow::Cow;
use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMapping};

use super::super::failure::{Built, Failure, Walked};
use super::super::memory::copied;
use super::super::restore::{
    Container, Cursor, Found, Matching, Name, Named, Session, TemplateChild, Walk, has_older_types,
};
use super::values::Objects;
use crate::base::source::bytes_of;
use crate::format::events::{Event, Events};
use crate::format::structure::{RECORD_KEY, ROOT_KEY};
use crate::{Error, Result};

/// A tree; if the walk has begun a `Restore`, that and the record beside the tree.
pub type Like<'py> = (
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyBytes>>,
);

/// Restores a template. `None` if the bytes are damaged, which a full read explains, or have nodes
/// of older versions of their types. With `text_keys`, all keys are strings, as in a catalog.
pub fn build_like<'py>(
    template: &Bound<'py, PyAny>,
    session: Session<'py>,
    matching: Matching<'py>,
    text_keys: bool,
    mut objects: Objects<'_, 'py>,
) -> PyResult<Option<Like<'py>>> {
    let py = template.py();
    objects.text_keys = text_keys;
    let cursor = Listed {
        objects,
        record: None,
        values: Vec::new(),
    };
    let mut walk = Walk::new(py, cursor, matching, session);
    let restored = walk.cursor.keep().and_then(|()| {
        let (root, record) = walk.cursor.split(template)?;
        if let Some(record) = &record
            && has_older_types(py, record)?
        {
            return Err(Failure::structure(
                "a node has an older version of its type",
            ));
        }
        Ok((walk.restore(root, template)?, record))
    });
    let restore = walk.exit()?;
    match restored {
        Ok((tree, record)) => {
            let record = record.filter(|_| restore.is_some());
            let record = record.map(|record| copied(py, &record)).transpose()?;
            Ok(Some((tree, restore, record)))
        }
        Err(failure) if failure.raised().is_none() => Ok(None),
        Err(failure) => Err(failure.into_py(py, "restoring")),
    }
}

struct Listed<'a, 'py> {
    objects: Objects<'a, 'py>,
    /// The event of the record's key, if that is in the root.
    record: Option<usize>,
    /// For each map so far, the values of the template's children.
    values: Vec<usize>,
}

/// A map, and the index of its first value in `values`.
type Node = (usize, usize);

impl<'py> Listed<'_, 'py> {
    fn keep(&mut self) -> Walked {
        let kept = self.objects.keep();
        kept.map_err(|failure| self.unread(failure))
    }

    fn object(&mut self, event: usize) -> Built<'py> {
        let made = self.objects.kept(event);
        made.map_err(|failure| self.unread(failure))
    }

    /// Hides an error of the data. Errors of signals, and those that are not an `Exception`, stay.
    #[cold]
    fn unread(&self, failure: Box<Failure>) -> Box<Failure> {
        if self.objects.signals.has_raised() || failure.must_be_raised(self.objects.py) {
            return failure;
        }
        Failure::structure("its data are damaged")
    }

    /// Returns the tree, and the record beside it.
    fn split(&mut self, template: &Bound<'py, PyAny>) -> Walked<(usize, Option<Vec<u8>>)> {
        let events = self.objects.reader.events();
        let found = pairs(events, 0, None).filter(|(key, _)| is(events, *key, RECORD_KEY));
        let Some((key, Event::Bin(span))) =
            found.last().map(|(key, at)| (key, events.as_slice()[at]))
        else {
            return Ok((0, None));
        };
        if has_record(template)? {
            return Ok((0, None)); // it is a key of the tree
        }
        let mut others = pairs(events, 0, Some(key));
        let root = match (others.next(), others.next()) {
            (Some((key, root)), None) if is(events, key, ROOT_KEY) => root,
            _ => 0,
        };
        self.record = Some(key);
        let record = bytes_of(self.objects.source, span.range())?;
        Ok((root, Some(record)))
    }

    fn count(&self, map: usize) -> usize {
        match self.objects.reader.events().as_slice()[map] {
            Event::Map(found) if map == 0 && self.record.is_some() => found.len as usize - 1,
            Event::Map(found) => found.len as usize,
            _ => 0,
        }
    }

    /// Finds the template's children in a map; returns false if one is missing.
    #[inline(never)]
    fn find(&mut self, map: usize, children: &[TemplateChild<'py>]) -> Result<bool> {
        let mut by_key: HashMap<Cow<'_, str>, usize> = HashMap::new();
        by_key.try_reserve(self.count(map))?;
        let reader = &self.objects.reader;
        let events = reader.events();
        for (key, value) in pairs(events, map, self.record) {
            let key = match events.as_slice()[key] {
                Event::Str(text) => events.text(text).into(),
                key if self.objects.text_keys => reader.key_text(key)?,
                _ => continue,
            };
            by_key.insert(key, value); // of equal keys the last, as in a dict
        }
        let values = children.iter().map_while(|(name, _)| {
            let name = name.text()?;
            by_key.get(&*name).copied()
        });
        let before = self.values.len();
        self.values.extend(values);
        Ok(self.values.len() - before == children.len())
    }
}

/// The keys and values of a map, without the record.
fn pairs(
    events: &Events,
    map: usize,
    record: Option<usize>,
) -> impl Iterator<Item = (usize, usize)> {
    let end = match events.as_slice()[map] {
        Event::Map(map) => map.end,
        _ => map + 1,
    };
    let next = move |key: usize| (key < end).then(|| (key, events.after(key)));
    let pairs = std::iter::successors(next(map + 1), move |(_, at)| next(events.after(*at)));
    pairs.filter(move |(key, _)| Some(*key) != record)
}

fn is(events: &Events, key: usize, name: &str) -> bool {
    matches!(events.as_slice()[key], Event::Str(text) if events.text_bytes(text) == name.as_bytes())
}

fn is_name(events: &Events, key: usize, name: &Name<'_>) -> bool {
    match (events.as_slice()[key], name) {
        (Event::Str(_), Name::Text(name)) => name.to_str().is_ok_and(|name| is(events, key, name)),
        (Event::Str(text), name) => name.is(events.text(text)),
        _ => false,
    }
}

/// Returns whether a template has the key of a record.
fn has_record(template: &Bound<'_, PyAny>) -> PyResult<bool> {
    let key = intern!(template.py(), RECORD_KEY);
    match template.cast_exact::<PyDict>() {
        Ok(dict) => dict.contains(key),
        Err(_) => template
            .cast::<PyMapping>()
            .map_or(Ok(false), |mapping| mapping.contains(key)),
    }
}

impl<'py> Cursor<'py> for Listed<'_, 'py> {
    type Place = usize;
    type Node = Node;

    #[inline]
    fn enter(
        &mut self,
        event: usize,
        _: impl FnOnce() -> PyResult<bool>,
    ) -> Walked<Found<'py, Node>> {
        Ok(match self.objects.reader.events().as_slice()[event] {
            Event::Map(_) => Found::Node((event, 0)),
            _ => Found::Leaf(self.object(event)?),
        })
    }

    fn copy(&mut self) -> PyResult<()> {
        self.objects.copy_all()
    }
}

impl<'py> Named<'py> for Listed<'_, 'py> {
    fn pair(
        &mut self,
        (map, first): &mut Node,
        children: &[TemplateChild<'py>],
        container: &Container<'py>,
    ) -> Walked<bool> {
        let count = self.count(*map);
        let takes_more = matches!(container, Container::Dict);
        if count < children.len() || (count > children.len() && !takes_more) {
            return Ok(false);
        }
        *first = self.values.len();
        let room = self.values.try_reserve(children.len());
        room.map_err(Error::from)?;
        if count == children.len() {
            // Most data have the children of the template, in the same order.
            let events = self.objects.reader.events();
            let pairs = pairs(events, *map, self.record).zip(children);
            self.values
                .extend(pairs.map_while(|((key, value), (name, _))| {
                    is_name(events, key, name).then_some(value)
                }));
            if self.values.len() - *first == count {
                return Ok(true);
            }
            self.values.truncate(*first);
        }
        Ok(self.find(*map, children)?)
    }

    fn child(&self, (_, first): &Node, index: usize) -> Option<usize> {
        Some(self.values[first + index])
    }

    fn is_empty(&self, (map, _): &Node) -> bool {
        self.count(*map) == 0
    }

    fn state(&mut self, (map, _): Node) -> Built<'py> {
        let state = self.object(map)?;
        if map == 0 && self.record.is_some() {
            state.cast::<PyDict>()?.del_item(RECORD_KEY)?;
        }
        Ok(state)
    }
}
