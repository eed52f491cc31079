//! Restoring trees: by a template, or by the record of a structure.
//!
//! A template knows objects, looks up their children by name, and leaves to Python whatever is not plain; a
//! record knows how many children there are, in order, and which types they have. So there are two walks.
//! Both read what was saved through a [`Cursor`], whatever form that has.
//!
//! | file | what is there |
//! |---|---|
//! | `cursor.rs` | the forms of what was saved, as walks read them |
//! | `state.rs` | state dicts as such a form: `restore_state` (others: `../objects/encoded.rs`, `../catalog/selected.rs`) |
//! | `template.rs` | the walk over a template |
//! | `matching.rs` | what of a template plainly matches |
//! | `record.rs` | the walk over a record, and what else a record tells |
//! | `plan.rs` | the plan that the walk over a record makes |
//! | `assembly.rs` | the nodes of a record, made of their children |
//! | `known.rs` | what is known of a type, and nodes that its class makes |
//! | `nodes.rs` | the nodes of a record, and what of a state is theirs |
//! | `keys.rs` | keys: dicts of them, paths of them, and those of elements |
//! | `older.rs` | nodes whose types were defined otherwise when they were saved |
//! | `kinds.rs` | what containers were saved as, and whether a template has the same |

mod assembly;
mod cursor;
mod keys;
mod kinds;
mod known;
mod matching;
mod nodes;
mod older;
mod plan;
mod record;
mod state;
mod template;

pub use self::cursor::{Child, Cursor, Found, Named, Ordered, TemplateChild};
pub use self::keys::{Here, Name};
pub use self::kinds::other_kinds;
pub use self::matching::Matching;
pub use self::older::{has_older_types, mark_older};
pub use self::plan::How;
pub use self::record::{Walk as RecordWalk, assemble, record_metadata};
pub use self::state::restore_state;
pub use self::template::{Session, Walk};
