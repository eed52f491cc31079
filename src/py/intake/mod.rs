//! The walk over a Python tree that makes a layout of it.
//!
//! Dicts, lists, tuples and plain leaves are walked natively; anything else is
//! put to the hooks: first `classify`, once a type, then `expand` for containers.
//! Large arrays in host memory are borrowed. Arrays on accelerators are only noted, so
//! that all host copies are started before the first is waited for.
//!
//! | file | what is there |
//! |---|---|
//! | `walk.rs` | the state of a walk, and what stops it |
//! | `scalars.rs` | leaves without a dtype |
//! | `arrays.rs` | leaves with one |
//! | `containers.rs` | containers, and the choice between all of these |
//! | `source.rs` | what the layout borrows |

mod arrays;
mod containers;
mod scalars;
mod source;
mod walk;

use pyo3::prelude::*;

pub use self::source::Source;
pub use self::walk::Options;
use self::walk::{Place, Walk};
use crate::layout::Layout;

/// The layout of `tree`.
pub fn intake(tree: &Bound<'_, PyAny>, options: &Options<'_>) -> PyResult<Layout<Source>> {
    let py = tree.py();
    let mut walk = Walk::new(py, options)?;
    let place = Place {
        state: options.state_dict,
        in_list: false,
        depth: 0,
    };
    let done = if options.structure {
        walk.described(tree, place)
    } else {
        walk.value(tree, None, place)
    };
    let done = done.and_then(|()| walk.fetch());
    match done {
        Ok(()) => Ok(walk.out.finish()),
        Err(failure) => Err(failure.into_py(py, &walk.path)),
    }
}
