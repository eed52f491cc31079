//! The bytes of a file or buffer: mapped, read, or returned by a Python function.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use super::layout::Layout;
use super::memory::{Borrowed, Owned, new_bytes, sizes};
use super::options::Int;
use super::watch::Watcher;
use super::{errors, gzip};
use crate::catalog::Compared;
use crate::gzip::{Contained, Indexed, MAGIC_BYTES, has_traces, is_compressed, mended};
use crate::handle;
use crate::layout::Slice;
use crate::manifest::Sparse;
use crate::mapping::{self, Mapping, Pages};
use crate::raw::{AsRaw, Filling, RawBytes, Uninit};
use crate::source::{Source, as_inner, read_to};
use crate::structure::MARK;
use crate::watch::Watch;
use crate::{Error, Result};

impl Source for Borrowed {
    fn len(&self) -> usize {
        self.as_raw().len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.as_raw().read_at(offset, target)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(self.as_raw())
    }

    fn stable(&self) -> Option<&[u8]> {
        self.as_stable()
    }
}

/// Encoded bytes. Arrays that view them keep them alive.
#[pyclass(frozen, module = "treepack._core")]
pub struct Content(Storage);

enum Storage {
    File(Arc<Mapping>),
    Read(Arc<Pages>),
    /// Decompressed gzip with a matching checksum.
    Inflated(Arc<Pages>),
    Lent(Arc<Borrowed>),
    /// Decompressed on each read.
    Gzip(Arc<Indexed<Arc<dyn Source + Send + Sync>>>, Origin),
    Elsewhere(Arc<Elsewhere>),
    /// A manifest, whose arrays are in other files.
    Sparse(Arc<Sparse>),
    /// A leaf during its copy.
    Copied(Arc<Copied>),
    /// An encoding that is never written, whose arrays lie in a file.
    Laid(Arc<Laid>, Origin),
}

/// The owner of a gzip stream, if it is a file or a Python object.
enum Origin {
    Other,
    File(Arc<Mapping>),
    Lent(Weak<Borrowed>),
    Elsewhere(Weak<Elsewhere>),
}

/// Bytes from a Python function, which takes an offset and a length, and returns a buffer of 1 to
/// `length` bytes.
struct Elsewhere {
    read: Py<PyAny>,
    len: usize,
    near: usize,
}

impl Source for Elsewhere {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let len = target.len();
        let mut filling = Filling::new(target);
        while filling.left() > 0 {
            let done = len - filling.left();
            let found = Python::attach(|py| {
                let found = self.read.bind(py).call1((offset + done, len - done))?;
                let found = Borrowed::buffer(&found)?;
                let count = found.as_raw().len();
                if count == 0 || count > len - done {
                    let reason =
                        format!("read returned {count} bytes, expected 1 to {}", len - done);
                    return Err(PyValueError::new_err(reason));
                }
                Ok(found)
            });
            // The copy to `target` runs detached.
            let found = found.map_err(|error| Error::Payload(Box::new(error)))?;
            let bytes = found.as_raw();
            filling.fill(bytes.len(), |now| bytes.read_at(0, now))?;
        }
        Ok(filling.finish())
    }

    fn near(&self) -> usize {
        self.near
    }
}

/// A layout as a source: reads its arrays where they lie.
struct Laid {
    layout: Py<Layout>,
    near: usize,
    /// Whether its arrays are not ranges of a file.
    is_alone: bool,
}

impl Source for Laid {
    fn len(&self) -> usize {
        self.layout.get().output.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.layout.get().output.read_at(offset, target)
    }

    fn at_hand(&self, offset: usize) -> usize {
        let output = &self.layout.get().output;
        if !self.is_alone {
            return output.len() - offset;
        }
        match output.slices(offset..output.len()).next() {
            Some(Slice::Headers(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    fn near(&self) -> usize {
        self.near
    }
}

/// A leaf that is compared with its checksum during its copy, and the name of its file.
struct Copied(Compared, Option<String>);

impl Copied {
    /// Adds the name of the source file, because callers name the file that they write.
    fn named(&self, error: Error) -> PyErr {
        let error = PyErr::from(error);
        // Best effort: out of memory, the error has no name.
        let _ = Python::attach(|py| error.value(py).setattr("filename", &self.1));
        error
    }
}

impl Source for Copied {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let read = self.0.read_at(offset, target);
        read.map_err(|error| match error {
            Error::Corrupt { .. } => Error::Payload(Box::new(self.named(error))),
            error => error,
        })
    }

    as_inner!(0);
}

#[pymethods]
impl Content {
    #[staticmethod]
    fn map(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let mapping = py
            .detach(|| Mapping::open(&path))
            .map_err(|error| errors::file_error(error, &path))?;
        Ok(Self(Storage::File(Arc::new(mapping))))
    }

    #[staticmethod]
    #[pyo3(signature = (path, *, progress, regular=false))]
    fn read(
        py: Python<'_>,
        path: PathBuf,
        progress: Option<Py<PyAny>>,
        regular: bool,
    ) -> PyResult<Self> {
        let file = if regular {
            handle::open_regular(&path)
        } else {
            handle::open(&path).map_err(Error::from)
        };
        let file = file.map_err(|error| errors::file_error(error, &path))?;
        let expected = file.metadata()?.len();
        let expected = usize::try_from(expected).unwrap_or(0);
        let watcher = Watcher::new(progress, expected);
        let content = py.detach(|| read(&file, expected, &watcher));
        let explain = |error| watcher.explain(error, |error| errors::file_error(error, &path));
        Ok(Self(Storage::Read(Arc::new(content.map_err(explain)?))))
    }

    #[staticmethod]
    pub fn lent(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(Storage::Lent(Arc::new(Borrowed::buffer(data)?))))
    }

    /// Reads by a function. Ranges less than `near` bytes apart are read as one.
    #[staticmethod]
    fn elsewhere(read: Py<PyAny>, len: usize, near: usize) -> Self {
        Self(Storage::Elsewhere(Arc::new(Elsewhere { read, len, near })))
    }

    #[staticmethod]
    fn laid(layout: Py<Layout>, file: &Self) -> Self {
        let source = file.source();
        let laid = Laid {
            layout,
            near: source.near(),
            is_alone: source.is_empty(),
        };
        Self(Storage::Laid(Arc::new(laid), file.origin()))
    }

    /// Returns the range of the file that holds a range of the content: whole blocks of gzip, or
    /// arrays of a layout.
    fn stored<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if start > stop || stop > self.source().len() {
            return Err(PyIndexError::new_err("the range exceeds the content"));
        }
        let range = match &self.0 {
            Storage::Gzip(indexed, _) => indexed.stored(start..stop),
            Storage::Laid(laid, _) => laid.layout.get().stored(start..stop),
            _ => start..stop,
        };
        sizes(py, &[range.start, range.end])
    }

    /// Decompresses gzip block by block, when read; `None` without an index of blocks.
    #[pyo3(signature = (*, max_size=None))]
    fn indexed(&self, py: Python<'_>, max_size: Option<Int>) -> PyResult<Option<Self>> {
        let source = self.shared();
        let indexed = py.detach(|| Indexed::open(source))?;
        if let Some(indexed) = &indexed {
            gzip::check_size(indexed.len(), gzip::limit(max_size))?;
        }
        Ok(indexed.map(|indexed| Self(Storage::Gzip(Arc::new(indexed), self.origin()))))
    }

    /// Decompresses a file of treepack whose gzip header is damaged; `None` for others.
    #[pyo3(signature = (*, max_size=None))]
    fn mended(&self, py: Python<'_>, max_size: Option<Int>) -> PyResult<Option<Self>> {
        let source = self.shared();
        let mended = Watcher::signals().detached(py, |watch| mended(&source, watch))?;
        let content = mended.map(|contained| match contained {
            Contained::Indexed(indexed) => Self(Storage::Gzip(Arc::new(indexed), self.origin())),
            Contained::Whole(pages) => Self(Storage::Inflated(Arc::new(pages))),
        });
        if let Some(content) = &content {
            gzip::check_size(content.nbytes(), gzip::limit(max_size))?;
        }
        Ok(content)
    }

    /// Returns whether the content ends like gzip with an index, even a damaged one.
    fn has_traces_of_index(&self, py: Python<'_>) -> PyResult<bool> {
        let source = self.source();
        Ok(py.detach(|| has_traces(source))?)
    }

    /// Visits only objects with one owner, because others would be counted for each owner.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        match &self.0 {
            Storage::Lent(borrowed) if Arc::strong_count(borrowed) == 1 => {
                visit.call(borrowed.unbound())
            }
            Storage::Elsewhere(elsewhere) if Arc::strong_count(elsewhere) == 1 => {
                visit.call(&elsewhere.read)
            }
            Storage::Laid(laid, _) if Arc::strong_count(laid) == 1 => visit.call(&laid.layout),
            Storage::Gzip(indexed, origin) if Arc::strong_count(indexed) == 1 => match origin {
                Origin::Lent(borrowed) if borrowed.strong_count() == 1 => {
                    let borrowed = borrowed.upgrade();
                    borrowed.map_or(Ok(()), |borrowed| visit.call(borrowed.unbound()))
                }
                Origin::Elsewhere(elsewhere) if elsewhere.strong_count() == 1 => {
                    let elsewhere = elsewhere.upgrade();
                    elsewhere.map_or(Ok(()), |elsewhere| visit.call(&elsewhere.read))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    #[getter]
    fn has_memory(&self) -> bool {
        self.memory().is_some()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.source().len()
    }

    fn read_range<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let source = self.source();
        if start > stop || stop > source.len() {
            return Err(PyIndexError::new_err("the range exceeds the content"));
        }
        let made = new_bytes(py, stop - start, true, |target| {
            source.read_at(start, target)
        })?;
        Ok(made?)
    }

    #[pyo3(signature = (*, by_start=false))]
    fn is_compressed(&self, by_start: bool) -> PyResult<bool> {
        // A read, since a page fault in the mapping would read many pages ahead.
        let mut start = Vec::new();
        let source = self.source();
        if let (Storage::Elsewhere(_), Some(before)) =
            (&self.0, source.len().checked_sub(MARK.len()))
            && !by_start
        {
            // The end is needed anyway, and the start only if the mark is not there.
            read_to(source, before..source.len(), &mut start)?;
            if start == MARK {
                return Ok(false);
            }
            start.clear();
        }
        read_to(source, 0..source.len().min(MAGIC_BYTES), &mut start)?;
        Ok(is_compressed(&start))
    }

    /// Reads all bytes into memory, which arrays then view.
    #[pyo3(signature = (*, progress))]
    fn in_memory(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        const PART: usize = 8 << 20;
        let source = self.source();
        let watcher = Watcher::new(progress, source.len());
        let pages = watcher.detached(py, |watch| {
            let mut pages = Pages::with_room(source.len())?;
            while pages.len() < source.len() {
                let (start, part) = (pages.len(), PART.min(source.len() - pages.len()));
                pages.fill(part, |target| source.read_at(start, target))?;
                watch.done(pages.len())?;
            }
            Ok(pages)
        })?;
        Ok(Self(Storage::Read(Arc::new(pages))))
    }

    #[pyo3(signature = (*, max_size=None, threads, progress))]
    fn inflate(
        &self,
        py: Python<'_>,
        max_size: Option<Int>,
        threads: Option<Int>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let pages = gzip::inflate_to_pages(py, self.source(), max_size, threads, progress)?;
        Ok(Self::made(pages))
    }

    #[pyo3(signature = (*, max_size))]
    fn salvage(&self, py: Python<'_>, max_size: Option<Int>) -> PyResult<(Self, Option<String>)> {
        let (pages, damage) = gzip::salvage(py, self.source(), max_size)?;
        let pages = Arc::new(pages);
        Ok(match damage {
            None => (Self(Storage::Inflated(pages)), None),
            Some(damage) => (Self(Storage::Read(pages)), Some(damage.to_string())),
        })
    }
}

impl Content {
    fn origin(&self) -> Origin {
        match &self.0 {
            Storage::File(mapping) => Origin::File(mapping.clone()),
            Storage::Lent(borrowed) => Origin::Lent(Arc::downgrade(borrowed)),
            Storage::Elsewhere(elsewhere) => Origin::Elsewhere(Arc::downgrade(elsewhere)),
            _ => Origin::Other,
        }
    }

    pub fn made(pages: Pages) -> Self {
        Self(Storage::Inflated(Arc::new(pages)))
    }

    pub fn copied(compared: Compared, file: Option<String>) -> Self {
        Self(Storage::Copied(Arc::new(Copied(compared, file))))
    }

    pub fn sparse(sparse: Arc<Sparse>) -> Self {
        Self(Storage::Sparse(sparse))
    }

    pub fn owned<'a, 'py>(slf: &'a Bound<'py, Self>) -> Option<Owned<'a, 'py>> {
        Owned::of(slf, Self::memory)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        match self.mapping() {
            Some(mapping) => mapping.pages(),
            None => self.source().memory(),
        }
    }

    pub fn source(&self) -> &(dyn Source + Send + Sync) {
        match &self.0 {
            Storage::File(mapping) => mapping,
            Storage::Read(pages) | Storage::Inflated(pages) => pages,
            Storage::Lent(borrowed) => borrowed,
            Storage::Gzip(indexed, _) => indexed,
            Storage::Elsewhere(elsewhere) => elsewhere,
            Storage::Sparse(sparse) => sparse,
            Storage::Copied(copied) => copied,
            Storage::Laid(laid, _) => laid,
        }
    }

    pub fn shared(&self) -> Arc<dyn Source + Send + Sync> {
        match &self.0 {
            Storage::File(mapping) => mapping.clone(),
            Storage::Read(pages) | Storage::Inflated(pages) => pages.clone(),
            Storage::Lent(borrowed) => borrowed.clone(),
            Storage::Elsewhere(elsewhere) => elsewhere.clone(),
            Storage::Gzip(indexed, _) => indexed.clone(),
            Storage::Sparse(sparse) => sparse.clone(),
            Storage::Copied(copied) => copied.clone(),
            Storage::Laid(laid, _) => laid.clone(),
        }
    }

    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.0 {
            Storage::File(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// Errors if the file has changed since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        match &self.0 {
            Storage::File(mapping)
            | Storage::Gzip(_, Origin::File(mapping))
            | Storage::Laid(_, Origin::File(mapping)) => mapping.check_unchanged(),
            _ => Ok(()),
        }
    }

    pub fn unless_changed<T>(&self, read: Result<T>) -> Result<T> {
        match read {
            Ok(_) | Err(Error::Gzip(_)) => self.check_unchanged().and(read),
            read => read,
        }
    }

    pub fn with_gaps(&self) -> Option<&Sparse> {
        match &self.0 {
            Storage::Sparse(sparse) => Some(sparse),
            _ => None,
        }
    }

    pub fn checks_itself(&self) -> bool {
        matches!(self.0, Storage::Gzip(..) | Storage::Inflated(_))
    }

    pub fn stream_damage(&self) -> Option<&'static str> {
        match &self.0 {
            Storage::Gzip(indexed, _) => indexed.damage(),
            _ => None,
        }
    }

    pub fn is_elsewhere(&self) -> bool {
        matches!(self.0, Storage::Elsewhere(_))
    }

    pub fn release(&self) {
        if let Some(mapping) = self.mapping() {
            mapping.release();
        }
    }
}

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
            // Another reader took the input.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => watch.check()?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(pages)
}
