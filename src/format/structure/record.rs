//! The record of a tree's structure.
//!
//! Nodes are few, however large the tree: equal subtrees share a node, equal siblings are one
//! repeat, and values that read back unchanged are one [`Kind::Plain`].

use std::iter::repeat_n;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::base::grow::{self, decode};
use crate::base::watch::Watch;
use crate::format::footer::{Footer, damaged};
use crate::format::mesh::{MAX_SHARDINGS, Sharding, Split};
use crate::{Error, Result};

const VERSION: u32 = 1;

/// The deepest nesting of MessagePack in a record: maps of lists of nodes, which are pairs of a
/// kind and a list of repeats, which are pairs.
const MAX_NESTING: usize = 16;

/// How to rebuild a tree from its state dict.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    #[serde(deserialize_with = "decode::list")]
    pub types: Vec<NodeType>,
    /// Each node follows its children; the last is the whole tree.
    #[serde(deserialize_with = "decode::list")]
    pub nodes: Vec<Node>,
    /// A [`super::Value`].
    #[serde(default, deserialize_with = "decode::bytes_or_none")]
    pub metadata: Option<ByteBuf>,
    /// A [`crate::format::index::Index`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "decode::bytes_or_none")]
    pub index: Option<ByteBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "decode::list")]
    pub shardings: Vec<Sharding>,
    /// The arrays that were split, by node number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "decode::list")]
    pub split: Vec<Split>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "decode::list")]
    pub ties: Vec<Tie>,
    /// The digest of the bytes of each leaf of the index that is an array. The last field, so that it
    /// ends the encoded record: see [`crate::format::footer::Seal`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "decode::bytes_or_none")]
    pub digests: Option<ByteBuf>,
}

/// A node that occurs twice in a tree: the paths of its first place and of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tie(
    #[serde(deserialize_with = "decode::text")] pub String,
    #[serde(deserialize_with = "decode::text")] pub String,
);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeType {
    #[serde(deserialize_with = "decode::text")]
    pub name: String,
    /// The names of its children and static data if all nodes of the type share them, to detect
    /// changes.
    #[serde(default, deserialize_with = "decode::pair_of_texts")]
    pub fields: Option<(Vec<String>, Vec<String>)>,
    /// The version of its definition in the program.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub version: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(version: &u32) -> bool {
    *version == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node(
    pub Kind,
    #[serde(deserialize_with = "decode::list")] pub Vec<Repeat>,
);

/// Consecutive children of equal structure: their number, and their node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Repeat(pub u32, pub u32);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The state itself, with everything below it.
    Plain,
    Jax,
    /// A weakly typed JAX array.
    WeakJax,
    Bytearray,
    Memoryview,
    /// With string keys.
    Dict,
    /// With these keys: a [`super::Value`], which is a list.
    DictWithKeys(#[serde(deserialize_with = "decode::bytes")] ByteBuf),
    List,
    Tuple,
    /// A node of a type of [`Record::types`], and its static data: a [`super::Value`].
    Typed(u32, #[serde(deserialize_with = "decode::bytes")] ByteBuf),
}

impl Kind {
    pub fn dict_with_keys(keys: Vec<u8>) -> Self {
        Self::DictWithKeys(ByteBuf::from(keys))
    }

    fn is_leaf(&self) -> bool {
        matches!(
            self,
            Self::Plain | Self::Jax | Self::WeakJax | Self::Bytearray | Self::Memoryview
        )
    }
}

impl Node {
    pub fn children(&self) -> impl Iterator<Item = usize> {
        let repeats = self.1.iter();
        repeats.flat_map(|Repeat(times, child)| repeat_n(*child as usize, *times as usize))
    }

    pub fn count(&self) -> u64 {
        self.1.iter().map(|repeat| u64::from(repeat.0)).sum()
    }
}

impl Record {
    pub(super) fn new(types: Vec<NodeType>, nodes: Vec<Node>, metadata: Option<Vec<u8>>) -> Self {
        Self {
            version: VERSION,
            types,
            nodes,
            metadata: metadata.map(ByteBuf::from),
            index: None,
            shardings: Vec::new(),
            split: Vec::new(),
            ties: Vec::new(),
            digests: None,
        }
    }

    pub fn plain() -> Self {
        Self::new(Vec::new(), vec![Node(Kind::Plain, Vec::new())], None)
    }

    pub fn sharding_of(&self, node: usize) -> Option<usize> {
        let position = self
            .split
            .binary_search_by_key(&node, |split| split.0 as usize);
        position.ok().map(|at| self.split[at].1 as usize)
    }

    pub fn read(bytes: &[u8]) -> Result<Self> {
        Self::decode(Footer::split(bytes)?.0)
    }

    /// Encodes a map, so that readers may skip unknown fields.
    pub fn encode(&self, watch: &dyn Watch) -> Result<Vec<u8>> {
        grow::encode_named(self, watch)
    }

    /// Returns whether an encoded record certainly has no types, as most do.
    pub fn is_untyped(bytes: &[u8]) -> bool {
        let fields = bytes.get(1..).unwrap_or_default();
        fields.starts_with(b"\xa7version\x01\xa5types\x90")
    }

    /// Reads a record, and checks its references.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let check = |version| check_version("the record of the structure", version, VERSION);
        let record: Self = decode::nested(bytes, MAX_NESTING).or_else(|error| {
            // Another version may have other fields.
            let versioned: Versioned = decode::nested(bytes, MAX_NESTING).map_err(broken)?;
            check(versioned.version)?;
            Err(broken(error))
        })?;
        check(record.version)?;
        record.check().map_err(damaged)?;
        Ok(record)
    }

    fn check(&self) -> std::result::Result<(), String> {
        for (index, Node(kind, repeats)) in self.nodes.iter().enumerate() {
            if kind.is_leaf() && !repeats.is_empty() {
                return Err(format!("node {index} is a leaf with children"));
            }
            // Children precede their parents, so no node contains itself.
            if let Some(Repeat(count, child)) = repeats
                .iter()
                .find(|repeat| repeat.0 == 0 || repeat.1 as usize >= index)
            {
                return Err(format!(
                    "node {index} cannot repeat node {child} {count} times"
                ));
            }
            if let Kind::Typed(class, _) = kind
                && *class as usize >= self.types.len()
            {
                return Err(format!("node {index} has the unknown type {class}"));
            }
        }
        if self.nodes.is_empty() {
            return Err("it has no nodes".into());
        }
        if self.shardings.len() > MAX_SHARDINGS {
            return Err(format!(
                "it has {} shardings, more than {MAX_SHARDINGS}",
                self.shardings.len()
            ));
        }
        for (index, Split(node, sharding)) in self.split.iter().enumerate() {
            let is_array = |Node(kind, _): &Node| matches!(kind, Kind::Jax | Kind::WeakJax);
            let is_ordered = index == 0 || self.split[index - 1].0 < *node;
            if !is_ordered || !self.nodes.get(*node as usize).is_some_and(is_array) {
                return Err(format!("node {node} cannot be split"));
            }
            if *sharding as usize >= self.shardings.len() {
                return Err(format!("node {node} has the unknown sharding {sharding}"));
            }
        }
        Ok(())
    }
}

pub fn check_version(part: &str, found: u32, supported: u32) -> Result<()> {
    if found == supported {
        return Ok(());
    }
    if found > supported {
        let reason =
            format!("{part} has version {found}, and this treepack reads version {supported}");
        return Err(Error::Newer { reason });
    }
    let reason = format!("{part} is damaged: it has the unknown version {found}");
    Err(Error::Structure(reason))
}

fn broken(error: rmp_serde::decode::Error) -> Error {
    decode::explain_sealed(&error, |error| damaged(error))
}
