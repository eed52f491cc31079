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
//! | `record.rs` | by a record: `assemble`, and what else a record tells |
//! | `older.rs` | nodes whose types were defined otherwise when they were saved |
//! | `kinds.rs` | what containers were saved as, and whether a template has the same |

mod kinds;
mod matching;
mod older;
mod partial;
mod record;
mod template;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::record::{check_count, damaged};
use super::failure::Walked;
use super::memory::new_dict;
use crate::error::Path;
use crate::structure::{Kind, Trailer};

pub use self::kinds::other_kinds;
pub use self::matching::Matching;
pub use self::older::{has_older_types, mark_older};
pub use self::record::{assemble, trailer_metadata};
pub use self::template::rebuild;

/// A dict with these keys, as many as there are children.
#[inline(never)] // what calls this is recursive
fn dict_of<'py>(
    py: Python<'py>,
    keys: impl Iterator<Item = Bound<'py, PyAny>>,
    children: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = new_dict(py)?;
    for (key, child) in keys.zip(children) {
        dict.set_item(key, child)?;
    }
    Ok(dict)
}

/// The node of a record that positions lead to from the root: which child, and of how many.
fn node_at(trailer: &Trailer, positions: &[(u64, u64)]) -> Walked<usize> {
    let root = trailer.nodes.len() - 1; // there is one: `decode` has looked
    positions
        .iter()
        .try_fold(root, |node, &(mut index, count)| {
            let found = &trailer.nodes[node];
            if found.0 == Kind::Plain {
                return Ok(node); // as all below it
            }
            check_count(found, count)?;
            for repeat in &found.1 {
                if index < u64::from(repeat.0) {
                    return Ok(repeat.1 as usize);
                }
                index -= u64::from(repeat.0);
            }
            damaged("a container has fewer children than it was saved with")
        })
}

/// How the place that keys lead to is written.
fn path_text(keys: &[Bound<'_, PyAny>]) -> String {
    let mut path = Path::default();
    for key in keys.iter().rev() {
        path.push_outer(key.to_string());
    }
    path.to_string()
}
