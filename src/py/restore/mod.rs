//! Restores trees, by a template or by a record.
//!
//! Two walks (docs/design.md, "Templates") read saved data through a [`Cursor`], which hides its form.
//!
//! | file | contents |
//! |---|---|
//! | `cursor.rs` | the traits that walks read saved data through |
//! | `state.rs` | cursor over state dicts (others: `../objects/listed.rs`, `encoded.rs`, `../catalog/selected.rs`) |
//! | `template.rs`, `matching.rs` | the walk over a template; comparing leaves without Python |
//! | `record.rs` | the walk over a record |
//! | `plan.rs`, `assembly.rs` | its plan; making nodes from that |
//! | `known.rs` | registered types |
//! | `nodes.rs`, `keys.rs` | nodes of a record; keys, names and paths |
//! | `older.rs` | nodes of older versions of their types; kinds of containers |

mod assembly;
mod cursor;
mod keys;
mod known;
mod matching;
mod nodes;
mod older;
mod plan;
mod record;
mod state;
mod template;

pub use self::cursor::{Container, Cursor, Found, Named, Ordered, TemplateChild};
pub use self::keys::{Here, Name};
pub use self::matching::Matching;
pub use self::older::{has_older_types, mark_older};
pub use self::plan::Options;
pub use self::record::{
    Walk as RecordWalk, assemble, record_digests, record_metadata, record_ties,
};
pub use self::state::restore_state;
pub use self::template::{Session, Walk};
