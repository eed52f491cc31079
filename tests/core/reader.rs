//! The reader agrees with another msgpack library, and is never led past the end.

// The numbers here are small.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use std::mem::MaybeUninit;

use proptest::prelude::*;
use rmpv::Value;
use treepack::base::raw::RawBytes;
use treepack::base::source::Source;
use treepack::format::events::{Event, Events};
use treepack::format::wire::{Cursor, Head, MAX_DEPTH};
use treepack::{Error, Result};

/// Reads a value with everything in it.
fn read(cursor: &mut Cursor<'_>, depth: usize) -> Result<Value> {
    let offset = cursor.offset();
    if depth > MAX_DEPTH {
        let limit = MAX_DEPTH;
        return Err(Error::TooDeep { offset, limit });
    }
    let bytes = |cursor: &mut Cursor<'_>, len: u32| {
        let mut bytes = Vec::new();
        cursor.read(len as usize, &mut bytes).map(|()| bytes)
    };
    Ok(match cursor.head()? {
        Head::Nil => Value::Nil,
        Head::Bool(value) => value.into(),
        Head::Int(value) => value.into(),
        Head::Uint(value) => value.into(),
        Head::Float(value) => value.into(),
        Head::Str(len) => {
            // Which also knows strings that are not UTF-8.
            let mut encoded = Vec::new();
            rmp::encode::write_str_len(&mut encoded, len).unwrap();
            encoded.extend_from_slice(&bytes(cursor, len)?);
            rmpv::decode::read_value(&mut &encoded[..]).unwrap()
        }
        Head::Bin(len) => bytes(cursor, len)?.into(),
        Head::Ext(code, len) => Value::Ext(code, bytes(cursor, len)?),
        Head::Array(count) => {
            let items = (0..count)
                .map(|_| read(cursor, depth + 1))
                .collect::<Result<_>>()?;
            Value::Array(items)
        }
        Head::Map(count) => {
            let pairs = (0..count)
                .map(|_| Ok((read(cursor, depth + 1)?, read(cursor, depth + 1)?)))
                .collect::<Result<_>>()?;
            Value::Map(pairs)
        }
    })
}

/// A source that is no memory, so that it is read in windows.
struct Windowed<'a>(&'a [u8]);

impl Source for Windowed<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        RawBytes::from(self.0).read_at(offset, target)
    }
}

/// The value that events are, without what means an array, a key or a complex number.
fn value_of(events: &Events, source: &[u8], next: &mut usize) -> Value {
    let event = events.as_slice()[*next];
    *next += 1;
    match event {
        Event::Nil => Value::Nil,
        Event::Bool(value) => value.into(),
        Event::Int(value) => value.into(),
        Event::Uint(value) => value.into(),
        Event::Float(value) => value.into(),
        Event::Str(text) => events.text(text).into(),
        Event::Bin(span) => source[span.range()].into(),
        Event::Ext(code, span) => Value::Ext(code, source[span.range()].to_vec()),
        Event::List(list) => {
            let items = (0..list.len).map(|_| value_of(events, source, next));
            Value::Array(items.collect())
        }
        Event::Map(map) => {
            let pair = |_| {
                (
                    value_of(events, source, next),
                    value_of(events, source, next),
                )
            };
            Value::Map((0..map.len).map(pair).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Whether a value, and all in it, has no meaning of its own and keys that have hashes.
fn is_plain(value: &Value, is_key: bool) -> bool {
    match value {
        Value::Ext(code, _) => !(1..=3).contains(code),
        Value::Array(items) => !is_key && items.iter().all(|item| is_plain(item, false)),
        Value::Map(pairs) => {
            let plain =
                |(key, value): &(Value, Value)| is_plain(key, true) && is_plain(value, false);
            !is_key && pairs.iter().all(plain)
        }
        Value::String(text) => text.is_str(),
        _ => true,
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("comparable", |f| !f.is_nan())
            .prop_map(Value::from),
        "\\PC{0,40}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::from),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(c, b)| Value::Ext(c, b)),
    ];
    leaf.prop_recursive(5, 60, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
        ]
    })
}

/// A value with all floats as `f64`, which is how they are read here.
fn widened(value: Value) -> Value {
    match value {
        Value::F32(value) => f64::from(value).into(),
        Value::Array(items) => items.into_iter().map(widened).collect(),
        Value::Map(pairs) => {
            let pairs = pairs.into_iter();
            Value::Map(
                pairs
                    .map(|(key, value)| (widened(key), widened(value)))
                    .collect(),
            )
        }
        other => other,
    }
}

fn encode(value: &Value) -> Vec<u8> {
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, value).unwrap();
    encoded
}

proptest! {
    #[test]
    fn any_value_reads_as_it_was_written(value in values()) {
        let encoded = encode(&value);
        let mut cursor = Cursor::new(&encoded);
        prop_assert_eq!(read(&mut cursor, 0).unwrap(), value);
        cursor.finish().unwrap();
    }

    #[test]
    fn events_are_the_value(value in values()) {
        let encoded = encode(&value);
        let events = Events::read(&encoded);
        if is_plain(&value, false) {
            let events = events.unwrap();
            let mut next = 0;
            prop_assert_eq!(value_of(&events, &encoded, &mut next), value);
            prop_assert_eq!(next, events.as_slice().len());
        }
    }

    #[test]
    fn windows_show_the_same_as_memory(value in values(), end in any::<prop::sample::Index>()) {
        let encoded = encode(&Value::Array(vec![value; 40]));
        let end = end.index(2 * encoded.len()).min(encoded.len());
        let encoded = encoded[..end].to_vec();
        let in_memory = Events::read(&encoded);
        let in_windows = Events::read(&Windowed(&encoded));
        prop_assert_eq!(format!("{in_memory:?}"), format!("{in_windows:?}"));
    }

    #[test]
    fn every_truncation_is_noticed_at_an_offset_inside(value in values()) {
        let encoded = encode(&value);
        for end in 0..encoded.len() {
            let encoded = encoded[..end].to_vec();
            let error = read(&mut Cursor::new(&encoded), 0).unwrap_err();
            prop_assert!(error.offset().unwrap() <= end);
            let error = Events::read(&encoded).unwrap_err();
            prop_assert!(error.offset().unwrap() <= end);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut cursor = Cursor::new(&bytes);
        let ours = read(&mut cursor, 0);
        let events = Events::read(&bytes);
        if let Ok(value) = ours {
            let mut rest = &bytes[..];
            let theirs = rmpv::decode::read_value(&mut rest).unwrap();
            prop_assert_eq!(bytes.len() - rest.len(), cursor.offset());
            // NaN is not equal to itself.
            prop_assert_eq!(format!("{value:?}"), format!("{:?}", widened(theirs)));
            if is_plain(&value, false) {
                prop_assert_eq!(events.is_ok(), rest.is_empty());
            }
        } else {
            prop_assert!(events.is_err());
        }
    }
}

#[test]
fn a_declared_length_is_never_believed() {
    let lies: [&[u8]; 8] = [
        b"\xdb\xff\xff\xff\xff",     // str32
        b"\xc6\xff\xff\xff\xff",     // bin32
        b"\xdd\xff\xff\xff\xff",     // array32
        b"\xdf\xff\xff\xff\xff",     // map32
        b"\xc9\xff\xff\xff\xff\x01", // ext32
        b"\xdc\xff\xff",
        b"\xde\xff\xff\x00",
        b"\x82\x00\x00\x00",
    ];
    for lie in lies {
        let lie = lie.to_vec();
        let error = Cursor::new(&lie).head().unwrap_err();
        assert!(
            matches!(error, Error::Truncated { offset: 0, .. }),
            "{lie:x?}: {error:?}"
        );
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
    Events::read(&nested(MAX_DEPTH)).unwrap();
    let error = Events::read(&nested(MAX_DEPTH + 1)).unwrap_err();
    assert!(matches!(error.split().0, Error::TooDeep { offset, .. } if offset == MAX_DEPTH));
}

#[test]
fn trailing_bytes_are_an_error_with_their_offset() {
    let error = Events::read(&b"\x01\x02\x03".to_vec()).unwrap_err();
    assert_eq!(error.offset(), Some(1));
    assert!(error.to_string().contains("2 trailing bytes"), "{error}");
}
