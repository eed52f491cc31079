//! Building a tree by the record of its structure while its bytes are read.
//!
//! Trees of many nodes are mostly containers, and a state dict for each would be made to be taken
//! apart at once. Where the record has only what is handled here, nodes are made of events. At the
//! first thing that is not as expected, this gives up, errors included: all is read once more, and
//! `restore/record.rs` finds out what is the matter.

use std::ops::Range;
use std::rc::Rc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::failure::Walked;
use super::super::memory::{copied, new_dict, new_list_of, new_tuple_of};
use super::super::restore::Known;
use super::values::Objects;
use crate::events::{Closed, Event, Span};
use crate::grow;
use crate::source::{Source, read_to};
use crate::structure::{Footer, Kind, Node, RECORD_KEY, Record};

/// A part of the tree; nothing if it is not as recorded.
type Recorded<'py> = Walked<Option<Bound<'py, PyAny>>>;

/// The record of a tree that can be built.
pub(super) struct Plan<'py> {
    record: Record,
    /// Where it is in the source, with all that follows it.
    place: Range<usize>,
    /// By the numbers of nodes, what makes those of registered types, and their static data.
    types: Vec<Option<(Rc<Known<'py>>, Bound<'py, PyTuple>)>>,
}

impl<'py> Plan<'py> {
    /// Reads the record at the end of a source; nothing unless all of its nodes are handled here.
    pub(super) fn of(py: Python<'py>, source: &dyn Source) -> Walked<Option<Self>> {
        let len = source.len();
        let mut bytes = Vec::new();
        read_to(source, len.saturating_sub(Footer::BYTES)..len, &mut bytes)?;
        let whole = Footer::find(&bytes).and_then(|footer| footer.whole());
        let Some(start) = whole.and_then(|whole| len.checked_sub(whole)) else {
            return Ok(None);
        };
        bytes.clear();
        read_to(source, start..len, &mut bytes)?;
        let record = Record::read(&bytes)?;
        let is_handled = |kind: &Kind| {
            matches!(
                kind,
                Kind::Plain | Kind::Dict | Kind::List | Kind::Tuple | Kind::Typed(..)
            )
        };
        if !record.nodes.iter().all(|Node(kind, _)| is_handled(kind)) {
            return Ok(None);
        }
        let mut known = grow::filled(None, record.types.len())?;
        let mut types = grow::with_room(record.nodes.len())?;
        for Node(kind, _) in &record.nodes {
            let Kind::Typed(class, data) = kind else {
                types.push(None);
                continue;
            };
            let class = *class as usize;
            if known[class].is_none() {
                known[class] = Known::called(py, &record.types[class])?;
            }
            let Some(class) = &known[class] else {
                return Ok(None);
            };
            let Some(data) = class.decoded(&copied(py, data)?)? else {
                return Ok(None);
            };
            types.push(Some((class.clone(), data)));
        }
        Ok(Some(Self {
            record,
            place: start..len,
            types,
        }))
    }
}

impl<'py> Objects<'_, 'py> {
    /// All of the tree, but for the record of its structure.
    pub(super) fn root_recorded(&mut self, plan: &Plan<'py>) -> Recorded<'py> {
        let root = plan.record.nodes.len() - 1; // there is one: `decode` has looked
        let Event::Map(map) = self.reader.next()? else {
            return Ok(None);
        };
        if map.len == 2 && self.is_rooted()? {
            self.reader.next()?; // the key
            let found = self.recorded(plan, root)?;
            let whole = found.is_some() && self.ends_recorded(plan, true)?;
            return Ok(found.filter(|_| whole));
        }
        self.map_recorded(plan, root, map.len as usize, true)
    }

    /// The next value, as a node. This and what it calls for containers is the recursion, which
    /// must not need much of the stack.
    fn recorded(&mut self, plan: &Plan<'py>, node: usize) -> Recorded<'py> {
        if matches!(plan.record.nodes[node].0, Kind::Plain) {
            return self.value().map(Some);
        }
        self.check_signals()?;
        match self.reader.next()? {
            Event::Map(map) => self.map_recorded(plan, node, map.len as usize, false),
            _ => Ok(None),
        }
    }

    /// A container, whose children are the pairs of a map; the record may be the last one.
    fn map_recorded(
        &mut self,
        plan: &Plan<'py>,
        node: usize,
        pairs: usize,
        is_root: bool,
    ) -> Recorded<'py> {
        let Node(kind, _) = &plan.record.nodes[node];
        let children = plan.record.nodes[node].count();
        if pairs as u64 != children + u64::from(is_root) {
            return Ok(None);
        }
        match kind {
            Kind::List | Kind::Tuple => {
                let Some(found) = self.elements_recorded(plan, node, is_root)? else {
                    return Ok(None);
                };
                Ok(Some(match kind {
                    Kind::List => new_list_of(self.py, found)?.into_any(),
                    _ => new_tuple_of(self.py, found)?.into_any(),
                }))
            }
            Kind::Dict => self.items_recorded(plan, node, is_root),
            _ => self.fields_recorded(plan, node, is_root),
        }
    }

    /// The elements of a list or tuple, which are the values of a map.
    #[inline(never)] // see `recorded`
    fn elements_recorded(
        &mut self,
        plan: &Plan<'py>,
        node: usize,
        is_root: bool,
    ) -> Walked<Option<Vec<Bound<'py, PyAny>>>> {
        let mut elements = Vec::new();
        for repeat in &plan.record.nodes[node].1 {
            for _ in 0..repeat.0 {
                if !self.key_is_index(elements.len())? {
                    return Ok(None);
                }
                match self.recorded(plan, repeat.1 as usize)? {
                    Some(found) => grow::push(&mut elements, found)?,
                    None => return Ok(None),
                }
            }
        }
        let whole = self.ends_recorded(plan, is_root)?;
        Ok(whole.then_some(elements))
    }

    /// A dict of strings.
    #[inline(never)] // see `recorded`
    fn items_recorded(&mut self, plan: &Plan<'py>, node: usize, is_root: bool) -> Recorded<'py> {
        let dict = new_dict(self.py)?;
        let node = &plan.record.nodes[node];
        for repeat in &node.1 {
            for _ in 0..repeat.0 {
                let Event::Str(text) = self.reader.next()? else {
                    return Ok(None);
                };
                let text = self.reader.events().text_bytes(text);
                let key = self.keys.get_of(self.py, text, node.count())?;
                match self.recorded(plan, repeat.1 as usize)? {
                    Some(found) => dict.set_item(key, found)?,
                    None => return Ok(None),
                }
            }
        }
        let whole = dict.len() as u64 == node.count() && self.ends_recorded(plan, is_root)?;
        Ok(whole.then(|| dict.into_any()))
    }

    /// An object of a registered type.
    #[inline(never)] // see `recorded`
    fn fields_recorded(&mut self, plan: &Plan<'py>, node: usize, is_root: bool) -> Recorded<'py> {
        let Some((class, data)) = &plan.types[node] else {
            return Ok(None);
        };
        let node = &plan.record.nodes[node];
        let mut names = class.names().iter();
        let mut children = grow::with_room(names.len())?;
        for repeat in &node.1 {
            for _ in 0..repeat.0 {
                let Some(name) = names.next() else {
                    return Ok(None);
                };
                if !self.reader.next_is(name)? {
                    return Ok(None);
                }
                match self.recorded(plan, repeat.1 as usize)? {
                    Some(found) => grow::push(&mut children, found)?,
                    None => return Ok(None),
                }
            }
        }
        // Code of the type may look at arrays, whose bytes must be there.
        let whole = names.next().is_none() && self.copies.is_empty();
        if !whole || !self.ends_recorded(plan, is_root)? {
            return Ok(None);
        }
        Ok(Some(class.call(&children, data)?))
    }

    /// Whether a map ends here; at the root after the record that is known.
    fn ends_recorded(&mut self, plan: &Plan<'py>, is_root: bool) -> Walked<bool> {
        if is_root {
            if !self.reader.next_is(RECORD_KEY)? {
                return Ok(false);
            }
            match self.reader.next()? {
                Event::Bin(span) if Span::range(span) == plan.place => {}
                _ => return Ok(false),
            }
        }
        Ok(self.reader.close()? == Closed::Same)
    }
}
