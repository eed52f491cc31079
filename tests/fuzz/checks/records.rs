//! Any bytes are events, a structure, an index, a value, items of a stream, or an error.

use treepack::Result;
use treepack::catalog::stream_items;
use treepack::format::array::resolve;
use treepack::format::events::{Event, Events};
use treepack::format::index::Index;
use treepack::format::structure::{Record, Value};

use super::Windowed;

/// In memory and in windows alike.
pub fn read(data: &[u8]) {
    let memory = data.to_vec();
    if let Ok(items) = stream_items(&memory, &()) {
        let mut before = 0;
        for (_, place) in &items {
            assert!(before < place.start && place.start <= place.end && place.end <= data.len());
            before = place.end;
        }
        assert_eq!(stream_items(&Windowed(data), &()).unwrap(), items);
    }
    let events = Events::read(&memory);
    let windowed = Events::read(&Windowed(data));
    let shown = |events: &Result<Events>| match events {
        Ok(events) => Ok(described(events)),
        Err(error) => Err(format!("{error:?}")),
    };
    assert_eq!(shown(&events), shown(&windowed));
    let Ok(events) = events else {
        return;
    };
    for event in events.as_slice() {
        match event {
            Event::Array(number) | Event::Scalar(number) => {
                let array = events.array(*number);
                let ends = array.spans.iter().map(|span| span.range().end);
                assert!(ends.max().is_none_or(|end| end <= data.len()));
                let _ = resolve(array.dims, array.nbytes(), 4, array.offset);
                let (_, _) = (array.shape(), array.has_known_size());
            }
            Event::Bin(span) | Event::Ext(_, span) => assert!(span.range().end <= data.len()),
            Event::Map(it) | Event::List(it) | Event::PrngKey(it) => {
                assert!(it.end <= events.as_slice().len());
            }
            _ => {}
        }
        let _ = events.key_text(*event);
    }
}

/// All that events tell. Where they keep it differs: at the end of a window, headers like those of
/// an array before are read, not recognised.
pub fn described(events: &Events) -> Vec<String> {
    let described = |event: &Event| match event {
        Event::Array(number) | Event::Scalar(number) => {
            let it = events.array(*number);
            let (dims, dtype, spans, offset) = (it.dims, it.dtype, it.spans, it.offset);
            format!("{event:?} {dims:?} {dtype:?} {spans:?} {offset}")
        }
        Event::Complex(number) => format!("{event:?} {:?}", events.complex(*number)),
        Event::Str(text) => format!("{event:?} {:?}", events.text(*text)),
        _ => format!("{event:?}"),
    };
    events.as_slice().iter().map(described).collect()
}

/// What is read is written, and comes back.
pub fn structure(data: &[u8]) {
    if let Ok(record) = Record::decode(data) {
        assert_eq!(
            Record::decode(&record.encode(&()).unwrap()).unwrap(),
            record
        );
    }
    if let Ok(index) = Index::decode(data) {
        assert_eq!(Index::decode(&index.encode(&()).unwrap()).unwrap(), index);
        for kind in &index.kinds {
            assert_eq!(kind.try_clone().unwrap(), *kind);
        }
    }
    if let Ok(value) = Value::decode(data) {
        // Compared as bytes, because a NaN differs from itself.
        let encoded = value.encode().unwrap();
        let again = Value::decode(&encoded).unwrap();
        assert_eq!(again.encode().unwrap(), encoded);
    }
}
