//! The border to Python: the only code that names pyo3 or numpy. The stub `_core.pyi` documents its
//! functions and classes.
//!
//! | file | contents |
//! |---|---|
//! | `layout.rs`, `save.rs`, `load.rs` | the layout of a tree; saving it; loading one |
//! | `delta.rs`, `digest.rs` | patches of encodings; digests of arrays |
//! | `walk/` | the walk over a Python tree, which drives an encoder |
//! | `objects/` | Python objects from events |
//! | `restore/` | restoring by a template or a record |
//! | `content.rs`, `pipe.rs`, `gzip.rs` | bytes of a file or buffer; pipes; compression |
//! | `catalog/`, `select.rs` | leaves by path; selection of leaves |
//! | `manifest.rs`, `plan.rs`, `grid.rs`, `boxes.rs` | sharded checkpoints: manifest, plan of writers, grids, boxes |
//! | `safetensors.rs` | headers of safetensors, as layouts and manifests |
//! | `pointwise.rs` | conversion of numbers between dtypes |
//! | `replacement.rs` | files that Python writes, replaced atomically |
//! | `value.rs` | typed values: static data, keys, metadata |
//! | `classes.rs`, `fields.rs`, `dtypes.rs` | kinds of values; containers with fixed fields; dtypes |
//! | `hashes.rs` | safe hashing of keys |
//! | `hooks.rs` | Python functions that walks call |
//! | `options.rs`, `watch.rs` | integer options; progress and Ctrl-C |
//! | `failure.rs`, `errors.rs` | failures of walks; Python exceptions |
//! | `memory/` | all `unsafe`: memory that belongs to Python or NumPy |
//!
//! **Locks**, with and without the GIL. No lock is held while Python may run, for example to drop a
//! reference, so every wait is short. Locks that are held while bytes are read, perhaps by Python,
//! are only tried (`try_lock`); only detached threads wait for the lock of
//! [`crate::format::window::Window`]. A reference borrowed from a list or dict becomes owned while the
//! container is locked (`memory/dict.rs`; pyo3's iterators of dicts panic if another thread changes
//! them).
//!
//! **Recursion.** Walks recurse as deep as the tree. The functions that they call are
//! `#[inline(never)]`, which keeps stack frames small.

// Arguments have names in Python.
#![allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
// See `failure::Walked`.
#![allow(clippy::unnecessary_box_returns)]

mod boxes;
mod catalog;
mod classes;
mod content;
mod delta;
mod digest;
mod dtypes;
mod errors;
mod failure;
mod fields;
mod grid;
mod gzip;
mod hashes;
mod hooks;
mod layout;
mod load;
mod manifest;
mod memory;
mod objects;
mod options;
mod pipe;
mod plan;
mod pointwise;
mod replacement;
mod restore;
mod safetensors;
mod save;
mod select;
mod value;
mod walk;
mod watch;

/// The native core; see `_core.pyi`.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    const ALIGN_MIN_BYTES: usize = crate::format::array::ALIGN_MIN_BYTES;
    #[pymodule_export]
    const CHUNKED_MARKER: &str = crate::format::wire::CHUNKED_MARKER;
    #[pymodule_export]
    const RECORD_KEY: &str = crate::format::structure::RECORD_KEY;
    #[pymodule_export]
    const RECORD_MARK: &[u8] = &crate::format::footer::MARK;
    #[pymodule_export]
    const ROOT_KEY: &str = crate::format::structure::ROOT_KEY;
    #[pymodule_export]
    const MAX_DEPTH: usize = crate::format::wire::MAX_DEPTH;
    #[pymodule_export]
    use super::{
        boxes::{ShardBox, Shards},
        catalog::{Catalog, copy_array, restore_selected},
        classes::Class,
        content::{Content, is_compressed},
        delta::{apply_delta, is_patch, is_wrapped, join, patch_parts},
        digest::{digests, join_digests},
        grid::{ShardGrid, ranges_of_box},
        gzip::decompress,
        hashes::{check_hashes, check_unique_keys},
        hooks::set_hooks,
        layout::Layout,
        load::{convertible, described, restore, restore_encoded, restore_recorded, stream_items},
        manifest::Manifest,
        memory::fresh_memory,
        options::thread_count,
        pipe::Pipe,
        plan::ShardPlan,
        pointwise::convert,
        replacement::{Replacement, make_directories, remove_if_dead},
        restore::{
            assemble, has_older_types, mark_older, record_digests, record_metadata, record_ties,
            restore_state,
        },
        safetensors::Tensors,
        save::{lay_raw, problems, walk},
        select::{Marks, Selector},
        value::{decode_value, encode_value},
    };

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::codec::zlib::silence_panics();
        let py = pyo3::Bound::py(module);
        py.import("numpy")?; // if it is missing or broken, the crate below would panic
        // Looks up the functions of NumPy: at the end of the program nothing can be imported.
        numpy::dtype::<u8>(py);
        Ok(())
    }
}
