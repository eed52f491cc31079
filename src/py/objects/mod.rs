//! Python objects of events.
//!
//! An array becomes a view of the input wherever its payload is aligned for its
//! dtype. Where it must be copied, a small one is copied at once and a large one
//! with all others at the end, in parallel and detached.
//!
//! | file | what is there |
//! |---|---|
//! | `values.rs` | from one event after the other to objects |
//! | `arrays.rs` | arrays |
//! | `copies.rs` | arrays that are filled at the end |
//! | `keys.rs` | keys of maps |
//! | `like.rs` | the containers of a template around what is read |
//! | `recorded.rs` | the containers of a record around what is read |

mod arrays;
mod copies;
mod keys;
mod like;
mod recorded;
mod values;

use std::ops::Range;

use pyo3::prelude::*;

use self::recorded::Plan;
use self::values::Objects;
use super::memory::Owned;
use super::restore::Matching;
use crate::sniff::explain;
use crate::source::Source;

pub use self::values::CopyMode;

/// The tree that a part of a source encodes. Arrays can be views of `memory`, which is all of the
/// source.
pub fn build<'py>(
    py: Python<'py>,
    source: &dyn Source,
    part: Range<usize>,
    memory: Option<Owned<'_, 'py>>,
    copy: CopyMode,
    threads: Option<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut parts = Parts::new(py, source, part.len(), memory, copy, threads)?;
    let tree = parts.read(part)?;
    parts.finish()?;
    Ok(tree)
}

/// Parts of a source that are read one by one, as `build` does it, each of which is one value.
pub struct Parts<'a, 'py>(Objects<'a, 'py>);

impl<'a, 'py> Parts<'a, 'py> {
    /// For parts of so many bytes in all.
    pub fn new(
        py: Python<'py>,
        source: &'a dyn Source,
        nbytes: usize,
        memory: Option<Owned<'a, 'py>>,
        copy: CopyMode,
        threads: Option<i64>,
    ) -> PyResult<Self> {
        let objects = Objects::new(py, source, 0..0, nbytes, memory, copy, threads);
        Ok(Self(objects?))
    }

    /// Python, which made the values.
    pub fn py(&self) -> Python<'py> {
        self.0.py
    }

    /// The value of a part. No other one can be read after an error.
    ///
    /// The bytes of large arrays are there after [`Self::finish`].
    pub fn read(&mut self, part: Range<usize>) -> PyResult<Bound<'py, PyAny>> {
        let Self(objects) = self;
        objects.reader.seek(part);
        let value = objects.value();
        let value = value.and_then(|value| Ok(objects.reader.finish().map(|()| value)?));
        value.map_err(|failure| {
            failure
                .map_core(|error| explain(error, objects.source))
                .into_py(objects.py, "restoring")
        })
    }

    /// Copies what was left to be copied.
    pub fn finish(self) -> PyResult<()> {
        self.0.copied(())
    }
}

/// The tree as `build` makes it, around which the containers of a template are built; nothing if
/// the tree is not just like the template.
pub fn build_like<'py>(
    template: &Bound<'py, PyAny>,
    matching: &Matching<'py>,
    source: &dyn Source,
    memory: Option<Owned<'_, 'py>>,
    copy: CopyMode,
    threads: Option<i64>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = template.py();
    let whole = 0..source.len();
    let mut objects = Objects::new(py, source, whole, source.len(), memory, copy, threads)?;
    match objects.root_like(template, matching) {
        Ok(Some(tree)) if objects.reader.finish().is_ok() => objects.copied(tree).map(Some),
        Err(failure) if objects.interrupted || failure.must_be_raised(py) => {
            Err(failure.into_py(py, "restoring"))
        }
        // What is wrong is told when all is read once more.
        _ => Ok(None),
    }
}

/// The tree of a source that has a record of its structure, without a state dict; nothing unless
/// all of the record is handled so, and the source is as it tells.
pub fn build_recorded<'py>(
    py: Python<'py>,
    source: &dyn Source,
    memory: Option<Owned<'_, 'py>>,
    copy: CopyMode,
    threads: Option<i64>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    // Where all arrays are copied, that is done in threads before nodes are made of them.
    if memory.is_none() || copy == CopyMode::Always {
        return Ok(None);
    }
    let whole = 0..source.len();
    let mut objects = Objects::new(py, source, whole, source.len(), memory, copy, threads)?;
    let plan = Plan::of(py, source);
    let found = plan.and_then(|plan| plan.map_or(Ok(None), |plan| objects.root_recorded(&plan)));
    match found {
        Ok(Some(tree)) if objects.reader.finish().is_ok() => objects.copied(tree).map(Some),
        Err(failure) if objects.interrupted || failure.must_be_raised(py) => {
            Err(failure.into_py(py, "loading"))
        }
        // What is wrong is told when all is read once more.
        _ => Ok(None),
    }
}
