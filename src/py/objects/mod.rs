//! Makes Python objects from events.
//!
//! An array is a view of the input if its payload is aligned for its dtype. Otherwise a small array
//! is copied at once, and large ones together at the end, in parallel and detached.
//!
//! | file | contents |
//! |---|---|
//! | `values.rs` | objects from single events |
//! | `arrays.rs`, `copies.rs` | arrays; copying large arrays at the end |
//! | `keys.rs` | map keys |
//! | `encoded.rs` | encoded bytes as a cursor for the walks that restore |

mod arrays;
mod copies;
mod encoded;
mod keys;
mod values;

use std::ops::Range;

use pyo3::prelude::*;

use self::values::Objects;
use super::memory::Owned;
use super::options::Int;
use crate::sniff::explain;
use crate::source::Source;

pub use self::encoded::{build_like, build_recorded};
pub use self::values::CopyMode;

/// Decodes the tree in a part of a source. Arrays can be views of `memory`, the whole source.
pub fn build<'py>(
    py: Python<'py>,
    source: &dyn Source,
    part: Range<usize>,
    memory: Option<Owned<'_, 'py>>,
    copy: CopyMode,
    threads: Option<Int>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut parts = Parts::new(py, source, part.len(), memory, copy, threads)?;
    let tree = parts.read(part)?;
    parts.finish()?;
    Ok(tree)
}

/// Decodes parts of a source one by one, each of them one value.
pub struct Parts<'a, 'py>(Objects<'a, 'py>);

impl<'a, 'py> Parts<'a, 'py> {
    pub fn new(
        py: Python<'py>,
        source: &'a dyn Source,
        nbytes: usize,
        memory: Option<Owned<'a, 'py>>,
        copy: CopyMode,
        threads: Option<Int>,
    ) -> PyResult<Self> {
        let objects = Objects::new(py, source, 0..0, nbytes, memory, copy, threads);
        Ok(Self(objects?))
    }

    pub fn py(&self) -> Python<'py> {
        self.0.py
    }

    /// Decodes a part. Large arrays are filled by [`Self::finish`]. After an error no other part
    /// can be read.
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

    pub fn copy(&mut self) -> PyResult<()> {
        self.0.copy_all()
    }

    pub fn finish(self) -> PyResult<()> {
        self.0.copied(())
    }
}
