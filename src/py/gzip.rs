//! Compressing and decompressing plain bytes.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors;
use super::memory::{Borrowed, new_bytes};
use crate::gzip::{self, DEFAULT_LEVEL, Level};
use crate::layout::{Layout, LayoutBuilder, Payload};

/// The level for a `level=` argument, where `None` is the default.
pub fn level(py: Python<'_>, level: Option<i64>) -> PyResult<Level> {
    Level::new(level.unwrap_or(DEFAULT_LEVEL)).map_err(|error| errors::to_py(py, error, None))
}

/// A layout as gzip, in a new `bytes` object.
pub fn to_bytes<'py>(
    py: Python<'py>,
    layout: &Layout<impl Payload + Sync>,
    level: Option<i64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let level = self::level(py, level)?;
    let mut out = Vec::new();
    py.detach(|| gzip::compress(layout, level, &mut out))
        .map_err(|error| errors::to_py(py, error, None))?;
    copied(py, &out)
}

/// Compresses any bytes-like object; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, level))]
pub fn compress<'py>(
    data: &Bound<'py, PyAny>,
    level: Option<i64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let content = Borrowed::buffer(data)?;
    let mut builder = LayoutBuilder::default();
    builder.push(content);
    to_bytes(data.py(), &builder.finish(), level)
}

/// Decompresses any bytes-like object; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, max_size))]
pub fn decompress<'py>(
    data: &Bound<'py, PyAny>,
    max_size: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = data.py();
    let data = Borrowed::buffer(data)?;
    copied(py, &inflate(py, data.as_ref(), max_size)?)
}

/// What a gzip stream contains.
pub fn inflate(py: Python<'_>, data: &[u8], max_size: Option<usize>) -> PyResult<Vec<u8>> {
    py.detach(|| gzip::decompress(data, max_size))
        .map_err(|error| errors::to_py(py, error, None))
}

fn copied<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    new_bytes(py, content.len(), |target| {
        target.write_copy_of_slice(content);
    })
}
