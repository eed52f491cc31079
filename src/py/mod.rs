//! The border to Python: everything that names pyo3 or numpy.
//!
//! | file | content |
//! |---|---|
//! | `layout.rs` | the layout of a tree |
//! | `save.rs` | saving: a tree in, bytes or a file out |
//! | `load.rs` | loading: bytes in, a tree out |
//! | `content.rs` | the content of a file or a buffer |
//! | `pipe.rs` | a pipe from a save to Python |
//! | `catalog/` | leaves by their paths, read one by one |
//! | `select.rs` | selection of leaves |
//! | `manifest.rs`, `plan.rs` | manifests of sharded checkpoints, and their writers |
//! | `delta.rs` | patches of encodings |
//! | `grid.rs` | arrays that are cut into shards |
//! | `boxes.rs` | boxes of such arrays |
//! | `gzip.rs` | compressing and decompressing plain bytes |
//! | `walk/` | the walk over a Python tree, which drives an encoder |
//! | `objects/` | Python objects of events; events for the walks that restore trees (`encoded.rs`) |
//! | `restore/` | restoring trees by a template or a record |
//! | `value.rs` | typed values (static data, keys, metadata) as Python objects |
//! | `classes.rs` | the kinds of values, by their types |
//! | `options.rs` | options that are numbers |
//! | `dtypes.rs` | dtypes, each described by Python once |
//! | `fields.rs` | containers whose children and static data are attributes of fixed names |
//! | `hashes.rs` | the bound of keys with equal hashes |
//! | `hooks.rs` | the Python functions that the walks call |
//! | `watch.rs` | progress, and Ctrl-C |
//! | `failure.rs`, `errors.rs` | failures of walks, and errors as Python exceptions |
//! | `memory/` | all `unsafe`: memory that belongs to Python or NumPy |
//!
//! **Locks**, with and without the GIL. No lock is held while Python may run, dropped references
//! included, so every wait is short, attached or not. Locks that are held while bytes are read,
//! perhaps by Python, are only tried (`try_lock`); only detached threads wait for that of
//! [`crate::window::Window`]. A reference borrowed from a list or dict becomes our own while that
//! is locked (`memory/dict.rs`; pyo3's iterators of dicts panic if another thread changes them).
//! The state of a walk belongs to its thread.

mod boxes;
mod catalog;
mod classes;
mod content;
mod delta;
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
mod replacement;
mod restore;
mod save;
mod select;
mod value;
mod walk;
mod watch;

/// The native core of treepack; see `_core.pyi`.
#[cfg_attr(feature = "free-threaded", pyo3::pymodule(gil_used = false))]
#[cfg_attr(not(feature = "free-threaded"), pyo3::pymodule(gil_used = true))]
mod _core {
    #[pymodule_export]
    const CHUNKED_MARKER: &str = crate::wire::CHUNKED_MARKER;
    #[pymodule_export]
    const RECORD_KEY: &str = crate::structure::RECORD_KEY;
    #[pymodule_export]
    const ROOT_KEY: &str = crate::structure::ROOT_KEY;
    #[pymodule_export]
    const MAX_DEPTH: usize = crate::wire::MAX_DEPTH;
    #[pymodule_export]
    use super::boxes::{ShardBox, Shards};
    #[pymodule_export]
    use super::catalog::{Catalog, restore_selected};
    #[pymodule_export]
    use super::classes::Class;
    #[pymodule_export]
    use super::content::Content;
    #[pymodule_export]
    use super::delta::{apply_delta, is_patch, join, patch_base};
    #[pymodule_export]
    use super::grid::{ShardGrid, boxes_of_range, ranges_of_box};
    #[pymodule_export]
    use super::gzip::{compress, decompress};
    #[pymodule_export]
    use super::hashes::check_hashes;
    #[pymodule_export]
    use super::hooks::set_hooks;
    #[pymodule_export]
    use super::layout::Layout;
    #[pymodule_export]
    use super::load::{
        convertible, described, restore, restore_encoded, restore_recorded, stream_items,
    };
    #[pymodule_export]
    use super::manifest::Manifest;
    #[pymodule_export]
    use super::memory::fresh_memory;
    #[pymodule_export]
    use super::options::thread_count;
    #[pymodule_export]
    use super::pipe::Pipe;
    #[pymodule_export]
    use super::plan::{ShardHolders, ShardPlan};
    #[pymodule_export]
    use super::replacement::{Replacement, make_directories, remove_if_dead};
    #[pymodule_export]
    use super::restore::{
        assemble, has_older_types, mark_older, other_kinds, record_metadata, restore_state,
    };
    #[pymodule_export]
    use super::save::{problems, walk, write_file};
    #[pymodule_export]
    use super::select::{Marks, Selector, captures};
    #[pymodule_export]
    use super::value::{decode_value, encode_value};
}
