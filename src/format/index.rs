//! The index: the positions of a tree's leaves, which replaces reading all headers.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_bytes::ByteBuf;

use crate::base::grow::{self, decode};
use crate::base::watch::Watch;
use crate::format::footer::count_of;
use crate::format::wire::Head;
use crate::{Error, Result};

/// The deepest nesting of MessagePack in an index.
const MAX_NESTING: usize = 16;

/// The kind of a leaf as the index records it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafKind {
    /// `nil`.
    None,
    Bool,
    Int,
    Float,
    Complex,
    Str,
    Bytes,
    /// An extension of another type.
    Ext,
    /// An array: dtype and shape.
    Array(String, Vec<u64>),
    /// A NumPy scalar: dtype.
    Scalar(String),
    /// A typed PRNG key: its implementation, and the shape of its data.
    PrngKey(String, Vec<u64>),
    /// A list, or a map with keys other than strings, and its content.
    Container,
    /// A kind of a later version.
    Other,
}

impl LeafKind {
    pub fn try_clone(&self) -> Result<Self> {
        Ok(match self {
            Self::Array(dtype, shape) => Self::Array(grow::to_string(dtype)?, grow::to_vec(shape)?),
            Self::PrngKey(name, shape) => {
                Self::PrngKey(grow::to_string(name)?, grow::to_vec(shape)?)
            }
            Self::Scalar(dtype) => Self::Scalar(grow::to_string(dtype)?),
            plain => plain.clone(),
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Array(..) => "array",
            Self::Scalar(_) => "scalar",
            Self::PrngKey(..) => "prng_key",
            _ => {
                let plain = PLAIN.iter().find(|(kind, _)| kind == self);
                plain.map_or("other", |(_, name)| name)
            }
        }
    }
}

/// Compares the shape of an array with a recorded one.
pub fn is_shape(shape: &[usize], recorded: &[u64]) -> bool {
    let dims = shape.iter().map(|dim| *dim as u64);
    dims.eq(recorded.iter().copied())
}

/// Kinds without parts.
const PLAIN: [(LeafKind, &str); 9] = [
    (LeafKind::None, "none"),
    (LeafKind::Bool, "bool"),
    (LeafKind::Int, "int"),
    (LeafKind::Float, "float"),
    (LeafKind::Complex, "complex"),
    (LeafKind::Str, "str"),
    (LeafKind::Bytes, "bytes"),
    (LeafKind::Ext, "ext"),
    (LeafKind::Container, "container"),
];

/// Unknown kinds are of a later version. (serde's derived code copies input that it may need twice,
/// and aborts if out of memory.)
impl<'de> Deserialize<'de> for LeafKind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

macro_rules! others {
    ($($visit:ident: $type:ty,)*) => {$(
        fn $visit<E: serde::de::Error>(self, _: $type) -> std::result::Result<LeafKind, E> {
            Ok(LeafKind::Other)
        }
    )*};
}

impl<'de> Visitor<'de> for KindVisitor {
    type Value = LeafKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a kind, or a map of one to its parts")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> std::result::Result<LeafKind, E> {
        let plain = PLAIN.into_iter().find(|(_, plain)| *plain == name);
        Ok(plain.map_or(LeafKind::Other, |(kind, _)| kind))
    }

    others! {
        visit_bool: bool,
        visit_i64: i64,
        visit_u64: u64,
        visit_f64: f64,
        visit_bytes: &[u8],
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<LeafKind, E> {
        Ok(LeafKind::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<LeafKind, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LeafKind::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<LeafKind, A::Error> {
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Text(#[serde(deserialize_with = "decode::text")] String);
        #[derive(Deserialize)]
        struct Shaped(
            #[serde(deserialize_with = "decode::text")] String,
            #[serde(deserialize_with = "decode::list")] Vec<u64>,
        );
        let Some(Text(name)) = map.next_key()? else {
            return Err(A::Error::custom("a kind without a name"));
        };
        let kind = match name.as_str() {
            "array" => map.next_value().map(|Shaped(a, b)| LeafKind::Array(a, b))?,
            "prng_key" => map
                .next_value()
                .map(|Shaped(a, b)| LeafKind::PrngKey(a, b))?,
            "scalar" => map
                .next_value()
                .map(|Text(dtype)| LeafKind::Scalar(dtype))?,
            _ => map.next_value().map(|IgnoredAny| LeafKind::Other)?,
        };
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(kind)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// MessagePack: the tree, with its kind's number for each leaf. A repeated key is the number of
    /// its first occurrence.
    #[serde(deserialize_with = "decode::bytes")]
    pub outline: ByteBuf,
    #[serde(deserialize_with = "decode::list")]
    pub kinds: Vec<LeafKind>,
    /// For each leaf, the bytes between the end of the previous one and its value: headers of
    /// containers, and its key.
    #[serde(deserialize_with = "decode::list")]
    pub heads: Vec<u64>,
    #[serde(deserialize_with = "decode::list")]
    pub sizes: Vec<u64>,
    /// The bytes between the last leaf and the key of the record: empty containers.
    pub rest: u64,
}

impl Index {
    pub fn encode(&self, watch: &dyn Watch) -> Result<Vec<u8>> {
        grow::encode_named(self, watch)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let index: Self = decode::nested(bytes, MAX_NESTING)
            .map_err(|error| decode::explain(&error, |error| Self::damaged(error)))?;
        if index.heads.len() != index.sizes.len() {
            return Err(Self::damaged("its columns differ in length"));
        }
        Ok(index)
    }

    pub fn damaged(reason: impl fmt::Display) -> Error {
        Error::Structure(format!("the index of the leaves is damaged: {reason}"))
    }
}

#[derive(Debug, Default)]
struct Keys {
    count: usize,
    others: HashMap<Box<str>, u32>,
    /// By index, because long lists have many such keys.
    indices: Vec<u32>,
}

impl Keys {
    /// A new key gets the next number.
    fn number(&mut self, key: &str) -> Result<Option<u32>> {
        let index = index_of(key).filter(|&index| index <= self.indices.len());
        let existing = match index {
            Some(index) if index < self.indices.len() => Some(self.indices[index]),
            _ => self.others.get(key).copied(),
        };
        let number = existing.map_or_else(|| count_of(self.count), Ok)?;
        if index == Some(self.indices.len()) {
            grow::push(&mut self.indices, number)?;
        } else if existing.is_none() {
            self.others.try_reserve(1)?;
            self.others.insert(grow::to_string(key)?.into(), number);
        }
        self.count += usize::from(existing.is_none());
        Ok(existing)
    }
}

fn index_of(key: &str) -> Option<usize> {
    let is_short = matches!(key.as_bytes(), [b'0'] | [b'1'..=b'9', ..]) && key.len() < 10;
    let digits = key.bytes().all(|byte| byte.is_ascii_digit());
    (is_short && digits).then(|| key.parse().ok()).flatten()
}

/// Numbers the kinds of leaves.
#[derive(Debug, Default)]
pub struct Kinds {
    pub list: Vec<LeafKind>,
    numbers: HashMap<LeafKind, usize>,
    last: usize,
}

impl Kinds {
    pub fn number(&mut self, kind: LeafKind) -> Result<usize> {
        if self.list.get(self.last) == Some(&kind) {
            return Ok(self.last); // most leaves are like the previous one
        }
        let next = self.list.len();
        self.last = self.numbers.get(&kind).copied().unwrap_or(next);
        if self.last == next {
            self.numbers.try_reserve(1)?;
            self.numbers.insert(kind.try_clone()?, next);
            grow::push(&mut self.list, kind)?;
        }
        Ok(self.last)
    }
}

#[derive(Debug, Default)]
pub struct Listing {
    index: Index,
    kinds: Kinds,
    keys: Keys,
    ends: Vec<usize>,
    /// The current leaf, and the start of its value.
    pub pending: Option<(LeafKind, usize)>,
}

impl Listing {
    #[inline]
    pub fn end_leaf(&mut self, end: usize) -> Result<()> {
        match self.pending.take() {
            Some((kind, start)) => self.add(kind, start, end),
            None => Ok(()),
        }
    }

    fn add(&mut self, kind: LeafKind, start: usize, end: usize) -> Result<()> {
        let number = self.kinds.number(kind)?;
        self.head(Head::Uint(number as u64))?;
        let before = self.ends.last().copied().unwrap_or(0);
        grow::push(&mut self.index.heads, (start - before) as u64)?;
        grow::push(&mut self.index.sizes, (end - start) as u64)?;
        grow::push(&mut self.ends, end)
    }

    pub fn head(&mut self, head: Head) -> Result<()> {
        self.index.outline.try_reserve(Head::MAX_BYTES)?;
        head.write(&mut *self.index.outline);
        Ok(())
    }

    pub fn key(&mut self, head: Head, text: &str) -> Result<()> {
        if let Some(number) = self.keys.number(text)? {
            return self.head(Head::Uint(number.into()));
        }
        self.head(head)?;
        grow::extend(&mut self.index.outline, text.as_bytes())
    }

    pub fn finish(mut self, end: usize) -> Result<(Index, Vec<usize>)> {
        self.end_leaf(end)?;
        self.index.kinds = self.kinds.list;
        self.index.rest = (end - self.ends.last().copied().unwrap_or(0)) as u64;
        Ok((self.index, self.ends))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::Keys;

    proptest! {
        #[test]
        fn keys_are_numbered_as_they_come(
            keys in prop::collection::vec("[a0-9]?[0-9]?|[0-2]|99999999999999999999", 0..100),
        ) {
            let mut expected = HashMap::new();
            let mut numbered = Keys::default();
            for key in &keys {
                let count = u32::try_from(expected.len()).unwrap();
                let earlier = expected.get(key.as_str()).copied();
                expected.entry(key.as_str()).or_insert(count);
                prop_assert_eq!(numbered.number(key).unwrap(), earlier);
            }
        }
    }
}
