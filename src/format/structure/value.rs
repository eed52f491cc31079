//! Typed values: static data of nodes, keys other than strings, metadata.
//!
//! A value keeps its type (a tuple is not a list) and order, and equal values have equal bytes. A
//! value of another type is a name that the program knows, and a value to construct it from.

use rmp_serde::Deserializer;
use serde::{Deserialize, Serialize};

use crate::base::grow::{self, Growing, decode};
use crate::{Error, Result};

/// The name of placeholders for code.
pub const PLACEHOLDER: &str = "treepack.hole";

/// Each level of a value takes up to three levels of MessagePack.
const MAX_NESTING: usize = 3 * Value::MAX_DEPTH + 3;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Complex(f64, f64),
    Str(#[serde(deserialize_with = "decode::text")] String),
    Bytes(
        #[serde(
            serialize_with = "serde_bytes::serialize",
            deserialize_with = "decode::byte_vec"
        )]
        Vec<u8>,
    ),
    Tuple(#[serde(deserialize_with = "decode::list")] Vec<Value>),
    List(#[serde(deserialize_with = "decode::list")] Vec<Value>),
    /// In insertion order.
    Dict(#[serde(deserialize_with = "decode::list")] Vec<(Value, Value)>),
    /// Sorted by the bytes of its elements.
    Frozenset(#[serde(deserialize_with = "decode::list")] Vec<Value>),
    /// Any other type: its name in the program, and the value to construct it from.
    Named(
        #[serde(deserialize_with = "decode::text")] String,
        #[serde(deserialize_with = "decode::boxed")] Box<Value>,
    ),
}

impl Value {
    /// The deepest nesting of values.
    pub const MAX_DEPTH: usize = 32;

    /// Returns a frozenset, sorting its elements.
    pub fn frozenset(elements: Vec<Self>) -> Result<Self> {
        let elements = elements.into_iter();
        let keyed = elements.map(|element| Ok((element.encode()?, element)));
        let mut keyed = grow::try_collect(keyed)?;
        // A stable sort would allocate. Elements with equal bytes are equal.
        keyed.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let elements = keyed.into_iter().map(|(_, element)| element);
        Ok(Self::Frozenset(grow::collect(elements)?))
    }

    /// Returns whether it is text, a number, `None`, or a tuple of these.
    pub(crate) fn is_simple(&self) -> bool {
        match self {
            Self::None | Self::Bool(_) | Self::Int(_) | Self::Float(_) | Self::Str(_) => true,
            Self::Tuple(parts) => parts.iter().all(Self::is_simple),
            _ => false,
        }
    }

    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Growing::default();
        let done = rmp_serde::encode::write(&mut bytes, self);
        bytes.finish(done)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        let mut deserializer = Deserializer::new(&mut rest);
        deserializer.set_max_depth(MAX_NESTING);
        let value = Self::deserialize(&mut deserializer);
        match value {
            Ok(value) if rest.is_empty() => Ok(value),
            Ok(_) => Err(damaged("unexpected bytes after it")),
            Err(error) => Err(decode::explain_sealed(&error, |error| damaged(error))),
        }
    }
}

fn damaged(reason: impl std::fmt::Display) -> Error {
    Error::Structure(format!("a damaged value: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::None),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_map(Value::Float),
            any::<(f64, f64)>().prop_map(|(re, im)| Value::Complex(re, im)),
            ".*".prop_map(Value::Str),
            any::<Vec<u8>>().prop_map(Value::Bytes),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            let many = prop::collection::vec(inner.clone(), 0..5);
            prop_oneof![
                many.clone().prop_map(Value::Tuple),
                many.clone().prop_map(Value::List),
                many.prop_map(|values| Value::frozenset(values).unwrap()),
                prop::collection::vec((inner.clone(), inner.clone()), 0..5).prop_map(Value::Dict),
                (".*", inner).prop_map(|(name, value)| Value::Named(name, value.into())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_come_back(value in values()) {
            let encoded = value.encode().unwrap();
            // Compared as bytes, because a NaN differs from itself.
            prop_assert_eq!(Value::decode(&encoded).unwrap().encode().unwrap(), encoded);
        }

        #[test]
        fn any_bytes_are_a_value_or_an_error(bytes: Vec<u8>) {
            let _ = Value::decode(&bytes);
        }

        #[test]
        fn damaged_values_are_values_or_errors(value in values(), at: prop::sample::Index, byte: u8) {
            let mut encoded = value.encode().unwrap();
            let at = at.index(encoded.len());
            encoded[at] = byte;
            let _ = Value::decode(&encoded);
            prop_assert!(Value::decode(&encoded[..at]).is_err());
        }
    }

    #[test]
    fn the_deepest_value_comes_back_and_a_deeper_one_does_not() {
        fn nested(depth: usize) -> Value {
            (0..depth).fold(Value::None, |value, _| {
                Value::Dict(vec![(Value::None, value)])
            })
        }
        let deepest = nested(Value::MAX_DEPTH);
        assert_eq!(Value::decode(&deepest.encode().unwrap()).unwrap(), deepest);
        let endless = b"\x81\xa4list\x91".repeat(100_000);
        let error = Value::decode(&endless).unwrap_err().to_string();
        assert!(error.contains("depth limit"), "{error}");
    }
}
