//! The verbs that load: bytes in, a tree out.

use pyo3::prelude::*;

use super::content::Content;
use super::integer_or_none;
use super::memory::{Borrowed, Owned};
use super::objects::{CopyMode, build};
use crate::source::Source;

/// The tree that a bytes-like object or a [`Content`] encodes; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, copy, threads, *, abstract_arrays=false))]
pub fn restore<'py>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
    abstract_arrays: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let copy = if abstract_arrays {
        CopyMode::Abstract
    } else {
        copy.into()
    };
    if let Ok(content) = data.cast_exact::<Content>() {
        let source = content.get().source();
        let memory = Content::owned(content);
        let tree = build(data.py(), source, 0..source.len(), memory, copy, threads);
        content.get().release();
        return tree;
    }
    let borrowed = Borrowed::buffer(data)?;
    let memory = Some(Owned::borrowed(data.py(), &borrowed));
    let whole = 0..borrowed.len();
    build(data.py(), &borrowed, whole, memory, copy, threads)
}
