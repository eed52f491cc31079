//! **treepack** reads and writes trees of arrays in the MessagePack form of `flax.serialization`,
//! at the speed of memory: the files of JAX programs, without Python.
//!
//! ```
//! use treepack::{Dtype, File, Writer};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("model.treepack");
//! let kernel: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
//! let mut writer = Writer::new();
//! writer.array("params/dense/kernel", Dtype::F32, &[2, 2], &kernel)?;
//! writer.value("step", 1000)?;
//! writer.save(&path)?; // atomically
//!
//! let file = File::open(&path)?;
//! for leaf in file.leaves() {
//!     println!("{} is {}", leaf.path(), leaf.kind());
//! }
//! let array = file.get("params/dense/kernel")?;
//! assert_eq!((array.dtype(), array.shape()), (Dtype::F32, &[2, 2][..]));
//! assert_eq!(array.bytes()?, kernel);
//! file.verify()?;
//! # Ok::<(), treepack::Error>(())
//! ```
//!
//! A [`File`] opens files, memory, gzip, and any [`Source`] by the index, and reads leaves on
//! demand. A [`Writer`] borrows arrays until they are written. The Python package reads sharded
//! checkpoints and typed containers.
//!
//! The hidden modules are the engine, public only for this package's tests, benchmarks and fuzz
//! targets. They change without notice:
//!
//! ```text
//! a walk ──encoder──▶ layout ──sink | gzip──▶ memory | file | pipe
//! source ──events──▶ leaves | objects | values
//! ```
//!
//! Only `py`, behind the feature `python`, depends on Python.

// It uses more of the engine than the rest of the crate.
#![cfg_attr(not(feature = "python"), allow(dead_code, unused_imports))]

mod error;

#[doc(hidden)]
pub mod watch;

mod grow;

mod zlib;

#[doc(hidden)]
pub mod raw;

mod system;

#[doc(hidden)]
pub mod source;

#[doc(hidden)]
pub mod wire;

#[doc(hidden)]
pub mod structure;

mod parallel;

mod stream;

#[doc(hidden)]
pub mod layout;

mod window;

#[doc(hidden)]
pub mod array;

#[doc(hidden)]
pub mod encoder;

#[doc(hidden)]
pub mod events;

mod select;

#[doc(hidden)]
pub mod catalog;

#[doc(hidden)]
pub mod manifest;

#[doc(hidden)]
pub mod boxes;

#[doc(hidden)]
pub mod plan;

mod handle;

#[doc(hidden)]
pub mod mapping;

#[doc(hidden)]
pub mod sink;

#[doc(hidden)]
pub mod gzip;

#[doc(hidden)]
pub mod delta;

mod sniff;

#[doc(hidden)]
pub mod safetensors;

mod dtype;

mod file;

mod writer;

#[cfg(feature = "python")]
mod py;

pub use dtype::{Dtype, TimeUnit};
pub use error::{Error, Path, Result};
pub use file::{ArrayView, File, Leaf};
pub use source::Source;
pub use structure::{LeafKind, Value};
pub use writer::{Bytes, Compress, Writer};
