//! What a state dict does not tell of a tree: its containers, their types, its keys.
//!
//! A tree that is saved to describe itself is a state dict with one more key at its top,
//! [`RECORD_KEY`], with a byte string: a [`Record`], which says how the state is to be put
//! together. Readers that do not know it see one extra key. A tree that is a single leaf has
//! no keys, and stands under [`ROOT_KEY`].
//!
//! | file | what is there |
//! |---|---|
//! | `record.rs` | the record |
//! | `footer.rs` | what stands after it: checksums, its length, a mark |
//! | `index.rs` | where the leaves are |
//! | `recorder.rs` | making it during the walk over a tree |
//! | `sharding.rs` | how arrays were split over devices |
//! | `value.rs` | typed values in it: static data of nodes, keys, metadata |

mod footer;
mod index;
mod record;
mod recorder;
mod sharding;
mod value;

pub use footer::{Footer, MARK, PartialSums, Regions, Seal, Sums, checksums_of};
pub use index::{Index, LeafKind, Listing};
pub use record::{Kind, Node, NodeType, Record, Repeat};
pub use recorder::Recorder;
pub use sharding::{Axes, Axis, Sharding, Split};
pub use value::Value;

/// The key of the record, last in the map at the top.
pub const RECORD_KEY: &str = "__treepack__";

/// The key of a tree that is no map, in the map at the top.
pub const ROOT_KEY: &str = "__treepack_root__";
