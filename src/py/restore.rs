//! The verbs that load: bytes in, a tree out.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::build::{CopyMode, build};
use super::memory::Borrowed;
use super::progress::Progress;
use super::{errors, gzip};
use crate::Result;
use crate::gzip::MAGIC;
use crate::mapping::Mapping;

/// The tree that a bytes-like object or a [`Memory`] encodes; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, copy, threads, *, abstract_arrays=false))]
pub fn restore<'py>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    threads: Option<i64>,
    abstract_arrays: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let copy = if abstract_arrays {
        CopyMode::Abstract
    } else {
        copy.into()
    };
    if let Ok(memory) = data.cast_exact::<Memory>() {
        return match &memory.get().0 {
            Content::Mapped(file) => build(data, file.as_ref(), copy, threads, |range| {
                file.release(range);
            }),
            Content::Read(bytes) => build(data, bytes, copy, threads, |_| ()),
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

/// The content of a file, mapped or read. Restored arrays keep it alive.
#[pyclass(frozen, module = "treepack._core")]
pub struct Memory(Content);

/// Where the bytes are.
enum Content {
    Mapped(Mapping),
    Read(Vec<u8>),
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
    #[pyo3(signature = (path, *, progress))]
    fn read(py: Python<'_>, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let mut told = Progress::new(
            progress,
            fs::metadata(&path).map_or(0, |found| usize::try_from(found.len()).unwrap_or(0)),
        );
        let content = py.detach(|| read(&path, |done| told.at(done)));
        let explain = |error| told.explain(error, |error| errors::file_error(py, error, &path));
        Ok(Self(Content::Read(content.map_err(explain)?)))
    }

    /// Whether the content starts as gzip does.
    fn is_gzip(&self) -> bool {
        self.content().starts_with(&MAGIC)
    }

    /// What the content is when it is decompressed.
    #[pyo3(signature = (*, threads, progress))]
    fn inflate<'py>(
        &self,
        py: Python<'py>,
        threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let release = |range| {
            if let Content::Mapped(mapping) = &self.0 {
                mapping.release(range);
            }
        };
        gzip::inflate(py, self.content(), None, threads, progress, release)
    }
}

impl Memory {
    fn content(&self) -> &[u8] {
        match &self.0 {
            Content::Mapped(mapping) => mapping.as_ref(),
            Content::Read(bytes) => bytes,
        }
    }
}

/// All of a file; `done` is told how many bytes have been read, and can stop that.
fn read(path: &Path, mut done: impl FnMut(usize) -> Result<()>) -> Result<Vec<u8>> {
    const PART: u64 = 64 << 20;
    let mut file = File::open(path)?;
    let mut content = Vec::new();
    if let Ok(len) = usize::try_from(file.metadata()?.len()) {
        content.try_reserve_exact(len).map_err(io::Error::from)?;
    }
    while file.by_ref().take(PART).read_to_end(&mut content)? > 0 {
        done(content.len())?;
    }
    Ok(content)
}
