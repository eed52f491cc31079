//! Putting containers together around leaves that were loaded.
//!
//! What is expected is told by a template, or by the record of a structure. A template knows
//! objects, looks up their children by name, and asks Python about whatever is not plain; a
//! record knows how many children there are, in order, and which types they have. So there are
//! two walks; what they share is small.
//!
//! | file | what is there |
//! |---|---|
//! | `template.rs` | by a template: `rebuild` (and, while bytes are read, `../objects/like.rs`) |
//! | `matching.rs` | what of a template plainly matches |
//! | `partial.rs` | by a record, where not all was read |
//! | `record.rs` | by a record: `assemble` (and, while bytes are read, `../objects/recorded.rs`), and what else it tells |
//! | `known.rs` | what is known of a type, and nodes that its class makes |
//! | `nodes.rs` | the nodes of a record, and what of a state is theirs |
//! | `keys.rs` | keys: dicts of them, paths of them, and those of elements |
//! | `older.rs` | nodes whose types were defined otherwise when they were saved |
//! | `kinds.rs` | what containers were saved as, and whether a template has the same |

mod keys;
mod kinds;
mod known;
mod matching;
mod nodes;
mod older;
mod partial;
mod record;
mod template;

pub use self::keys::{Keys, is_decimal};
pub use self::kinds::other_kinds;
pub use self::known::Known;
pub use self::matching::Matching;
pub use self::older::{has_older_types, mark_older};
pub use self::record::{assemble, record_metadata};
pub use self::template::rebuild;
