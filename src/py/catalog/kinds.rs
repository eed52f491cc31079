//! Descriptions of leaves.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::memory::{new_tuple, row};
use crate::structure::LeafKind;

pub fn described<'py>(py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
    let shaped = |name: &str, dtype: &str, shape: &[u64]| {
        let dims = new_tuple(py, shape)?;
        row!(py, name, dtype, dims)
    };
    let plain = |name: &str| row!(py, name);
    match kind {
        LeafKind::None => plain("none"),
        LeafKind::Bool => plain("bool"),
        LeafKind::Int => plain("int"),
        LeafKind::Float => plain("float"),
        LeafKind::Complex => plain("complex"),
        LeafKind::Str => plain("str"),
        LeafKind::Bytes => plain("bytes"),
        LeafKind::Ext => plain("ext"),
        LeafKind::Container => plain("container"),
        LeafKind::Other => plain("other"),
        LeafKind::Array(dtype, shape) => shaped("array", dtype, shape),
        LeafKind::Scalar(dtype) => shaped("scalar", dtype, &[]),
        LeafKind::PrngKey(name, shape) => shaped("prng_key", name, shape),
    }
}
