//! The core of **treepack**: trees of arrays in the MessagePack form of `flax.serialization`, at
//! the speed of memory.
//!
//! It serves the Python package; public modules are for tests, benchmarks and fuzz targets.
//!
//! ```text
//! a walk ──encoder──▶ layout ──sink | gzip──▶ memory | file | pipe
//! source ──events──▶ leaves | objects | values
//! ```
//!
//! Only `py`, behind the feature `python`, depends on Python.

// `py` uses more of the core than the tests do.
#![cfg_attr(not(feature = "python"), allow(dead_code, unused_imports))]

mod error;

pub mod watch;

mod grow;

mod zlib;

pub mod raw;

mod system;

pub mod source;

pub mod wire;

pub mod structure;

mod parallel;

mod stream;

pub mod layout;

mod window;

pub mod array;

pub mod encoder;

pub mod events;

mod select;

pub mod catalog;

pub mod manifest;

pub mod boxes;

pub mod plan;

mod handle;

pub mod mapping;

pub mod sink;

pub mod gzip;

pub mod delta;

pub mod sniff;

pub mod safetensors;

#[cfg(feature = "python")]
mod py;

pub use error::{Error, Path, Result};
