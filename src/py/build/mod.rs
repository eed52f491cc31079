//! Putting containers together around leaves that were loaded.
//!
//! What is expected is told by a template, or by the record of a structure. A template knows
//! objects, looks up their children by name, and asks Python about whatever is not plain; a
//! record knows how many children there are, in order, and which types they have. So there are
//! two walks, and one way to make containers.
//!
//! | file | what is there |
//! |---|---|
//! | `template.rs` | by a template: `rebuild`, `rebuild_plain` |
//! | `record.rs` | by a record: `assemble`, and what else a record tells |

mod record;
mod template;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

pub use self::record::{assemble, read_trailer, trailer_metadata};
pub use self::template::{rebuild, rebuild_plain};

/// A container of no type of the program's.
pub enum Plain<K> {
    /// A dict with these keys, as many as there are children.
    Dict(K),
    List,
    Tuple,
}

impl<'py, K: IntoIterator<Item = Bound<'py, PyAny>>> Plain<K> {
    /// The container with these children.
    #[inline(never)] // what calls this is recursive
    pub fn make(
        self,
        py: Python<'py>,
        children: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Dict(keys) => {
                let dict = PyDict::new(py);
                for (key, child) in keys.into_iter().zip(children) {
                    dict.set_item(key, child)?;
                }
                dict.into_any()
            }
            Self::List => PyList::new(py, children)?.into_any(),
            Self::Tuple => PyTuple::new(py, children)?.into_any(),
        })
    }
}
