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

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

pub use self::payload::{InSource, LeafPayload};
pub use self::snapshot::snapshot;
pub use self::state::Options;
use self::state::Walk;
use super::watch::Watcher;
use crate::base::grow;
use crate::format::encoder::Encoder;
use crate::format::layout::Layout;
use crate::format::structure::{Record, Tie};

/// Returns the layout of `tree`, and the arrays that it leaves out. A `record` replaces the record
/// of the tree.
pub fn layout_of(
    tree: &Bound<'_, PyAny>,
    out: Encoder<LeafPayload>,
    options: Options<'_>,
    metadata: Option<Vec<u8>>,
    record: Option<Record>,
) -> PyResult<(Layout<LeafPayload>, Vec<Py<PyAny>>)> {
    let mut walk = Walk::new(tree.py(), out, options)?;
    walk.root(tree)
        .map_err(|failure| failure.into_py(tree.py(), "serializing"))?;
    if let Some(left_out) = &walk.options.left_out
        && walk.classes.has_called_python()
    {
        let ties = left_out.call_method1(intern!(tree.py(), "ties"), (tree,))?;
        let ties: Vec<(String, String)> = ties.extract()?;
        walk.out.tie(grow::collect(
            ties.into_iter().map(|(first, again)| Tie(first, again)),
        )?);
    }
    let watcher = Watcher::at_each_call();
    let layout = walk.out.finish_with(metadata, record, &watcher);
    Ok((watcher.raise(layout)?, walk.gaps))
}

/// Returns a layout of the bytes of arrays, after those in `out`, and the end of each array.
pub fn raw_layout_of(
    arrays: &Bound<'_, PyList>,
    out: Encoder<LeafPayload>,
) -> PyResult<(Layout<LeafPayload>, Vec<usize>)> {
    let mut walk = Walk::new(arrays.py(), out, Options::default())?;
    let mut ends = Vec::new();
    for array in arrays {
        let done = walk.root(&array);
        done.map_err(|failure| failure.into_py(arrays.py(), "serializing"))?;
        grow::push(&mut ends, walk.out.len())?;
    }
    Ok((walk.out.finish(None)?, ends))
}

/// Returns path and reason of each failure of writing `tree`.
pub fn problems_of(
    tree: &Bound<'_, PyAny>,
    out: Encoder<LeafPayload>,
    options: Options<'_>,
) -> PyResult<Vec<(String, String)>> {
    let py = tree.py();
    let mut walk = Walk::new(py, out, options)?;
    walk.problems = Some(Vec::new());
    let done = walk.root(tree);
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
