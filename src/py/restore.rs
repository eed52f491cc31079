//! The verbs that load: bytes in, a tree out.

use std::fs;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::build::build;
use super::memory::Borrowed;
use super::{errors, gzip};
use crate::gzip::MAGIC;
use crate::mapping::Mapping;

/// The tree that a bytes-like object or a [`Memory`] encodes; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, copy, threads))]
pub fn restore<'py>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    threads: Option<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let copy = copy.into();
    if let Ok(memory) = data.cast_exact::<Memory>() {
        return match &memory.get().0 {
            Content::Mapped(file) => build(data, file.as_ref(), copy, threads, |range| {
                file.release(range);
            }),
            Content::Owned(bytes) => build(data, bytes, copy, threads, |_| ()),
        };
    }
    let source = Borrowed::buffer(data)?;
    build(
        source.owner(data.py()),
        source.as_ref(),
        copy,
        threads,
        |_| (),
    )
}

/// The content of a file, mapped, read or inflated. Restored arrays keep it alive.
#[pyclass(frozen, module = "treepack._core")]
pub struct Memory(Content);

/// Where the bytes are.
enum Content {
    Mapped(Mapping),
    Owned(Vec<u8>),
}

#[pymethods]
impl Memory {
    /// Maps a file.
    #[staticmethod]
    fn map(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let mapping = py
            .detach(|| Mapping::open(&path))
            .map_err(|error| errors::file_error(py, error, &path))?;
        Ok(Self(Content::Mapped(mapping)))
    }

    /// Reads a file.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let content = py
            .detach(|| fs::read(&path))
            .map_err(|error| errors::file_error(py, error.into(), &path))?;
        Ok(Self(Content::Owned(content)))
    }

    /// Whether the content starts as gzip does.
    fn is_gzip(&self) -> bool {
        self.content().starts_with(&MAGIC)
    }

    /// Decompresses a bytes-like object.
    #[staticmethod]
    fn inflate_bytes(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let source = Borrowed::buffer(data)?;
        let content = gzip::inflate(data.py(), source.as_ref(), None)?;
        Ok(Self(Content::Owned(content)))
    }

    /// What the content is when it is decompressed.
    fn inflate(&self, py: Python<'_>) -> PyResult<Self> {
        Ok(Self(Content::Owned(gzip::inflate(
            py,
            self.content(),
            None,
        )?)))
    }
}

impl Memory {
    fn content(&self) -> &[u8] {
        match &self.0 {
            Content::Mapped(mapping) => mapping.as_ref(),
            Content::Owned(bytes) => bytes,
        }
    }
}
