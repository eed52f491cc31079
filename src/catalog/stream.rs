//! Reads streams of leaves: a sequence of `[keys, bytes]` lists.

use std::ops::Range;

use crate::events::{Event, Reader};
use crate::source::Source;
use crate::watch::Watch;
use crate::{Error, Result, grow};

pub fn stream_items(
    source: &dyn Source,
    watch: &dyn Watch,
) -> Result<Vec<(Vec<String>, Range<usize>)>> {
    let mut items = Vec::new();
    let mut start = 0;
    while start < source.len() {
        watch.check()?;
        let mut reader = Reader::within(source, start..source.len());
        let no_item = || {
            let reason = "a value of a stream must be [[key, ...], bytes]";
            Error::malformed(start, reason)
        };
        let Event::List(item) = reader.next()? else {
            return Err(no_item());
        };
        let mut key = Vec::new();
        match reader.next()? {
            Event::Str(text) => grow::push(&mut key, grow::to_string(reader.events().text(text))?)?,
            Event::List(keys) => {
                for _ in 0..keys.len {
                    let part = reader.next()?;
                    let part = grow::to_string(&reader.key_text(part)?)?;
                    grow::push(&mut key, part)?;
                }
                reader.close()?;
            }
            _ => return Err(no_item()),
        }
        let (2, Event::Bin(value)) = (item.len, reader.next()?) else {
            return Err(no_item());
        };
        grow::push(&mut items, (key, value.range()))?;
        start = reader.offset();
    }
    Ok(items)
}
