//! Walks a Python tree, and drives an encoder.
//!
//! Dicts, lists, tuples and plain leaves are walked natively. Other values need hooks: `classify`,
//! once per type, then `expand` for containers.
//!
//! | file | contents |
//! |---|---|
//! | `state.rs` | options and state of a walk |
//! | `containers.rs` | dicts and sequences, and the choice by type |
//! | `nodes.rs` | nodes |
//! | `leaves.rs`, `arrays.rs` | leaves without a dtype; arrays |
//! | `payload.rs`, `devices.rs` | payloads; arrays that are fetched late |
//! | `snapshot.rs` | makes a layout independent of the tree |

mod arrays;
mod containers;
mod devices;
mod leaves;
mod nodes;
mod payload;
mod snapshot;
mod state;

use pyo3::prelude::*;
use pyo3::types::PyList;

pub use self::payload::{InSource, LeafPayload};
pub use self::snapshot::snapshot;
use self::state::Walk;
pub use self::state::{Options, Recorded};
use super::watch::Watcher;
use crate::layout::Layout;

/// Returns the layout of `tree`, and the arrays that it leaves out.
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
            let watcher = Watcher::at_each_call();
            let layout = match record {
                None => walk.out.finish_watched(metadata, &watcher),
                Some(record) => walk.out.finish_as(record, &watcher),
            };
            Ok((watcher.raise(layout)?, walk.hollow))
        }
        Err(failure) => Err(failure.into_py(tree.py(), "serializing")),
    }
}

/// Returns a layout of a header of another format, and the bytes of arrays after it.
pub fn raw_layout_of<'py>(
    arrays: &Bound<'py, PyList>,
    options: Options<'py>,
) -> PyResult<Layout<LeafPayload>> {
    let mut walk = Walk::new(arrays.py(), options)?;
    let place = walk.root();
    for array in arrays {
        let done = walk.value(&array, place);
        done.map_err(|failure| failure.into_py(arrays.py(), "serializing"))?;
    }
    Ok(walk.out.finish(None)?)
}

/// Returns path and reason of each failure of writing `tree`.
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
    Ok(problems
        .iter()
        .map(|failure| failure.place_and_reason(py))
        .collect())
}
