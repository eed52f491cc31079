//! The verbs that load: bytes in, a tree out.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::path::PathBuf;

use pyo3::prelude::*;

use super::memory::{Borrowed, Owned};
use super::objects::{CopyMode, build};
use super::watch::Watcher;
use super::{errors, gzip, integer_or_none};
use crate::Result;
use crate::gzip::MAGIC;
use crate::mapping::{self, Mapping, Pages};
use crate::raw::{AsRaw, RawBytes};
use crate::source::{Source, read_to};
use crate::watch::Watch;

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
        let memory = Owned::of(content, Content::memory);
        let tree = build(data.py(), content.get().source(), memory, copy, threads);
        if let Place::Mapped(mapping) = &content.get().0 {
            mapping.release();
        }
        return tree;
    }
    let borrowed = Borrowed::buffer(data)?;
    let memory = Owned::borrowed(data.py(), &borrowed);
    build(data.py(), &borrowed, memory, copy, threads)
}

/// Does something with what a bytes-like object or a [`Content`] holds.
pub fn with_source<T>(
    data: &Bound<'_, PyAny>,
    work: impl FnOnce(&dyn Source) -> PyResult<T>,
) -> PyResult<T> {
    match data.cast_exact::<Content>() {
        Ok(content) => work(content.get().source()),
        Err(_) => work(&Borrowed::buffer(data)?),
    }
}

impl Source for Borrowed {
    fn len(&self) -> usize {
        self.as_raw().len()
    }

    fn read_at(&self, offset: usize, target: &mut [MaybeUninit<u8>]) -> Result<()> {
        self.as_raw().read_at(offset, target)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(self.as_raw())
    }

    fn stable(&self) -> Option<&[u8]> {
        self.as_stable()
    }
}

/// The content of a file, mapped or read. Restored arrays keep it alive.
#[pyclass(frozen, module = "treepack._core")]
pub struct Content(Place);

/// Where the bytes are.
enum Place {
    Mapped(Mapping),
    Read(Pages),
}

#[pymethods]
impl Content {
    /// Maps a file.
    #[staticmethod]
    fn map(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let mapping = py
            .detach(|| Mapping::open(&path))
            .map_err(|error| errors::file_error(error, &path))?;
        Ok(Self(Place::Mapped(mapping)))
    }

    /// Reads a file.
    #[staticmethod]
    #[pyo3(signature = (path, *, progress))]
    fn read(py: Python<'_>, path: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let file = mapping::open(&path).map_err(|error| errors::file_error(error.into(), &path))?;
        let expected = file.metadata()?.len();
        let expected = usize::try_from(expected).unwrap_or(0);
        let watcher = Watcher::new(progress, expected);
        let content = py.detach(|| read(&file, expected, &watcher));
        let explain = |error| watcher.explain(error, |error| errors::file_error(error, &path));
        Ok(Self(Place::Read(content.map_err(explain)?)))
    }

    /// Whether the content starts as gzip does.
    fn is_gzip(&self) -> PyResult<bool> {
        // Not by the mapping, whose first page would bring many others from the disk.
        let mut start = Vec::new();
        let source = self.source();
        read_to(source, 0..source.len().min(MAGIC.len()), &mut start)?;
        Ok(start == MAGIC)
    }

    /// What the content is when it is decompressed.
    #[pyo3(signature = (*, threads, progress))]
    fn inflate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let pages = gzip::inflate_to_pages(py, self.source(), threads, progress)?;
        Ok(Self(Place::Read(pages)))
    }
}

impl Content {
    fn memory(&self) -> RawBytes<'_> {
        match &self.0 {
            Place::Mapped(mapping) => mapping.as_raw(),
            Place::Read(pages) => pages.as_raw(),
        }
    }

    fn source(&self) -> &dyn Source {
        match &self.0 {
            Place::Mapped(mapping) => mapping,
            Place::Read(pages) => pages,
        }
    }
}

/// All of a file, or what comes through a pipe until it ends.
fn read(mut file: &File, expected: usize, watch: &dyn Watch) -> Result<Pages> {
    const PART: usize = 8 << 20;
    let may_wait = !file.metadata()?.is_file();
    let mut pages = Pages::with_room(expected + 1)?;
    loop {
        if may_wait {
            mapping::wait_for_input(file, watch)?;
        }
        let room = pages.room(1)?;
        let part = room.len().min(PART);
        match file.read(&mut room[..part]) {
            Ok(0) => break,
            Ok(read) => {
                pages.add(read);
                watch.done(pages.len())?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => watch.check()?,
            // Somebody else took what there was.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => watch.check()?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(pages)
}
