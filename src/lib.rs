//! **treepack** reads and writes trees of arrays as MessagePack, in the form of
//! `flax.serialization`, at the speed of memory.
//!
//! ```text
//! a walk ──encoder──▶ layout ──sink | gzip──▶ memory | file | pipe
//! source ──events──▶ leaves | objects | values
//! ```
//!
//! To write, tell an [`encoder::Encoder`] what the tree contains, and pour the
//! [`layout::Layout`] that it makes: into memory ([`sink::pour`]), into a file
//! ([`sink::replace_file`]), or compressed ([`gzip::compress`]). To read, make
//! [`events::Events`] of any [`source::Source`], such as a mapped file ([`mapping::Mapping`]).
//!
//! Each module imports only from those above it. Without the feature `python` this is a crate
//! that knows nothing of Python; with it, `py` is the border to the Python package.

pub mod error;

pub mod watch;

pub mod grow;

pub mod zlib;

pub mod raw;

pub mod system;

pub mod source;

pub mod wire;

pub mod structure;

pub mod parallel;

pub mod stream;

pub mod layout;

pub mod window;

pub mod array;

pub mod encoder;

pub mod events;

pub mod select;

pub mod catalog;

pub mod manifest;

pub mod handle;

pub mod mapping;

pub mod sink;

pub mod gzip;

pub mod sniff;

#[cfg(feature = "python")]
mod py;

pub use error::{Error, Result};
