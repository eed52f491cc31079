//! Adds values to a catalog, container by container.

use std::ops::Range;

use super::{Catalog, Entry, Key, LeafSpan};
use crate::events::{Event, Reader};
use crate::wire::{CHUNKED_MARKER, PRNG_MARKER};
use crate::{Result, grow};

/// Values between two checks of the watch.
pub(super) const CHECK_VALUES: usize = 1 << 14;

/// A container whose values are being added.
pub(super) struct Open {
    pub entry: usize,
    pub start: usize,
    pub leaves: usize,
    pub text: usize,
    pub is_map: bool,
    pub left: u32,
    pub done: usize,
    pub key: Option<Key>,
    pub is_text: bool,
    pub prng_name: String,
}

impl Catalog {
    pub(super) fn key_of(
        &mut self,
        open: Option<&mut Open>,
        reader: &Reader<'_>,
        event: Event,
    ) -> Result<Option<Key>> {
        let start = self.text.len();
        let Some(open) = open else {
            return Ok(Some((start, start)));
        };
        if let Some(key) = open
            .key
            .filter(|_| open.is_map && !open.done.is_multiple_of(2))
        {
            open.done += 1;
            open.left -= 1;
            return Ok(Some(key));
        }
        if open.is_map {
            grow::push_str(&mut self.text, &reader.events().key_text(event))?;
            open.is_text = matches!(event, Event::Str(_));
        } else {
            grow::push_str(&mut self.text, &open.done.to_string())?;
            open.left -= 1;
        }
        open.done += 1;
        let key = (start, self.text.len());
        open.key = Some(key);
        Ok((!open.is_map).then_some(key))
    }

    pub(super) fn begin(
        &mut self,
        open: &mut Vec<Open>,
        key: Key,
        start: usize,
        is_map: bool,
        len: u32,
    ) -> Result<()> {
        let parent = open.last().map_or(0, |open| open.entry);
        let is_text = open.last().is_none_or(|open| open.is_text);
        self.entries.try_reserve(1)?;
        open.try_reserve(1)?;
        open.push(Open {
            entry: self.entries.len(),
            start,
            leaves: self.leaves.len(),
            text: self.text.len(),
            is_map,
            left: len,
            done: 0,
            key: None,
            is_text: true,
            prng_name: String::new(),
        });
        self.entries.push(Entry {
            key,
            is_text,
            is_list: !is_map,
            is_leaf: false,
            len,
            head: self.leaves.len(),
            parent,
            end: 0,
        });
        Ok(())
    }

    pub(super) fn end(&mut self, open: &Open) {
        self.entries[open.entry].end = self.entries.len();
    }

    pub(super) fn end_early(&mut self, open: &Open) {
        let first = self.entries.get(open.entry + 1);
        let first = first.map(|first| &self.text[first.key.0..first.key.1]);
        if open.entry > 0 && matches!(first, None | Some(CHUNKED_MARKER | PRNG_MARKER)) {
            self.entries.truncate(open.entry);
            self.leaves.truncate(open.leaves);
        } else {
            self.end(open);
        }
    }

    pub(super) fn add_leaf(
        &mut self,
        open: &[Open],
        key: Key,
        head: Range<usize>,
        end: usize,
        kind: usize,
    ) -> Result<()> {
        self.entries.try_reserve(1)?;
        self.leaves.try_reserve(1)?;
        self.entries.push(Entry {
            key,
            is_text: open.last().is_none_or(|open| open.is_text),
            is_list: false,
            is_leaf: true,
            len: 0,
            head: self.leaves.len(),
            parent: open.last().map_or(0, |open| open.entry),
            end: self.entries.len() + 1,
        });
        self.leaves.push(LeafSpan {
            region: head.start,
            start: head.end,
            end,
            kind,
        });
        Ok(())
    }
}
