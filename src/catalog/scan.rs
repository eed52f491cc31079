//! Finds the leaves in one pass over the headers.

use std::ops::Range;

use super::check::plain_kind;
use super::read::Open;
use super::{Catalog, Entry, Key};
use crate::base::error::Path;
use crate::base::source::{Source, bytes_of};
use crate::base::watch::{Steps, Watch};
use crate::format::events::{Closed, Event, Reader};
use crate::format::footer::Footer;
use crate::format::index::{Index, LeafKind};
use crate::format::structure::RECORD_KEY;
use crate::format::wire::{CHUNKED_MARKER, PRNG_MARKER};
use crate::{Error, Result, base::grow};

impl Catalog {
    pub(super) fn scan(&mut self, source: &dyn Source, watch: &dyn Watch) -> Result<()> {
        let mut open = Vec::new();
        let mut reader = Reader::new(source);
        let read = self.scan_values(source, &mut reader, &mut open, watch);
        let mut path = Path::default();
        let inner = open.iter().position(|open| self.is_in_leaf(open));
        for open in open[..inner.unwrap_or(open.len())].iter().rev() {
            if let Some((start, end)) = open.key {
                path.push_outer(&self.text[start..end]);
            }
        }
        while let Some(last) = open.pop() {
            self.end_early(&last);
        }
        read.map_err(|error| error.of_data_at(|| path))
    }

    fn scan_values(
        &mut self,
        source: &dyn Source,
        reader: &mut Reader<'_>,
        open: &mut Vec<Open>,
        watch: &dyn Watch,
    ) -> Result<()> {
        let mut steps = Steps::new(watch);
        let mut region = 0;
        loop {
            steps.count()?;
            let start = reader.offset();
            let event = reader.next()?;
            let Some(key) = self.key_of(open.last_mut(), reader, event)? else {
                continue;
            };
            let is_record = open.len() == 1 && open[0].is_map && self.text[key.0..] == *RECORD_KEY;
            match event {
                Event::Bin(span) if is_record => {
                    self.record = Some(bytes_of(source, span.range())?);
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
            grow::push_str(&mut self.text, &reader.key_text(event)?)?;
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

    fn is_in_leaf(&self, open: &Open) -> bool {
        self.entries.get(open.entry + 1).is_some_and(|first| {
            let key = &self.text[first.key.0..first.key.1];
            matches!(key, CHUNKED_MARKER | PRNG_MARKER)
        })
    }

    fn end_early(&mut self, open: &Open) {
        let is_empty = open.entry + 1 == self.entries.len();
        if open.entry > 0 && (is_empty || self.is_in_leaf(open)) {
            self.entries.truncate(open.entry);
            self.leaves.truncate(open.leaves);
        } else {
            self.end(open);
        }
    }

    fn kind_of(&mut self, reader: &Reader<'_>, event: Event) -> Result<usize> {
        let kind = match event {
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
            other => plain_kind(&other).unwrap_or(LeafKind::Other),
        };
        self.kinds.number(kind)
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
                let data = self.leaves.last().map(|leaf| &self.kinds.list[leaf.kind]);
                let shape = match data {
                    Some(LeafKind::Array(_, shape)) => grow::to_vec(shape)?,
                    // Reading it fails for lack of a shape.
                    Some(LeafKind::Other) => return self.kinds.number(LeafKind::Other).map(Some),
                    _ => Vec::new(),
                };
                let name = grow::to_string(&open.prng_name)?;
                self.kinds.number(LeafKind::PrngKey(name, shape)).map(Some)
            }
        }
    }
}

fn is_bare_record(source: &dyn Source, bytes: Range<usize>) -> Result<bool> {
    // Shorter bytes may follow a gap, as in a patch.
    let may_be = bytes.end == source.len() && bytes.len() >= Footer::BYTES;
    Ok(may_be && Footer::start_in(source)? == Some(bytes.start))
}
