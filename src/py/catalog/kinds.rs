//! Descriptions of leaves.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::memory::{new_tuple, row};
use crate::format::index::LeafKind;

pub fn described<'py>(py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
    let (dtype, shape) = match kind {
        LeafKind::Array(dtype, shape) | LeafKind::PrngKey(dtype, shape) => (&**dtype, &shape[..]),
        LeafKind::Scalar(dtype) => (&**dtype, &[][..]),
        plain => return row!(py, plain.name()),
    };
    let shape = new_tuple(py, shape)?;
    row!(py, kind.name(), dtype, shape)
}
