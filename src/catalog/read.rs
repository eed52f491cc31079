//! Finds the leaves by the index, or by the headers in `scan.rs`.

use std::ops::{Range, RangeInclusive};

use crc32fast::Hasher;

use super::check::compare_record_key;
use super::{BLOCK_BYTES, Catalog, Entry, Key, LeafSpan};
use crate::base::source::{Source, bytes_of, missing, read_to};
use crate::base::watch::{Steps, Watch};
use crate::format::events::{Event, Reader};
use crate::format::footer::{Footer, checksums_of};
use crate::format::index::Index;
use crate::format::structure::{RECORD_KEY, ROOT_KEY, Record};
use crate::format::wire::Cursor;
use crate::{Error, Result, base::grow, base::parallel};

pub(super) struct Open {
    pub(super) entry: usize,
    pub(super) start: usize,
    pub(super) leaves: usize,
    pub(super) text: usize,
    pub(super) is_map: bool,
    pub(super) left: u32,
    pub(super) done: usize,
    pub(super) key: Option<Key>,
    pub(super) is_text: bool,
    pub(super) prng_name: String,
}

impl Catalog {
    /// Finds all leaves. With `salvage`, skips damaged leaves and notes the reason in
    /// [`Catalog::damage`].
    pub fn open(source: &dyn Source, salvage: bool, watch: &dyn Watch) -> Result<Self> {
        let mut catalog = Self::default();
        match Self::recorded(source, salvage, watch) {
            Ok(Some(catalog)) => return Ok(catalog),
            Ok(None) => {}
            Err(error) if !salvage || error.is_no_damage() => return Err(error),
            Err(error) => catalog.damage = Some(error), // the headers may have more
        }
        let done = catalog.scan(source, watch).and_then(|()| {
            let Some(record) = &catalog.record else {
                return Ok(());
            };
            Record::read(record).map(drop)
        });
        let is_misread = done.is_err();
        match done {
            Err(error) if error.is_no_damage() => return Err(error),
            Err(error) if !salvage => return Err(or_missing(error, source)),
            Err(error) => catalog.damage = Some(or_missing(error, source)),
            Ok(()) => {}
        }
        if catalog.damage.is_some() && catalog.entries.first().is_none_or(|root| root.is_leaf) {
            // Not even the root was readable: any byte below 128 is a number.
            catalog = catalog.emptied()?;
        }
        if catalog.damage.is_some() {
            if is_misread {
                unless_damaged(catalog.drop_misread(source))?;
            }
            unless_damaged(catalog.keep_checksums(source, watch))?;
            if is_misread {
                catalog.record = None;
            }
        }
        catalog.unwrap_root();
        Ok(catalog)
    }

    pub fn emptied(self) -> Result<Self> {
        let mut catalog = Self {
            damage: self.damage,
            ..Self::default()
        };
        catalog.add_entry(&[], (0, 0), false, false, 0)?;
        Ok(catalog)
    }

    /// Drops values that were read from damage, such as zeros.
    fn drop_misread(&mut self, source: &dyn Source) -> Result<()> {
        let has_record = Footer::start_in(source)?.is_some();
        let is_zero = |entry: &Entry, value| {
            entry.is_leaf && self.key(value) == "0" && {
                let LeafSpan { start, end, .. } = self.leaves[entry.head];
                end - start == 1 && bytes_of(source, start..end).is_ok_and(|bytes| bytes == [0])
            }
        };
        let is_misread = |value: &usize| {
            let entry = &self.entries[*value];
            // Maps have one kind of keys, and beside a record only strings.
            !entry.is_text
                && (self.entries[entry.parent + 1].is_text
                    || (has_record && entry.parent == 0)
                    || is_zero(entry, *value))
        };
        let Some(mut first) = (1..self.entries.len()).find(is_misread) else {
            return Ok(());
        };
        self.leaves.truncate(self.entries[first].head);
        // Containers whose content is lost.
        while first > 1 && self.entries[first - 1].len > 0 && !self.entries[first - 1].is_leaf {
            first -= 1;
        }
        self.entries.truncate(first);
        for entry in &mut self.entries {
            entry.end = entry.end.min(first);
        }
        Ok(())
    }

    /// Keeps the checksums beside a damaged record.
    fn keep_checksums(&mut self, source: &dyn Source, watch: &dyn Watch) -> Result<()> {
        let end = source.len() - source.len().min(Footer::BYTES);
        let tail = bytes_of(source, end..source.len())?;
        let footer = Footer::find(&tail).filter(|footer| match &self.record {
            Some(record) => footer.whole() == Some(record.len()),
            None => true,
        });
        // In an index, lists and maps with other keys are single leaves with one checksum.
        let is_other = |entry: &Entry| entry.is_list || !entry.is_text;
        let known = self.entries.iter().find(|entry| is_other(entry));
        let known = known.map_or(self.leaves.len(), |entry| entry.head);
        let count = match footer {
            Some(footer) => footer.checksums,
            // All leaves were read, so their number shows where the checksums are.
            None if self.record.is_some() && known == self.leaves.len() => known + 1,
            None => return Ok(()),
        };
        let start = count.checked_mul(4).and_then(|len| end.checked_sub(len));
        if let Some(start) = start.filter(|_| known < count) {
            let sums = checksums_of(&bytes_of(source, start..start + 4 * known)?)?;
            if footer.is_some() || self.fit(source, &sums, watch)? {
                self.checksums = sums;
            }
        }
        Ok(())
    }

    /// Returns whether a leaf has its checksum, which no other number would be.
    fn fit(&self, source: &dyn Source, sums: &[u32], watch: &dyn Watch) -> Result<bool> {
        let mut block = Vec::new();
        for (leaf, expected) in self.leaves.iter().zip(sums) {
            let mut sum = Hasher::new();
            for part in parallel::blocks(leaf.region..leaf.end, BLOCK_BYTES) {
                watch.check()?;
                block.clear();
                read_to(source, part, &mut block)?;
                sum.update(&block);
            }
            if sum.finalize() == *expected {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Finds the leaves by the index at the end of a source; `None` if it has none of its own.
    fn recorded(source: &dyn Source, salvage: bool, watch: &dyn Watch) -> Result<Option<Self>> {
        let len = source.len();
        let end = len.min(Footer::BYTES);
        if source.run(len - end) < end {
            return Ok(None);
        }
        let Some(start) = Footer::start_in(source)? else {
            return Ok(None);
        };
        // Include the key and bin header of the record, of any width.
        let furthest = start.saturating_sub(*KEY_BYTES.end());
        let mut offsets = furthest..start;
        let before = offsets.find(|at| source.run(*at) == len - at && source.at_hand(*at) > 0);
        let before = before.unwrap_or(start);
        let mut tail = bytes_of(source, before..len)?;
        let record = start - before;
        let (body, checksums) = match Footer::split(&tail[record..]) {
            Ok(parts) => parts,
            Err(damage) if salvage => return Err(damage),
            Err(_) => return Ok(None), // the headers may have more
        };
        let Some(index) = Record::decode(body)?.index else {
            return Ok(None);
        };
        let index = Index::decode(&index)?;
        let lengths = index.heads.iter().chain(&index.sizes);
        let leaves = lengths.fold(0_u64, |sum, len| sum.saturating_add(*len));
        let ends = usize::try_from(leaves.saturating_add(index.rest)).ok();
        let ends = ends.and_then(|ends| ends.checked_sub(before));
        // Even a damaged key has the right length.
        let Some(ends) = ends.filter(|ends| KEY_BYTES.contains(&record.saturating_sub(*ends)))
        else {
            return Ok(None); // the index belongs to the last leaf, which is itself encoded data
        };
        let is_record = is_record(&tail, ends, record);
        if !salvage && !is_record {
            return Err(Index::damaged("the record is not under its key"));
        }
        let damage = (!is_record).then(damaged_rest);
        #[allow(clippy::cast_possible_truncation)] // they are before an offset
        let rest = leaves as usize..start;
        let mut catalog = Self {
            checksums: checksums_of(checksums)?,
            rest,
            record_key: before + ends,
            damage,
            is_indexed: true,
            ..Self::default()
        };
        catalog.read_index(index, watch)?;
        let expected = catalog.leaves.len() + 1;
        if ![0, expected].contains(&catalog.checksums.len()) {
            let found = catalog.checksums.len();
            return Err(Index::damaged(format_args!(
                "expected {expected} checksums, found {found}"
            )));
        }
        tail.drain(..record);
        catalog.record = Some(tail);
        Ok(Some(catalog))
    }

    fn read_index(&mut self, index: Index, watch: &dyn Watch) -> Result<()> {
        let outline = index.outline.into_vec();
        let mut reader = Reader::new(&outline);
        let mut places = index.heads.iter().zip(&index.sizes);
        // The minimum header size since the last leaf; bounds the entries of a hostile index.
        let mut least = 0;
        self.kinds.list = index.kinds;
        let mut open: Vec<Open> = Vec::new();
        let mut keys: Vec<Key> = Vec::new();
        let mut before = 0;
        let mut steps = Steps::new(watch);
        loop {
            steps.count()?;
            let event = reader.next()?;
            // Repeated keys of an outline are numbers.
            let is_key = open.last().is_some_and(|open| open.done.is_multiple_of(2));
            let key = match (event, open.last_mut()) {
                (Event::Uint(number), Some(open)) if is_key => {
                    let number = usize::try_from(number).ok();
                    let known = number.and_then(|number| keys.get(number));
                    let known =
                        known.ok_or_else(|| Index::damaged("it refers to an unknown key"))?;
                    open.key = Some(*known);
                    open.is_text = true;
                    open.done += 1;
                    continue;
                }
                (_, open) => self.key_of(open, &reader, event)?,
            };
            let Some(key) = key else {
                if let Some(key) = open.last().and_then(|open| open.key) {
                    grow::push(&mut keys, key)?;
                }
                continue;
            };
            match event {
                Event::Map(map) => {
                    self.begin(&mut open, key, 0, true, map.len)?;
                    least += self.least_head(self.entries.len() - 1);
                }
                Event::Uint(kind) => {
                    let kind = usize::try_from(kind).ok();
                    let (Some((head, size)), Some(kind)) = (
                        places.next(),
                        kind.filter(|kind| *kind < self.kinds.list.len()),
                    ) else {
                        return Err(Index::damaged(OTHER_NUMBERS));
                    };
                    #[allow(clippy::cast_possible_truncation)]
                    let (start, end) = (before + *head as usize, before + (head + size) as usize);
                    self.add_leaf(&open, key, before..start, end, kind)?;
                    least += self.least_head(self.entries.len() - 1);
                    if *head < least {
                        return Err(Index::damaged(LONG_KEYS));
                    }
                    before = end;
                    least = 0;
                }
                _ => {
                    return Err(Index::damaged("its outline must consist of maps and kinds"));
                }
            }
            while let Some(last) = open.pop_if(|last: &mut Open| last.left == 0) {
                reader.close()?;
                self.end(&last);
            }
            if open.is_empty() {
                break;
            }
        }
        reader.finish()?;
        let reason = if places.next().is_some() {
            OTHER_NUMBERS
        } else if index.rest < least {
            LONG_KEYS
        } else if least == 0 && index.rest > 0 {
            "it has unknown bytes between the leaves and the record"
        } else {
            return Ok(());
        };
        Err(Index::damaged(reason))
    }

    pub(super) fn begin(
        &mut self,
        open: &mut Vec<Open>,
        key: Key,
        start: usize,
        is_map: bool,
        len: u32,
    ) -> Result<()> {
        let begun = Open {
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
        };
        self.add_entry(open, key, false, !is_map, len)?;
        grow::push(open, begun)
    }

    fn add_entry(
        &mut self,
        open: &[Open],
        key: Key,
        is_leaf: bool,
        is_list: bool,
        len: u32,
    ) -> Result<()> {
        let around = open.last();
        let entry = Entry {
            key,
            is_text: around.is_none_or(|open| open.is_text),
            is_list,
            is_leaf,
            len,
            head: self.leaves.len(),
            parent: around.map_or(0, |open| open.entry),
            end: self.entries.len() + 1,
        };
        grow::push(&mut self.entries, entry)
    }

    pub(super) fn end(&mut self, open: &Open) {
        self.entries[open.entry].end = self.entries.len();
    }

    pub(super) fn add_leaf(
        &mut self,
        open: &[Open],
        key: Key,
        head: Range<usize>,
        end: usize,
        kind: usize,
    ) -> Result<()> {
        self.add_entry(open, key, true, false, 0)?;
        let leaf = LeafSpan {
            region: head.start,
            start: head.end,
            end,
            kind,
        };
        grow::push(&mut self.leaves, leaf)
    }

    fn unwrap_root(&mut self) {
        let is_root = |entry: &Entry| self.text[entry.key.0..entry.key.1] == *ROOT_KEY;
        if (self.record.is_some() || self.damage.is_some())
            && self.entries.get(1).is_some_and(is_root)
            && self.entries[1].end == self.entries.len()
        {
            self.entries.remove(0);
            for entry in &mut self.entries {
                entry.parent = entry.parent.saturating_sub(1);
                entry.end -= 1;
            }
        }
    }
}

const OTHER_NUMBERS: &str = "its outline does not match its numbers of leaves and kinds";

const LONG_KEYS: &str = "its keys are longer than the data";

/// The record's key and bin header, of any width.
const KEY_BYTES: RangeInclusive<usize> = 1 + RECORD_KEY.len() + 2..=5 + RECORD_KEY.len() + 5;

fn is_record(bytes: &Vec<u8>, offset: usize, record: usize) -> bool {
    let mut cursor = Cursor::within(bytes, offset..bytes.len());
    compare_record_key(&mut cursor).is_ok_and(|len| {
        let begins = cursor.offset();
        begins == record && begins + len as usize == bytes.len()
    })
}

fn unless_damaged(done: Result<()>) -> Result<()> {
    done.or_else(|error| {
        if error.is_no_damage() {
            Err(error)
        } else {
            Ok(())
        }
    })
}

fn damaged_rest() -> Error {
    let reason = "the bytes between the leaves and the record of the structure are damaged";
    Error::Structure(reason.into())
}

/// Returns the error for missing bytes if the source is truncated: without a record, headers may be
/// missing, too.
fn or_missing(error: Error, source: &dyn Source) -> Error {
    let start = source.len() - source.len().min(Footer::BYTES);
    let run = source.run(start);
    if run < source.len() - start {
        missing(start + run)
    } else {
        error
    }
}
