//! Finds leaves by the index at the end of a source.

use std::ops::RangeInclusive;

use super::check::compare_record_key;
use super::entries::{CHECK_VALUES, Open};
use super::heads::Checked;
use super::{Catalog, Key};
use crate::events::{Event, Reader};
use crate::source::{Source, read_to};
use crate::structure::{Footer, Index, RECORD_KEY, Record};
use crate::watch::{Every, Watch};
use crate::wire::Cursor;
use crate::{Error, Result, grow};

impl Catalog {
    /// Finds the leaves by the index at the end of a source; `None` if it has none of its own.
    pub(super) fn recorded(
        source: &dyn Source,
        salvage: bool,
        watch: &dyn Watch,
    ) -> Result<Option<Self>> {
        let len = source.len();
        let end = len - len.min(Footer::BYTES)..len;
        if source.run(end.start) < end.len() {
            return Ok(None);
        }
        let mut tail = Vec::new();
        read_to(source, end, &mut tail)?;
        let whole = Footer::find(&tail).and_then(|footer| footer.whole());
        let Some(start) = whole.and_then(|whole| len.checked_sub(whole)) else {
            return Ok(None);
        };
        // Include the key and bin header of the record, of any width.
        let furthest = start.saturating_sub(*KEY_BYTES.end());
        let mut offsets = furthest..start;
        let before = offsets.find(|offset| source.run(*offset) == len - offset);
        let before = before.unwrap_or(start);
        tail.clear();
        read_to(source, before..len, &mut tail)?;
        let record = start - before;
        let footer = match Footer::read(&tail[record..]) {
            Ok(footer) => footer,
            Err(damage) if salvage => return Err(damage),
            Err(_) => return Ok(None), // the headers may have more
        };
        let Some(index) = Record::decode(footer.record(&tail[record..]))?.index else {
            return Ok(None);
        };
        let index = Index::decode(&index)?;
        let mut lengths = index.heads.iter().chain(&index.sizes);
        let leaves = lengths.try_fold(0_u64, |sum, len| sum.checked_add(*len));
        let ends = leaves.and_then(|leaves| leaves.checked_add(index.rest));
        let ends = ends.and_then(|ends| ends.checked_sub(before as u64));
        let ends = ends.and_then(|ends| usize::try_from(ends).ok());
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
        let rest = leaves.unwrap_or(0) as usize..start;
        let mut catalog = Self {
            checksums: footer.checksums(&tail[record..])?,
            rest,
            record_key: before + ends,
            damage,
            is_salvage: salvage,
            ..Self::default()
        };
        catalog.read_index(index, watch)?;
        let expected = catalog.leaves.len() + 1;
        catalog.checked = Checked::none(expected)?;
        catalog.read = Checked::none(expected)?;
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
        self.kinds = index.kinds;
        let mut open: Vec<Open> = Vec::new();
        let mut keys: Vec<Key> = Vec::new();
        let mut before = 0;
        let mut every = Every::new(CHECK_VALUES);
        loop {
            every.step(|| watch.check())?;
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
                    let (Some((head, size)), Some(kind)) =
                        (places.next(), kind.filter(|kind| *kind < self.kinds.len()))
                    else {
                        return Err(Index::damaged(
                            "its outline does not match its numbers of leaves and kinds",
                        ));
                    };
                    #[allow(clippy::cast_possible_truncation)]
                    let (start, end) = (before + *head as usize, before + (head + size) as usize);
                    self.add_leaf(&open, key, before..start, end, kind)?;
                    least += self.least_head(self.entries.len() - 1);
                    if *head < least {
                        return Err(Index::damaged("its keys are longer than the data"));
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
        match places.next() {
            None if index.rest < least => Err(Index::damaged("its keys are longer than the data")),
            None if least == 0 && index.rest > 0 => Err(Index::damaged(
                "it has unknown bytes between the leaves and the record",
            )),
            None => Ok(()),
            Some(_) => Err(Index::damaged(
                "its outline does not match its numbers of leaves and kinds",
            )),
        }
    }
}

/// The record's key and bin header, of any width.
const KEY_BYTES: RangeInclusive<usize> = 1 + RECORD_KEY.len() + 2..=5 + RECORD_KEY.len() + 5;

fn is_record(bytes: &Vec<u8>, offset: usize, record: usize) -> bool {
    let mut cursor = Cursor::within(bytes, offset..bytes.len());
    compare_record_key(&mut cursor).is_ok_and(|len| {
        let begins = cursor.offset();
        begins == record && begins + len as usize == bytes.len()
    })
}

pub fn damaged_rest() -> Error {
    let reason = "the bytes between the leaves and the record of the structure are damaged";
    Error::Structure(reason.into())
}
