//! The reader agrees with another msgpack library, and is never led past the end.

// The numbers here are small.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use proptest::prelude::*;
use rmpv::Value;
use treepack::wire::{Cursor, MAX_DEPTH, Token};
use treepack::{Error, Result};

/// Reads a value with everything in it.
fn read(cursor: &mut Cursor<'_>, depth: usize) -> Result<Value> {
    let offset = cursor.offset();
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep { offset });
    }
    Ok(match cursor.token()? {
        Token::Nil => Value::Nil,
        Token::Bool(value) => value.into(),
        Token::Int(value) => value.into(),
        Token::Uint(value) => value.into(),
        Token::Float(value) => value.into(),
        Token::Str(bytes) => {
            // Which also knows strings that are not UTF-8.
            let mut encoded = Vec::new();
            rmp::encode::write_str_len(&mut encoded, bytes.len() as u32).unwrap();
            encoded.extend_from_slice(bytes);
            rmpv::decode::read_value(&mut &encoded[..]).unwrap()
        }
        Token::Bin(bytes) => bytes.into(),
        Token::Ext(code, body) => Value::Ext(code, body.to_vec()),
        Token::Array(count) => {
            let items = (0..count)
                .map(|_| read(cursor, depth + 1))
                .collect::<Result<_>>()?;
            Value::Array(items)
        }
        Token::Map(count) => {
            let pairs = (0..count)
                .map(|_| Ok((read(cursor, depth + 1)?, read(cursor, depth + 1)?)))
                .collect::<Result<_>>()?;
            Value::Map(pairs)
        }
    })
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
        let mut cursor = Cursor::new(&encoded);
        cursor.skip().unwrap();
        cursor.finish().unwrap();
    }

    #[test]
    fn every_truncation_is_noticed_at_an_offset_inside(value in values()) {
        let encoded = encode(&value);
        for end in 0..encoded.len() {
            let error = read(&mut Cursor::new(&encoded[..end]), 0).unwrap_err();
            prop_assert!(error.offset().unwrap() <= end);
            let error = Cursor::new(&encoded[..end]).skip().unwrap_err();
            prop_assert!(error.offset().unwrap() <= end);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut cursor = Cursor::new(&bytes);
        let ours = read(&mut cursor, 0);
        let mut skipping = Cursor::new(&bytes);
        prop_assert_eq!(skipping.skip().is_ok(), ours.is_ok());
        if let Ok(value) = ours {
            prop_assert_eq!(skipping.offset(), cursor.offset());
            let mut rest = &bytes[..];
            let theirs = rmpv::decode::read_value(&mut rest).unwrap();
            prop_assert_eq!(bytes.len() - rest.len(), cursor.offset());
            // NaN is not equal to itself.
            prop_assert_eq!(format!("{value:?}"), format!("{:?}", widened(theirs)));
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
        let error = Cursor::new(lie).token().unwrap_err();
        assert!(
            matches!(error, Error::Truncated { offset: 0, .. }),
            "{lie:x?}: {error:?}"
        );
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
    Cursor::new(&nested(MAX_DEPTH)).skip().unwrap();
    let error = Cursor::new(&nested(MAX_DEPTH + 1)).skip().unwrap_err();
    assert!(matches!(error, Error::TooDeep { offset } if offset == MAX_DEPTH));
}

#[test]
fn trailing_bytes_are_told_with_their_offset() {
    let mut cursor = Cursor::new(b"\x01\x02\x03");
    cursor.token().unwrap();
    let error = cursor.finish().unwrap_err();
    assert_eq!(error.offset(), Some(1));
    assert!(error.to_string().contains("2 trailing bytes"), "{error}");
}
