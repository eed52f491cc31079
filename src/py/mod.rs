//! The border to Python: everything that names pyo3 or numpy.
//!
//! | file | what crosses there |
//! |---|---|
//! | `layout.rs` | the verbs that save: a tree in, bytes or a file out |
//! | `restore.rs` | the verbs that load: bytes in, a tree out |
//! | `gzip.rs` | compressing and decompressing plain bytes |
//! | `intake/` | the walk over a Python tree that makes a layout of it |
//! | `build.rs` | the making of Python objects from tokens |
//! | `assemble.rs` | the putting together of a state dict by the record of its structure |
//! | `value.rs` | typed values (static data, keys, metadata) as Python objects |
//! | `rebuild.rs` | the fitting of loaded leaves into a template |
//! | `hooks.rs` | the Python functions that these walks ask |
//! | `progress.rs` | telling Python how far long work has come |
//! | `errors.rs` | core errors as Python exceptions |
//! | `memory.rs` | all `unsafe`: memory that belongs to Python or NumPy |

mod assemble;
mod build;
mod errors;
mod gzip;
mod hooks;
mod intake;
mod layout;
mod memory;
mod progress;
mod rebuild;
mod restore;
mod value;

/// The native core of treepack; see `_core.pyi`.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    const CHUNKED_MARKER: &str = crate::wire::CHUNKED_MARKER;
    #[pymodule_export]
    const TRAILER_KEY: &str = crate::structure::TRAILER_KEY;
    #[pymodule_export]
    const ROOT_KEY: &str = crate::structure::ROOT_KEY;
    #[pymodule_export]
    const MAX_DEPTH: usize = crate::wire::MAX_DEPTH;
    #[pymodule_export]
    use super::assemble::{assemble, trailer_metadata};
    #[pymodule_export]
    use super::gzip::{compress, decompress};
    #[pymodule_export]
    use super::layout::{Layout, intake};
    #[pymodule_export]
    use super::rebuild::rebuild;
    #[pymodule_export]
    use super::restore::{Memory, restore};
    #[pymodule_export]
    use super::value::{decode_value, encode_value};
}
