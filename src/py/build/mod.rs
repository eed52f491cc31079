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
//! | `older.rs` | a state of types that were defined otherwise when it was saved |

mod matching;
mod older;
mod partial;
mod record;
mod template;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::memory::new_dict;

pub use self::matching::Matching;
pub use self::older::{has_older_types, state_of_today};
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
