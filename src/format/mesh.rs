//! How an array was split over devices, in names and numbers.

use serde::{Deserialize, Serialize};

use crate::base::grow::decode;

/// The most recorded shardings: JAX keeps every mesh that is built from one.
pub const MAX_SHARDINGS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sharding {
    #[serde(deserialize_with = "decode::list")]
    pub mesh: Vec<Axis>,
    #[serde(deserialize_with = "decode::list")]
    pub spec: Vec<Axes>,
    /// The kind of memory, unless it is the devices' default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "decode::texts")]
    pub memory: Vec<String>,
}

/// An axis of a mesh: its name, its number of devices, and whether its type is `Explicit`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Axis(
    #[serde(deserialize_with = "decode::text")] pub String,
    pub u64,
    pub bool,
);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Axes(#[serde(deserialize_with = "decode::texts")] pub Vec<String>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split(pub u32, pub u32);
