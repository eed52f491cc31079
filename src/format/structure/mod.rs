//! The structure of a tree, which its state dict lacks: containers, types, keys.
//!
//! A self-describing tree is a state dict with one more top-level key, [`RECORD_KEY`], whose byte
//! string is a [`Record`]. A tree that is a single leaf is stored under [`ROOT_KEY`].
//!
//! | file | content |
//! |---|---|
//! | `value.rs` | typed values: static data of nodes, keys, metadata |
//! | `diff.rs` | differences of typed values |
//! | `sharding.rs` | how arrays were split over devices |
//! | `record.rs` | the record |
//! | `recorder.rs` | building the record during the walk |
//! | `index.rs` | the index of the leaves |
//! | `footer.rs` | after the record: checksums, its length, a mark |

mod diff;
mod footer;
mod index;
mod record;
mod recorder;
mod sharding;
mod value;

pub use diff::{HOLE, apart, short, short_name};
pub use footer::{Footer, MARK, PartialSums, Regions, Seal, Sums, checksums_of};
pub use index::{Index, LeafKind, Listing};
pub use record::{Kind, Node, NodeType, Record, Repeat, Tie, check_version};
pub use recorder::Recorder;
pub use sharding::{Axes, Axis, Sharding, Split};
pub use value::Value;

/// Last in the top-level map.
pub const RECORD_KEY: &str = "__treepack__";

/// The key of a tree that is not a map.
pub const ROOT_KEY: &str = "__treepack_root__";
