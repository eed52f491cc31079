//! The walk over a Python tree, which tells an encoder what it meets.
//!
//! Dicts, lists, tuples and plain leaves are walked natively; anything else is
//! put to the hooks: first `classify`, once a type, then `expand` for containers.
//! Large arrays in host memory are borrowed. Arrays on accelerators are only noted: they are
//! fetched when the layout is poured.
//!
//! | file | what is there |
//! |---|---|
//! | `state.rs` | the state of a walk |
//! | `leaves.rs` | leaves without a dtype |
//! | `arrays.rs` | leaves with one |
//! | `containers.rs` | containers, and the choice between all of these |
//! | `payload.rs` | what the layout borrows |
//! | `devices.rs` | arrays that are fetched when their bytes are copied |
//! | `snapshot.rs` | a layout that does not depend on the tree any more |

mod arrays;
mod containers;
mod devices;
mod leaves;
mod payload;
mod snapshot;
mod state;

use pyo3::prelude::*;

pub use self::payload::LeafPayload;
pub use self::snapshot::snapshot;
use self::state::Walk;
pub use self::state::{Options, Recorded};
use super::watch::Watcher;
use crate::layout::Layout;

/// The layout of `tree`, and the arrays that are not written in it.
pub fn layout_of(
    tree: &Bound<'_, PyAny>,
    options: Options<'_>,
) -> PyResult<(Layout<LeafPayload>, Vec<Py<PyAny>>)> {
    let mut options = options;
    let metadata = options.metadata.take();
    let record = options.record.take();
    let mut walk = Walk::new(tree.py(), options)?;
    let place = walk.root();
    match walk.value(tree, place) {
        Ok(()) => {
            let watcher = Watcher::whenever_asked();
            let layout = match record {
                None => walk.out.finish_watched(metadata, &watcher),
                Some(record) => walk.out.finish_as(record, &watcher),
            };
            let layout = layout.map_err(|error| watcher.explain(error, PyErr::from))?;
            Ok((layout, walk.hollow))
        }
        Err(failure) => Err(failure.into_py(tree.py(), "serializing")),
    }
}

/// All that keeps `tree` from being written: where, and why.
pub fn problems_of(
    tree: &Bound<'_, PyAny>,
    options: Options<'_>,
) -> PyResult<Vec<(String, String)>> {
    let py = tree.py();
    let mut walk = Walk::new(py, options)?;
    walk.problems = Some(Vec::new());
    let place = walk.root();
    let done = walk.value(tree, place);
    let mut problems = walk.problems.take().unwrap_or_default();
    if let Err(failure) = done {
        if failure.must_be_raised(py) {
            return Err(failure.into_py(py, "looking at"));
        }
        problems.push(*failure);
    }
    Ok(problems.iter().map(|failure| failure.told(py)).collect())
}
