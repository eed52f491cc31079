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
//! | `encoded.rs` | encoded bytes, for the walks that restore trees |

mod arrays;
mod copies;
mod encoded;
mod keys;
mod values;

use std::ops::Range;

use pyo3::prelude::*;

use self::values::Objects;
use super::memory::Owned;
use crate::sniff::explain;
use crate::source::Source;

pub use self::encoded::{build_like, build_recorded};
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

    /// Copies the bytes of large arrays that were read so far.
    pub fn copy(&mut self) -> PyResult<()> {
        self.0.copy_all()
    }

    /// Copies what was left to be copied.
    pub fn finish(self) -> PyResult<()> {
        self.0.copied(())
    }
}
