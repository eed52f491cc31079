//! MessagePack as flax writes it, and the record at the end of a file; headers and payloads in order;
//! reading and writing them as events.

pub mod wire;

pub(crate) mod dtypes;

pub mod footer;

pub(crate) mod mesh;

pub mod structure;

pub mod index;

pub mod layout;

pub mod digests;

pub(crate) mod window;

pub mod array;

pub mod shards;

pub mod encoder;

pub mod events;
