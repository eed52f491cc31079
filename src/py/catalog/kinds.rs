//! Descriptions of leaves.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::memory::{list_of_results, new_string, new_tuple_of, new_uint};
use crate::grow;
use crate::structure::LeafKind;

pub fn described<'py>(py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
    let text = |text: &str| Ok::<_, PyErr>(new_string(py, text.as_bytes())?.into_any());
    let shaped = |name: &str, dtype: &str, shape: &[u64]| {
        let dims = shape.iter().map(|dim| new_uint(py, *dim));
        let dims = grow::collect(list_of_results(py, dims)?)?;
        let dims = new_tuple_of(py, dims)?.into_any();
        new_tuple_of(py, [text(name)?, text(dtype)?, dims])
    };
    let plain = |name: &str| new_tuple_of(py, [text(name)?]);
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
