//! Where the leaves of a tree are: what one reads instead of all headers.

use std::collections::HashMap;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_bytes::ByteBuf;

use super::trailer::read;
use crate::Error;
use crate::wire::Head;

/// What a leaf is, as far as that is known without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeafKind {
    /// `nil`.
    None,
    /// A boolean.
    Bool,
    /// An integer.
    Int,
    /// A float.
    Float,
    /// A complex number.
    Complex,
    /// A string.
    Str,
    /// A byte string.
    Bytes,
    /// An extension of another type.
    Ext,
    /// An array: the name of its dtype, and its shape.
    Array(String, Vec<u64>),
    /// A scalar of NumPy: the name of its dtype.
    Scalar(String),
    /// A typed PRNG key: its implementation, and the shape of its data.
    PrngKey(String, Vec<u64>),
    /// A list, or a map with keys that are no strings, with all that is in it.
    Container,
    /// What a later version writes.
    Other,
}

/// Kinds of which some may be of a later version.
fn known_kinds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LeafKind>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Found {
        Known(LeafKind),
        Later(IgnoredAny),
    }
    let found = Vec::<Found>::deserialize(deserializer)?;
    let known = found.into_iter().map(|kind| match kind {
        Found::Known(kind) => kind,
        Found::Later(_) => LeafKind::Other,
    });
    Ok(known.collect())
}

/// The leaves in the order of the output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// MessagePack: the tree, with the number of its kind in the place of each leaf. A key that has
    /// been before is a number, too: that of the key among all that are different.
    pub outline: ByteBuf,
    /// All different kinds of leaves.
    #[serde(deserialize_with = "known_kinds")]
    pub kinds: Vec<LeafKind>,
    /// For each leaf, how many bytes lie between the end of the one before and its value: the
    /// headers of containers, and its key.
    pub heads: Vec<u64>,
    /// How many bytes each value has.
    pub sizes: Vec<u64>,
    /// How many bytes lie between the last leaf and the key of the record: containers with nothing
    /// in them.
    pub rest: u64,
}

impl Index {
    /// The index as bytes: a map, so that readers may skip what they do not know.
    ///
    /// # Panics
    /// Never: writing to memory cannot fail.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        rmp_serde::to_vec_named(self).expect("an index of plain data always serializes")
    }

    /// Reads an index.
    pub fn decode(bytes: &[u8]) -> crate::Result<Self> {
        let index: Self = read(bytes).map_err(|error| {
            Error::Structure(format!("the index of the leaves is damaged: {error}"))
        })?;
        if index.heads.len() != index.sizes.len() {
            return Err(Error::Structure(
                "the index of the leaves is damaged: its columns differ in length".into(),
            ));
        }
        Ok(index)
    }
}

/// Takes down the leaves of a tree in the order of the output.
#[derive(Debug, Default)]
pub struct Listing {
    index: Index,
    numbers: HashMap<LeafKind, u32>,
    keys: HashMap<Box<str>, u32>,
    /// The last kind and its number: most leaves are like the one before.
    last: Option<(LeafKind, u32)>,
    /// Where the leaves end.
    ends: Vec<usize>,
    /// A leaf that has not ended, and where its value begins.
    pending: Option<(LeafKind, usize)>,
}

impl Listing {
    /// A leaf begins.
    pub fn leaf(&mut self, kind: LeafKind, start: usize) {
        self.pending = Some((kind, start));
    }

    /// The leaf that has not ended.
    pub fn pending(&mut self) -> Option<&mut (LeafKind, usize)> {
        self.pending.as_mut()
    }

    /// What the leaf is that has not ended.
    #[must_use]
    pub fn last_begun(&self) -> Option<&LeafKind> {
        self.pending.as_ref().map(|(kind, _)| kind)
    }

    /// The leaf before ends here, if one has begun.
    #[inline]
    pub fn end_leaf(&mut self, end: usize) {
        if let Some((kind, start)) = self.pending.take() {
            self.add(kind, start, end);
        }
    }

    fn add(&mut self, kind: LeafKind, start: usize, end: usize) {
        let number = match &self.last {
            Some((last, number)) if *last == kind => *number,
            _ => {
                let kinds = &mut self.index.kinds;
                let number = *self.numbers.entry(kind.clone()).or_insert_with(|| {
                    kinds.push(kind.clone());
                    u32::try_from(kinds.len() - 1).expect("fewer kinds than bytes of a record")
                });
                self.last = Some((kind, number));
                number
            }
        };
        Head::Uint(number.into()).write(&mut self.index.outline);
        let before = self.ends.last().copied().unwrap_or(0);
        self.index.heads.push((start - before) as u64);
        self.index.sizes.push((end - start) as u64);
        self.ends.push(end);
    }

    /// A map begins.
    pub fn map(&mut self, head: Head) {
        head.write(&mut self.index.outline);
    }

    /// The key of the next value.
    ///
    /// # Panics
    /// If there are more keys than a record could have.
    pub fn key(&mut self, head: Head, text: &str) {
        let outline = &mut self.index.outline;
        if let Some(number) = self.keys.get(text) {
            Head::Uint((*number).into()).write(outline);
            return;
        }
        let number = u32::try_from(self.keys.len()).expect("fewer keys than bytes of a record");
        self.keys.insert(text.into(), number);
        head.write(outline);
        outline.extend_from_slice(text.as_bytes());
    }

    /// The index, and where the leaves end, when the tree ends here.
    #[must_use]
    pub fn finish(mut self, end: usize) -> (Index, Vec<usize>) {
        self.end_leaf(end);
        self.index.rest = (end - self.ends.last().copied().unwrap_or(0)) as u64;
        (self.index, self.ends)
    }
}
