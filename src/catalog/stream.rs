//! Reads streams of leaves: a sequence of `[keys, bytes]` lists
//! (<https://github.com/young-geng/EasyLM/blob/main/EasyLM/checkpoint.py>).

use std::ops::Range;

use crate::base::source::Source;
use crate::base::watch::Watch;
use crate::format::events::{Event, Reader};
use crate::{Error, Result, base::grow};

type Item = (Vec<String>, Range<usize>);

pub fn stream_items(source: &dyn Source, watch: &dyn Watch) -> Result<Vec<Item>> {
    let mut items: Vec<Item> = Vec::new();
    let mut start = 0;
    while start < source.len() {
        watch.check()?;
        let item = stream_item(source, start)?;
        start = item.1.end;
        grow::push(&mut items, item)?;
    }
    Ok(items)
}

pub fn stream_item(source: &dyn Source, start: usize) -> Result<Item> {
    let mut reader = Reader::within(source, start..source.len());
    let no_item = || {
        let reason = "a value of a stream must be [[key, ...], bytes]: treepack.load reads \
                      other files";
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
    match (item.len, reader.next()?) {
        (2, Event::Bin(value)) => Ok((key, value.range())),
        _ => Err(no_item()),
    }
}
