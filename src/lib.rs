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

pub mod base;

pub mod codec;

pub mod elements;

pub mod format;

pub mod files;

pub(crate) mod patterns;

pub mod catalog;

pub mod patches;

pub mod sharding;

pub mod foreign;

#[cfg(feature = "python")]
mod py;

pub use base::error::{Error, Path, Result};
