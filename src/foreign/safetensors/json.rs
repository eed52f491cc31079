//! JSON of headers, read as the reader of safetensors reads it, by the same parser.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use smallvec::SmallVec;

use crate::base::grow::decode;
use crate::{Error, Result};

/// The most bytes of a key or value in a message.
const SHOWN: usize = 100;

/// Reads a value at an offset of a file; `refusal` makes the message of a reason.
pub fn read<'a, T: Deserialize<'a>>(
    text: &'a str,
    offset: usize,
    refusal: impl FnOnce(&str) -> String,
) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        if decode::is_out_of_memory(&reason) {
            return Error::OutOfMemory;
        }
        let lines = text.split_inclusive('\n');
        let before = lines.take(error.line().saturating_sub(1));
        let before: usize = before.map(str::len).sum();
        Error::malformed(offset + before + error.column(), refusal(&reason))
    })
}

#[derive(PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(transparent)]
pub struct Key<'a>(#[serde(borrow)] pub Cow<'a, str>);

#[derive(serde::Deserialize)]
#[serde(transparent)]
pub struct Text(#[serde(deserialize_with = "decode::text")] pub String);

/// The entries of an object in order, whose keys are different.
pub struct Object<'a, V>(pub SmallVec<[(Key<'a>, V); 4]>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Object<'de, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        from.deserialize_map(Entries(PhantomData))
    }
}

struct Entries<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
    type Value = Object<'de, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let full = |_| A::Error::custom(Error::OutOfMemory);
        let mut entries = SmallVec::new();
        while let Some(entry) = map.next_entry()? {
            entries.try_reserve(1).map_err(full)?;
            entries.push(entry);
        }
        let mut keys = SmallVec::<[&str; 4]>::new();
        keys.try_reserve(entries.len()).map_err(full)?;
        keys.extend(entries.iter().map(|(Key(key), _): &(Key<'_>, V)| &**key));
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = format!("duplicate key '{}'", shortened(pair[0]));
            return Err(A::Error::custom(reason));
        }
        drop(keys);
        Ok(Object(entries))
    }
}

pub fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}
