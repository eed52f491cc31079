//! Building a tree by a template while its bytes are read.
//!
//! Most data are just like their template: the same keys in the same order, arrays of the same
//! shapes and dtypes. Then no state dict is made. At the first thing that is not as expected, this
//! gives up, errors included: all is read once more, and `restore/template.rs` finds out what is the
//! matter.

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::super::failure::Walked;
use super::super::memory::{count_alike, dict_next, new_dict, new_list, new_tuple_of};
use super::super::restore::{Matching, has_older_types, is_decimal};
use super::values::Objects;
use crate::events::{Closed, Event};
use crate::grow;
use crate::source::read_to;
use crate::structure::{RECORD_KEY, ROOT_KEY};
use crate::wire::Head;

/// In dicts with fewer items nothing is gained by looking ahead.
const MANY: usize = 8;

/// How many arrays of a template are looked at before the first of them is built.
const ALIKE_AT_ONCE: usize = 64;

/// A part of the tree; nothing if it is not just like the template.
type Like<'py> = Walked<Option<Bound<'py, PyAny>>>;

impl<'py> Objects<'_, 'py> {
    /// All of the tree, but for the record of its structure.
    pub(super) fn root_like(
        &mut self,
        template: &Bound<'py, PyAny>,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        if has_record(template)? {
            return Ok(None);
        }
        let event = self.reader.next()?;
        if let Event::Map(map) = event {
            if map.len == 2 && self.is_rooted()? {
                self.reader.next()?; // the key
                let found = self.value_like(template, matching)?;
                let whole = found.is_some() && self.end(true)?;
                return Ok(found.filter(|_| whole));
            }
            if map.len as usize == matching.len(template)? + 1 {
                return self.map_like(map.len as usize - 1, true, template, matching);
            }
        }
        self.event_like(event, template, matching)
    }

    /// Whether the source begins with a map of two pairs, of which the first is the tree.
    pub(super) fn is_rooted(&self) -> Walked<bool> {
        let mut expected = Vec::new();
        Head::Map(2).write(&mut expected);
        #[allow(clippy::cast_possible_truncation)] // a short constant
        Head::Str(ROOT_KEY.len() as u32).write(&mut expected);
        expected.extend_from_slice(ROOT_KEY.as_bytes());
        let mut start = Vec::new();
        let len = expected.len().min(self.source.len());
        read_to(self.source, 0..len, &mut start)?;
        Ok(start == expected)
    }

    /// Whether a map ends here, but for the record of a structure if there has to be one.
    #[inline(never)] // see `value_like`
    fn end(&mut self, record: bool) -> Walked<bool> {
        if record {
            if !self.reader.next_is(RECORD_KEY)? {
                return Ok(false);
            }
            let record = self.value()?;
            let Ok(record) = record.cast::<PyBytes>() else {
                return Ok(false);
            };
            if has_older_types(self.py, record.as_bytes())? {
                return Ok(false);
            }
        }
        Ok(self.reader.close()? == Closed::Same)
    }

    /// The next value. This and what it calls for containers is the recursion, which must not
    /// need much of the stack.
    fn value_like(&mut self, template: &Bound<'py, PyAny>, matching: &Matching<'py>) -> Like<'py> {
        self.check_signals()?;
        let event = self.reader.next()?;
        self.event_like(event, template, matching)
    }

    fn event_like(
        &mut self,
        event: Event,
        template: &Bound<'py, PyAny>,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        // A map in the place of an array is one in chunks.
        if let Event::Map(map) = event
            && !matching.is_array(template)?
        {
            return self.map_like(map.len as usize, false, template, matching);
        }
        self.leaf_like(event, template, matching)
    }

    #[inline(never)] // see `value_like`
    fn leaf_like(
        &mut self,
        event: Event,
        template: &Bound<'py, PyAny>,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        let found = self.object(event)?;
        Ok(matching.leaf(template, &found)?.then_some(found))
    }

    /// A container, whose children are so many pairs of a map; the record of a structure may follow.
    fn map_like(
        &mut self,
        count: usize,
        record: bool,
        template: &Bound<'py, PyAny>,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        if let Ok(dict) = template.cast_exact::<PyDict>() {
            self.items_like(dict, count, record, matching)
        } else if let Ok(list) = template.cast_exact::<PyList>() {
            self.elements_like(list.iter(), count, record, matching, |_, found| Ok(found))
        } else if let Ok(tuple) = template.cast_exact::<PyTuple>() {
            self.elements_like(tuple.iter(), count, record, matching, |py, found| {
                Ok(new_tuple_of(py, found.cast::<PyList>()?.iter())?.into_any())
            })
        } else {
            self.fields_like(template, count, record, matching)
        }
    }

    /// A dict with the items of a template, which are so many pairs of a map.
    #[inline(never)] // see `value_like`
    fn items_like(
        &mut self,
        template: &Bound<'py, PyDict>,
        count: usize,
        record: bool,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        if template.len() != count {
            return Ok(None);
        }
        let made = new_dict(self.py)?;
        let mut position = 0;
        // An array, and how many of the next ones are known to be like it.
        let mut alike: Option<(Bound<'py, PyUntypedArray>, usize)> = None;
        while let Some((key, child)) = dict_next(template, &mut position) {
            let Ok(key) = key.cast_exact::<PyString>() else {
                return Ok(None);
            };
            let expected = match &mut alike {
                Some((array, left)) if *left > 0 => {
                    *left -= 1;
                    array.as_any()
                }
                _ => {
                    alike = None;
                    if count >= MANY
                        && let Ok(array) = child.cast_exact::<PyUntypedArray>()
                    {
                        let next = count_alike(template, position, array, ALIKE_AT_ONCE);
                        alike = Some((array.clone(), next));
                    }
                    &child
                }
            };
            let Some(found) = self.pair_like(key, expected, matching)? else {
                return Ok(None);
            };
            made.set_item(key, found)?;
        }
        // Code of types that are in the template might change it.
        let whole = made.len() == count && self.end(record)?;
        Ok(whole.then(|| made.into_any()))
    }

    /// The elements of a list or tuple, which are the values of a map.
    #[inline(never)] // see `value_like`
    fn elements_like(
        &mut self,
        template: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        count: usize,
        record: bool,
        matching: &Matching<'py>,
        make: impl Fn(Python<'py>, Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
    ) -> Like<'py> {
        if template.len() != count {
            return Ok(None);
        }
        let elements = new_list(self.py)?;
        for (index, child) in template.enumerate() {
            if !self.key_is_index(index)? {
                return Ok(None);
            }
            let found = self.value_like(&child, matching);
            match found.map_err(|failure| failure.below(index.to_string()))? {
                Some(found) => elements.append(found)?,
                None => return Ok(None),
            }
        }
        if elements.len() != count || !self.end(record)? {
            return Ok(None);
        }
        make(self.py, elements.into_any())
            .map(Some)
            .map_err(Into::into)
    }

    /// A container whose fields are fixed.
    #[inline(never)] // see `value_like`
    fn fields_like(
        &mut self,
        template: &Bound<'py, PyAny>,
        count: usize,
        record: bool,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        if count == 0 && matching.is_code(template)? {
            return Ok(self.end(record)?.then(|| template.clone()));
        }
        let Some((fields, children)) = matching.fields(template)? else {
            return Ok(None);
        };
        if children.len() != count {
            return Ok(None);
        }
        let mut made = grow::with_room(count)?;
        for (name, child) in fields.names.iter().zip(&children) {
            match self.pair_like(name, child, matching)? {
                Some(found) => made.push(found),
                None => return Ok(None),
            }
        }
        // Code of the type may look at arrays, whose bytes must be there.
        if !self.copies.is_empty() || !self.end(record)? {
            return Ok(None);
        }
        let made = fields.make.call1((template, made))?;
        Ok(Some(made))
    }

    /// A pair of a map with this key.
    #[inline]
    fn pair_like(
        &mut self,
        key: &Bound<'py, PyString>,
        template: &Bound<'py, PyAny>,
        matching: &Matching<'py>,
    ) -> Like<'py> {
        let Ok(text) = key.to_str() else {
            return Ok(None);
        };
        if !self.reader.next_is(text)? {
            return Ok(None);
        }
        self.value_like(template, matching)
            .map_err(|failure| failure.below(text))
    }

    /// Whether the next key is this number.
    #[inline]
    pub(super) fn key_is_index(&mut self, expected: usize) -> Walked<bool> {
        let Event::Str(text) = self.reader.next()? else {
            return Ok(false);
        };
        Ok(is_decimal(self.reader.events().text_bytes(text), expected))
    }
}

/// Whether a template has the key of the record itself.
fn has_record(template: &Bound<'_, PyAny>) -> PyResult<bool> {
    template.cast_exact::<PyDict>().map_or(Ok(false), |dict| {
        dict.contains(intern!(dict.py(), RECORD_KEY))
    })
}
