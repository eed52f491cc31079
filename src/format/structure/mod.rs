//! The structure of a tree, which its state dict lacks: containers, types, keys.
//!
//! A self-describing tree is a state dict with one more top-level key, [`RECORD_KEY`], whose byte
//! string is a [`Record`]. A tree that is a single leaf is stored under [`ROOT_KEY`].
//!
//! | file | content |
//! |---|---|
//! | `value.rs` | typed values: static data of nodes, keys, metadata |
//! | `record.rs` | the record |
//! | `recorder.rs` | building the record during the walk |

mod record;
mod recorder;
mod value;

pub use record::{Kind, Node, NodeType, Record, Repeat, Tie, check_version};
pub use recorder::Recorder;
pub use value::{PLACEHOLDER, Value};

/// Last in the top-level map.
pub const RECORD_KEY: &str = "__treepack__";

/// The key of a tree that is not a map.
pub const ROOT_KEY: &str = "__treepack_root__";
