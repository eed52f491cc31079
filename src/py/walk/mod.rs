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

mod arrays;
mod containers;
mod devices;
mod leaves;
mod payload;
mod state;

use pyo3::prelude::*;

pub use self::payload::Leaf;
pub use self::state::Options;
use self::state::{Place, Walk};
use crate::layout::Layout;

/// The layout of `tree`.
pub fn layout_of(tree: &Bound<'_, PyAny>, options: Options<'_>) -> PyResult<Layout<Leaf>> {
    let py = tree.py();
    let metadata = options.metadata.clone();
    let mut walk = Walk::new(py, options)?;
    let place = Place {
        state: walk.options.state_dict,
        depth: 0,
    };
    let done = walk.value(tree, place);
    match done {
        Ok(()) => Ok(walk.out.finish(metadata)?),
        Err(failure) => Err(failure.into_py(py, "serializing")),
    }
}
