//! The layout of a tree, as an object of Python.

use pyo3::prelude::*;

use super::walk::LeafPayload;
use crate::layout;

/// A tree that is ready to be written: small headers, and borrowed array memory.
#[pyclass(frozen, module = "treepack._core")]
pub struct Layout {
    pub output: layout::Layout<LeafPayload>,
    /// Whether copying calls Python, and so must be detached.
    pub needs_python: bool,
    /// The arrays that are not written.
    pub hollow: Vec<Py<PyAny>>,
}
