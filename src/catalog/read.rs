//! Opens a catalog: finds leaves by the index, or else by all headers.

use std::ops::Range;

use super::entries::{CHECK_VALUES, Open};
use super::{Catalog, Entry};
use crate::error::Path;
use crate::events::{Closed, Event, Reader};
use crate::source::{Source, missing, read_to};
use crate::structure::{Footer, Index, LeafKind, RECORD_KEY, ROOT_KEY, Record, checksums_of};
use crate::watch::{Every, Watch};
use crate::wire::PRNG_MARKER;
use crate::{Error, Result, grow};

impl Catalog {
    /// Finds all leaves. With `salvage`, skips damaged leaves and notes the reason in
    /// [`Catalog::damage`].
    pub fn open(source: &dyn Source, salvage: bool, watch: &dyn Watch) -> Result<Self> {
        let mut found = Self::default();
        match Self::recorded(source, salvage, watch) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) if !salvage || error.is_no_damage() => return Err(error),
            Err(error) => found.damage = Some(error), // the headers may have more
        }
        let done = found.scan(source, watch).and_then(|()| {
            let Some(record) = &found.record else {
                return Ok(());
            };
            Record::read(record).map(drop)
        });
        let mut record = None;
        let is_misread = done.is_err();
        match done {
            Err(error) if error.is_no_damage() => return Err(error),
            Err(error) if !salvage => return Err(or_missing(error, source)),
            Err(error) => {
                found.damage = Some(or_missing(error, source));
                record = found.record.take();
            }
            Ok(()) => {}
        }
        if found.damage.is_some() && found.entries.first().is_none_or(|root| root.is_leaf) {
            // Not even the root was readable: any byte below 128 is a number.
            found = found.emptied()?;
        }
        if found.damage.is_some() {
            match found.keep_checksums(source, record.as_deref(), is_misread) {
                Err(error) if error.is_no_damage() => return Err(error),
                _ => {}
            }
        }
        found.unwrap_root();
        Ok(found)
    }

    pub fn emptied(self) -> Result<Self> {
        let mut found = Self {
            damage: self.damage,
            ..Self::default()
        };
        found.begin(&mut Vec::new(), (0, 0), 0, true, 0)?;
        found.entries[0].end = 1;
        Ok(found)
    }

    /// Keeps the checksums after a damaged record. `is_misread`: the last leaf may be misread.
    fn keep_checksums(
        &mut self,
        source: &dyn Source,
        record: Option<&[u8]>,
        is_misread: bool,
    ) -> Result<()> {
        let end = source.len() - source.len().min(Footer::BYTES);
        let mut tail = Vec::new();
        read_to(source, end..source.len(), &mut tail)?;
        let Some(footer @ Footer { checksums, .. }) = Footer::find(&tail) else {
            return Ok(());
        };
        if record.is_some_and(|record| footer.whole() != Some(record.len())) {
            return Ok(());
        }
        // Only strings are keys beside a record; anything else was misread.
        let is_damage = |entry: &Entry| entry.parent == 0 && !entry.is_text;
        if let Some(first) = self.entries.iter().position(is_damage)
            && is_misread
        {
            self.leaves.truncate(self.entries[first].head);
            self.entries.truncate(first);
            self.entries[0].end = first;
        }
        // In an index, lists and maps with other keys are single leaves with one checksum.
        let is_other = |entry: &Entry| entry.is_list || !entry.is_text;
        let known = self.entries.iter().find(|entry| is_other(entry));
        let known = known.map_or(self.leaves.len(), |entry| entry.head);
        let start = checksums
            .checked_mul(4)
            .and_then(|len| end.checked_sub(len));
        if let Some(start) = start.filter(|_| known < checksums) {
            tail.clear();
            read_to(source, start..start + 4 * known, &mut tail)?;
            self.checksums = checksums_of(&tail)?;
        }
        Ok(())
    }

    fn scan(&mut self, source: &dyn Source, watch: &dyn Watch) -> Result<()> {
        let mut open = Vec::new();
        let mut reader = Reader::new(source);
        let read = self.scan_values(source, &mut reader, &mut open, watch);
        let mut path = Path::default();
        for open in open.iter().rev() {
            if let Some((start, end)) = open.key {
                path.push_outer(&self.text[start..end]);
            }
        }
        while let Some(last) = open.pop() {
            self.end_early(&last);
        }
        read.map_err(|error| match error {
            error if error.is_no_damage() => error,
            error => Error::At {
                path,
                error: Box::new(error),
            },
        })
    }

    fn scan_values(
        &mut self,
        source: &dyn Source,
        reader: &mut Reader<'_>,
        open: &mut Vec<Open>,
        watch: &dyn Watch,
    ) -> Result<()> {
        let mut every = Every::new(CHECK_VALUES);
        let mut region = 0;
        loop {
            every.step(|| watch.check())?;
            let start = reader.offset();
            let event = reader.next()?;
            let Some(key) = self.key_of(open.last_mut(), reader, event)? else {
                continue;
            };
            let is_record = open.len() == 1 && open[0].is_map && self.text[key.0..] == *RECORD_KEY;
            match event {
                Event::Bin(span) if is_record => {
                    let mut record = Vec::new();
                    read_to(source, span.range(), &mut record)?;
                    self.record = Some(record);
                    self.rest = region..span.range().start;
                }
                _ if is_record => {
                    let reason = format!("the value of {RECORD_KEY:?} is not bytes");
                    return Err(Error::malformed(start, reason));
                }
                Event::Map(map) => self.begin(open, key, start, true, map.len)?,
                Event::List(list) => self.begin(open, key, start, false, list.len)?,
                Event::Bin(span) if open.len() == 1 && is_bare_record(source, span.range())? => {
                    return Err(Index::damaged("the record is not under its key"));
                }
                event => {
                    if let (Event::Str(name), Some(map)) = (event, open.last_mut())
                        && self.text[key.0..] == *PRNG_MARKER
                    {
                        map.prng_name = grow::to_string(reader.events().text(name))?;
                    }
                    let kind = self.kind_of(reader, event)?;
                    self.add_leaf(open, key, region..start, reader.offset(), kind)?;
                    region = reader.offset();
                }
            }
            while let Some(last) = open.last()
                && last.left == 0
            {
                let kind = self.kind_of_closed(reader.close()?, reader, last)?;
                let Some(last) = open.pop() else { break };
                let Some(kind) = kind else {
                    self.end(&last);
                    continue;
                };
                let Entry { key, .. } = self.entries[last.entry];
                let first = self.leaves.get(last.leaves);
                let begin = first.map_or(last.start, |leaf| leaf.region);
                self.entries.truncate(last.entry);
                self.leaves.truncate(last.leaves);
                self.text.truncate(last.text);
                region = reader.offset();
                self.add_leaf(open, key, begin..last.start, region, kind)?;
            }
            if open.is_empty() {
                return reader.finish();
            }
        }
    }

    fn kind_of(&mut self, reader: &Reader<'_>, event: Event) -> Result<usize> {
        let kind = match event {
            Event::Nil => LeafKind::None,
            Event::Bool(_) => LeafKind::Bool,
            Event::Int(_) | Event::Uint(_) => LeafKind::Int,
            Event::Float(_) => LeafKind::Float,
            Event::Complex(_) => LeafKind::Complex,
            Event::Str(_) => LeafKind::Str,
            Event::Bin(_) => LeafKind::Bytes,
            Event::Ext(..) => LeafKind::Ext,
            Event::Array(number) | Event::Scalar(number) => {
                let array = reader.events().array(number);
                let dtype = grow::to_string(&String::from_utf8_lossy(array.dtype))?;
                match (event, array.shape()) {
                    // Reading it fails for lack of a shape.
                    (_, None) => LeafKind::Other,
                    (Event::Scalar(_), _) => LeafKind::Scalar(dtype),
                    (_, Some(shape)) => {
                        let shape = grow::collect(shape.iter().map(|dim| *dim as u64))?;
                        LeafKind::Array(dtype, shape)
                    }
                }
            }
            _ => LeafKind::Other,
        };
        self.number_of(kind)
    }

    fn kind_of_closed(
        &mut self,
        closed: Closed,
        reader: &Reader<'_>,
        open: &Open,
    ) -> Result<Option<usize>> {
        match closed {
            Closed::Same => Ok(None),
            Closed::Array(number) => self.kind_of(reader, Event::Array(number)).map(Some),
            Closed::PrngKey => {
                let data = self.leaves.last().map(|leaf| &self.kinds[leaf.kind]);
                let shape = match data {
                    Some(LeafKind::Array(_, shape)) => grow::to_vec(shape)?,
                    // Reading it fails for lack of a shape.
                    Some(LeafKind::Other) => return self.number_of(LeafKind::Other).map(Some),
                    _ => Vec::new(),
                };
                let name = grow::to_string(&open.prng_name)?;
                self.number_of(LeafKind::PrngKey(name, shape)).map(Some)
            }
        }
    }

    fn number_of(&mut self, kind: LeafKind) -> Result<usize> {
        if let Some(last) = self.leaves.last()
            && self.kinds[last.kind] == kind
        {
            return Ok(last.kind); // most leaves are like the previous one
        }
        if let Some(number) = self.numbers.get(&kind) {
            return Ok(*number);
        }
        let number = self.kinds.len();
        self.numbers.try_reserve(1)?;
        self.numbers.insert(kind.try_clone()?, number);
        grow::push(&mut self.kinds, kind)?;
        Ok(number)
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

fn is_bare_record(source: &dyn Source, bytes: Range<usize>) -> Result<bool> {
    if bytes.end != source.len() || bytes.len() < Footer::BYTES {
        return Ok(false);
    }
    let mut footer = Vec::new();
    read_to(source, bytes.end - Footer::BYTES..bytes.end, &mut footer)?;
    let whole = Footer::find(&footer).and_then(|footer| footer.whole());
    Ok(whole == Some(bytes.len()))
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
