//! The layout of a tree, as an object of Python.

use std::ops::Range;

use pyo3::prelude::*;

use super::walk::LeafPayload;
use crate::format::layout::{self, Slice};

/// A tree that is ready to be written: small headers, and borrowed array memory.
#[pyclass(frozen, module = "treepack._core")]
pub struct Layout {
    pub output: layout::Layout<LeafPayload>,
    /// Whether copying calls Python, and so must be detached.
    pub needs_python: bool,
    /// The arrays that are not written.
    pub gaps: Vec<Py<PyAny>>,
}

impl Layout {
    pub fn new(output: layout::Layout<LeafPayload>, gaps: Vec<Py<PyAny>>) -> Self {
        let needs_python = output.payloads().any(LeafPayload::needs_python);
        Self {
            output,
            needs_python,
            gaps,
        }
    }

    /// Returns the smallest range of a source with all bytes of arrays in a range of the encoding, if these
    /// arrays lie in one source.
    pub fn stored(&self, range: Range<usize>) -> Range<usize> {
        let slices = self.output.slices(range);
        let ranges = slices.flat_map(|slice| match slice {
            Slice::Payload(LeafPayload::Source(leaf), _, range) => leaf.stored(range),
            _ => Vec::new(),
        });
        let span = ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        span.unwrap_or(0..0)
    }

    /// Returns the content that has a range of the encoding in one piece, and the start of the range there.
    pub fn content_of(&self, range: Range<usize>) -> Option<(&Py<PyAny>, usize)> {
        let mut slices = self.output.slices(range);
        let Slice::Payload(LeafPayload::Source(leaf), _, range) = slices.next()? else {
            return None;
        };
        let parts = leaf.stored(range);
        let [part] = &parts[..] else {
            return None;
        };
        slices
            .next()
            .is_none()
            .then_some((&leaf.content, part.start))
    }
}
