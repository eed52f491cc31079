//! **treepack** turns a JAX pytree into flax-readable msgpack and back.
//!
//! ```text
//! Python tree ──py::intake──▶ layout ──sink / gzip──▶ bytes | file | gzip
//! bytes | mapping ──wire + array──▶ tokens ──py::build──▶ Python tree of views
//! ```
//!
//! The modules from `error` to `sniff` are the core: they know bytes, and
//! nothing of Python. Each imports only from those above it. `py` is the border.

pub mod error;

pub mod wire;

pub mod layout;

pub mod array;

pub mod structure;

pub mod parallel;

pub mod stream;

pub mod mapping;

pub mod sink;

pub mod gzip;

pub mod sniff;

#[cfg(feature = "python")]
mod py;

pub use error::{Error, Result};
