//! The border to Python: everything that names pyo3 or numpy.
//!
//! | file | what crosses there |
//! |---|---|
//! | `save.rs` | the verbs that save: a tree in, bytes or a file out |
//! | `load.rs` | the verbs that load: bytes in, a tree out |
//! | `content.rs` | what is in a file or a buffer |
//! | `pipe.rs` | a pipe that a save writes to and Python reads |
//! | `catalog/` | leaves by their paths, read one by one |
//! | `select.rs` | which leaves are meant |
//! | `selected.rs` | some leaves of a file in the place of those of a template |
//! | `manifest.rs` | what holds the files of a sharded checkpoint together |
//! | `grid.rs` | arrays that are cut into shards |
//! | `boxes.rs` | boxes of such arrays, found in files and read |
//! | `gzip.rs` | compressing and decompressing plain bytes |
//! | `walk/` | the walk over a Python tree, which tells an encoder what it meets |
//! | `objects/` | Python objects of events; by a template (`like.rs`), by a record (`recorded.rs`) |
//! | `restore/` | the putting together of containers: as a template, or as a record of the structure says |
//! | `value.rs` | typed values (static data, keys, metadata) as Python objects |
//! | `classes.rs` | what values are, as Python tells by their types |
//! | `options.rs` | options that are numbers |
//! | `dtypes.rs` | dtypes, of which Python is asked once |
//! | `fields.rs` | containers whose children and static data are attributes of fixed names |
//! | `hashes.rs` | keys that have the same hash, which there may not be many of |
//! | `hooks.rs` | the Python functions that these walks ask |
//! | `watch.rs` | telling Python how far long work has come, and hearing Ctrl-C |
//! | `failure.rs`, `errors.rs` | what stops a walk, and errors as Python exceptions |
//! | `memory/` | all `unsafe`: memory that belongs to Python or NumPy |
//!
//! **Locks**, with and without the GIL. None is held while Python may run, dropped references
//! included, so whoever waits for one waits only a moment, attached or not. Those that are held
//! while bytes are read, perhaps by Python, nobody waits for (`try_lock`); for that of
//! [`crate::window::Window`] only detached threads do. What a list or dict lends becomes a
//! reference of our own while it is locked (`memory/dict.rs`; pyo3's iterators of dicts panic if
//! another thread changes them). What a walk keeps belongs to its thread.

mod boxes;
mod catalog;
mod classes;
mod content;
mod dtypes;
mod errors;
mod failure;
mod fields;
mod grid;
mod gzip;
mod hashes;
mod hooks;
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
mod selected;
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
    use super::catalog::Catalog;
    #[pymodule_export]
    use super::content::Content;
    #[pymodule_export]
    use super::grid::{ShardGrid, boxes_of_range, ranges_of_box};
    #[pymodule_export]
    use super::gzip::{compress, decompress};
    #[pymodule_export]
    use super::hashes::check_hashes;
    #[pymodule_export]
    use super::hooks::set_hooks;
    #[pymodule_export]
    use super::load::{
        convertible, described, restore, restore_like, restore_recorded, stream_items,
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
        assemble, has_older_types, mark_older, other_kinds, rebuild, record_metadata,
    };
    #[pymodule_export]
    use super::save::{Layout, problems, walk, write_file};
    #[pymodule_export]
    use super::select::{Marks, Selector, captures};
    #[pymodule_export]
    use super::selected::restore_selected;
    #[pymodule_export]
    use super::value::{decode_value, encode_value};
}
