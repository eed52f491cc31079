//! Encoded bytes as a cursor for a record, which reads them once, in order.
//!
//! At the first mismatch the walk ends, and the caller reads the data in another form, whose walk
//! reports it.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::super::failure::{Built, Failure, Walked};
use super::super::restore::{Cursor, Found, Here, Name, Options, Ordered, RecordWalk};
use super::values::Objects;
use crate::Error;
use crate::base::source::{Source, bytes_of};
use crate::format::events::{Closed, Event};
use crate::format::footer::Footer;
use crate::format::structure::{RECORD_KEY, ROOT_KEY, Record};
use crate::format::wire::Head;

/// Restores encoded bytes by the record at their end; `None` unless there is one that they match.
pub fn build_recorded<'py>(
    options: Options<'py>,
    objects: Objects<'_, 'py>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = objects.py;
    let Some((record, place)) = recorded(objects.source)? else {
        return Ok(None);
    };
    let nbytes = place.len();
    let cursor = Encoded {
        objects,
        record: place,
        at_root: true,
        is_wrapped: false,
    };
    let mut walk = RecordWalk::new(py, cursor, &record, nbytes, options)?;
    let root = record.nodes.len() - 1; // `Record::read` rejects empty records
    let plan = walk.value((), root, &Here::root(None));
    let plan = plan.and_then(|plan| Ok(walk.cursor.is_whole()?.then_some(plan)));
    let has_raised = walk.has_raised() || walk.cursor.objects.signals.has_raised();
    let plan = match plan {
        // Errors of signals, and those that are not an `Exception`.
        Err(failure) if has_raised || failure.must_be_raised(py) => {
            return Err(failure.into_py(py, "loading"));
        }
        plan => plan.unwrap_or(None),
    };
    let Some(plan) = plan else {
        return Ok(None);
    };
    walk.cursor.copy()?;
    walk.tree(Ok(plan)).map(Some)
}

/// Returns the record at the end and its position; `None` if it is absent or damaged.
fn recorded(source: &dyn Source) -> PyResult<Option<(Record, Range<usize>)>> {
    let len = source.len();
    let Some(start) = Footer::start_in(source)? else {
        return Ok(None);
    };
    match Record::read(&bytes_of(source, start..len)?) {
        Ok(record) => Ok(Some((record, start..len))),
        Err(Error::OutOfMemory) => Err(Error::OutOfMemory.into()),
        Err(_) => Ok(None),
    }
}

struct Encoded<'a, 'py> {
    objects: Objects<'a, 'py>,
    /// The position of the record.
    record: Range<usize>,
    at_root: bool,
    /// Whether the tree is a value in a map, beside its record.
    is_wrapped: bool,
}

/// The number of children of a map, and whether the record follows them.
type Node = (usize, bool);

impl<'py> Encoded<'_, 'py> {
    fn root(&mut self, event: Event) -> Walked<(Event, bool)> {
        let Event::Map(map) = event else {
            return Ok((event, false));
        };
        self.is_wrapped = map.len == 2 && self.is_rooted()?;
        if self.is_wrapped {
            self.objects.reader.next()?; // the key
            return Ok((self.objects.reader.next()?, false));
        }
        Ok((event, true))
    }

    fn is_rooted(&self) -> Walked<bool> {
        let source = self.objects.source;
        let mut expected = Vec::new();
        Head::Map(2).write(&mut expected);
        #[allow(clippy::cast_possible_truncation)] // a short constant
        Head::Str(ROOT_KEY.len() as u32).write(&mut expected);
        expected.extend_from_slice(ROOT_KEY.as_bytes());
        let len = expected.len().min(source.len());
        Ok(bytes_of(source, 0..len)? == expected)
    }

    #[inline(never)]
    fn undescribed(&mut self, event: Event) -> Built<'py> {
        let object = self.objects.object(event)?;
        let Ok(dict) = object.cast::<PyDict>() else {
            return Ok(object);
        };
        let record = dict.get_item(RECORD_KEY)?;
        let record = record
            .as_ref()
            .and_then(|record| record.cast::<PyBytes>().ok());
        if record.map(|record| record.as_bytes().len()) != Some(self.record.len()) {
            return Err(Failure::structure("the record is not in its place"));
        }
        dict.del_item(RECORD_KEY)?;
        let root = dict.get_item(ROOT_KEY)?;
        Ok(root.filter(|_| dict.len() == 1).unwrap_or(object))
    }

    /// Returns whether only the tree's record follows it.
    fn is_whole(&mut self) -> Walked<bool> {
        let is_whole = !self.is_wrapped || self.ends(true)?;
        Ok(is_whole && self.objects.reader.finish().is_ok())
    }

    /// Returns whether a map ends here, or after the record if `has_record`.
    #[inline(never)]
    fn ends(&mut self, has_record: bool) -> Walked<bool> {
        let objects = &mut self.objects;
        if has_record {
            if !objects.reader.next_is(RECORD_KEY)? {
                return Ok(false);
            }
            let Event::Bin(span) = objects.reader.next()? else {
                return Ok(false);
            };
            if self.record != span.range() {
                return Ok(false);
            }
        }
        Ok(objects.reader.close()? == Closed::Same)
    }
}

impl<'py> Cursor<'py> for Encoded<'_, 'py> {
    type Place = ();
    type Node = Node;

    #[inline]
    fn enter(
        &mut self,
        (): (),
        as_leaf: impl FnOnce() -> PyResult<bool>,
    ) -> Walked<Found<'py, Node>> {
        let mut event = self.objects.reader.next()?;
        let mut is_described = false;
        if self.at_root {
            self.at_root = false;
            (event, is_described) = self.root(event)?;
        }
        if let Event::Map(map) = event {
            let as_leaf = as_leaf()?;
            if is_described && as_leaf {
                return Ok(Found::Leaf(self.undescribed(event)?));
            }
            if is_described || !as_leaf {
                let count = (map.len as usize).saturating_sub(usize::from(is_described));
                return Ok(Found::Node((count, is_described)));
            }
        }
        Ok(Found::Leaf(self.objects.object(event)?))
    }

    fn copy(&mut self) -> PyResult<()> {
        self.objects.copy_all()
    }
}

impl<'py> Ordered<'py> for Encoded<'_, 'py> {
    const IS_STRICT: bool = true;

    fn is_copied(&self) -> bool {
        self.objects.copies.is_empty()
    }

    fn count(&self, (count, _): &Node) -> usize {
        *count
    }

    #[inline]
    fn next(&mut self, (count, is_described): &mut Node) -> Walked<Option<(Name<'py>, ())>> {
        let Event::Str(text) = self.objects.reader.next()? else {
            return Ok(None);
        };
        if *is_described && self.objects.reader.events().text(text) == ROOT_KEY {
            return Ok(None); // the tree is the value of this key
        }
        let Objects {
            reader, keys, py, ..
        } = &mut self.objects;
        let key = keys.get_of(*py, reader.events().text_bytes(text), *count as u64)?;
        Ok(Some((Name::Text(key), ())))
    }

    #[inline]
    fn next_is(&mut self, _: &mut Node, name: &Name<'py>) -> Walked<Option<()>> {
        let reader = &mut self.objects.reader;
        let is_next = match name {
            Name::Text(text) => match text.to_str() {
                Ok(text) => reader.next_is(text)?,
                Err(_) => false,
            },
            name => match reader.next()? {
                Event::Str(text) => name.is(reader.events().text(text)),
                _ => false,
            },
        };
        Ok(is_next.then_some(()))
    }
    fn leave(&mut self, (_, has_record): &Node) -> Walked<bool> {
        self.ends(*has_record)
    }
}
