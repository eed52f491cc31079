//! What is in a file or a buffer: mapped, read, or behind a function of Python.

use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::memory::{Borrowed, Owned, new_bytes};
use super::options::integer_or_none;
use super::watch::Watcher;
use super::{errors, gzip};
use crate::catalog::Compared;
use crate::gzip::{Contained, Indexed, MAGIC_BYTES, has_traces, is_compressed, mended};
use crate::handle;
use crate::manifest::Sparse;
use crate::mapping::{self, Mapping, Pages};
use crate::raw::{AsRaw, Filling, RawBytes};
use crate::source::{Source, read_to};
use crate::structure::MARK;
use crate::watch::Watch;
use crate::{Error, Result};

impl Source for Borrowed {
    fn len(&self) -> usize {
        self.as_raw().len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        self.as_raw().read_at(offset, target)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(self.as_raw())
    }

    fn stable(&self) -> Option<&[u8]> {
        self.as_stable()
    }
}

/// Encoded bytes, wherever they are. Restored arrays that view them keep them alive.
#[pyclass(frozen, module = "treepack._core")]
pub struct Content(Storage);

/// Where the bytes are.
enum Storage {
    File(Arc<Mapping>),
    Read(Arc<Pages>),
    /// What has come out of a gzip stream, whose checksum was compared.
    Inflated(Arc<Pages>),
    Lent(Arc<Borrowed>),
    /// Inflated where they are read.
    Gzip(Arc<Indexed<Arc<dyn Source + Send + Sync>>>, Origin),
    Elsewhere(Arc<Elsewhere>),
    /// That of a manifest, whose arrays are in other files.
    Sparse(Arc<Sparse>),
    /// Those of a leaf that is copied.
    Copied(Arc<Copied>),
}

/// What has the bytes of a gzip stream: a file, or an object of Python.
enum Origin {
    Nobody,
    File(Arc<Mapping>),
    Lent(Weak<Borrowed>),
    Elsewhere(Weak<Elsewhere>),
}

/// Bytes that a function of Python reads: it takes an offset and a length, and returns a buffer of
/// at least one byte and at most as many.
struct Elsewhere {
    read: Py<PyAny>,
    len: usize,
    near: usize,
}

impl Source for Elsewhere {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        let len = target.len();
        let mut filling = Filling::new(target);
        while filling.left() > 0 {
            let done = len - filling.left();
            let found = Python::attach(|py| {
                let found = self.read.bind(py).call1((offset + done, len - done))?;
                let found = Borrowed::buffer(&found)?;
                let count = found.as_raw().len();
                if count == 0 || count > len - done {
                    let reason = format!("{count} bytes were read of {}", len - done);
                    return Err(PyValueError::new_err(reason));
                }
                Ok(found)
            });
            // It is copied detached from Python, to where it belongs.
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

/// A leaf that is compared with its checksum while it is copied, and the name of its file.
struct Copied(Compared, Option<String>);

impl Copied {
    /// An error with the name of the file, since the caller's errors name the file that is written.
    fn named(&self, error: Error) -> PyErr {
        let error = PyErr::from(error);
        // Without memory for the name, the error has none.
        let _ = Python::attach(|py| error.value(py).setattr("filename", &self.1));
        error
    }
}

impl Source for Copied {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        let read = self.0.read_at(offset, target);
        read.map_err(|error| match error {
            Error::Corrupt { .. } => Error::Payload(Box::new(self.named(error))),
            error => error,
        })
    }

    fn run(&self, offset: usize) -> usize {
        self.0.run(offset)
    }

    fn present(&self, range: Range<usize>) -> usize {
        self.0.present(range)
    }

    fn near(&self) -> usize {
        self.0.near()
    }
}

#[pymethods]
impl Content {
    /// Opens a file, which is mapped if that is possible.
    #[staticmethod]
    fn map(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let mapping = py
            .detach(|| Mapping::open(&path))
            .map_err(|error| errors::file_error(error, &path))?;
        Ok(Self(Storage::File(Arc::new(mapping))))
    }

    /// Reads a file, or what else can be read unless that is excluded.
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

    /// Borrows the memory of a bytes-like object.
    #[staticmethod]
    pub fn lent(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(Storage::Lent(Arc::new(Borrowed::buffer(data)?))))
    }

    /// Reads by a function; of bytes that lie less than `near` apart, those between are read as well.
    #[staticmethod]
    fn elsewhere(read: Py<PyAny>, len: usize, near: usize) -> Self {
        Self(Storage::Elsewhere(Arc::new(Elsewhere { read, len, near })))
    }

    /// The range of the file that a range of the content comes from: that of whole blocks of gzip.
    fn stored(&self, start: usize, stop: usize) -> PyResult<(usize, usize)> {
        if start > stop || stop > self.source().len() {
            return Err(PyIndexError::new_err("there are fewer bytes"));
        }
        let range = match &self.0 {
            Storage::Gzip(indexed, _) => indexed.stored(start..stop),
            _ => start..stop,
        };
        Ok((range.start, range.end))
    }

    /// What the content is when it is decompressed, piece by piece where it is read; nothing if it
    /// has no index of its pieces.
    #[pyo3(signature = (*, max_size=None))]
    fn indexed(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer_or_none)] max_size: Option<i64>,
    ) -> PyResult<Option<Self>> {
        let source = self.shared();
        let indexed = py.detach(|| Indexed::open(source))?;
        if let Some(indexed) = &indexed {
            gzip::check_size(indexed.len(), gzip::limit(max_size))?;
        }
        Ok(indexed.map(|indexed| Self(Storage::Gzip(Arc::new(indexed), self.origin()))))
    }

    /// What the content is when it is decompressed, if it is compressed by treepack and its header is
    /// damaged; nothing otherwise.
    #[pyo3(signature = (*, max_size=None))]
    fn mended(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer_or_none)] max_size: Option<i64>,
    ) -> PyResult<Option<Self>> {
        let source = self.shared();
        let watcher = Watcher::signals();
        let mended = py.detach(|| mended(&source, &watcher));
        let mended = mended.map_err(|error| watcher.explain(error, PyErr::from))?;
        let content = mended.map(|contained| match contained {
            Contained::Indexed(indexed) => Self(Storage::Gzip(Arc::new(indexed), self.origin())),
            Contained::Whole(pages) => Self(Storage::Inflated(Arc::new(pages))),
        });
        if let Some(content) = &content {
            gzip::check_size(content.nbytes(), gzip::limit(max_size))?;
        }
        Ok(content)
    }

    /// Whether the content ends as gzip with an index does, which is damaged if `indexed` finds
    /// none.
    fn has_traces_of_index(&self, py: Python<'_>) -> PyResult<bool> {
        let source = self.source();
        Ok(py.detach(|| has_traces(source))?)
    }

    /// The objects that this keeps alive, as far as nothing else does so through it: what has
    /// several owners must not be counted for each.
    #[allow(clippy::needless_pass_by_value)] // as it is called
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        match &self.0 {
            Storage::Lent(borrowed) if Arc::strong_count(borrowed) == 1 => {
                visit.call(borrowed.unbound())
            }
            Storage::Elsewhere(elsewhere) if Arc::strong_count(elsewhere) == 1 => {
                visit.call(&elsewhere.read)
            }
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

    /// Whether the bytes lie in memory or are mapped, so that arrays can view them.
    #[getter]
    fn has_memory(&self) -> bool {
        self.memory().is_some()
    }

    /// How many bytes there are.
    #[getter]
    fn nbytes(&self) -> usize {
        self.source().len()
    }

    /// A copy of some of the bytes.
    fn read_range<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let source = self.source();
        if start > stop || stop > source.len() {
            return Err(PyIndexError::new_err("there are fewer bytes"));
        }
        let made = new_bytes(py, stop - start, true, |target| {
            source.read_at(start, target)
        })?;
        Ok(made?)
    }

    /// Whether the content starts as gzip does, or as numbers do.
    #[pyo3(signature = (*, by_start=false))]
    fn is_compressed(&self, by_start: bool) -> PyResult<bool> {
        // Not by the mapping, whose first page would bring many others from the disk.
        let mut start = Vec::new();
        let source = self.source();
        if let (Storage::Elsewhere(_), Some(before)) =
            (&self.0, source.len().checked_sub(MARK.len()))
            && !by_start
        {
            // The end will be needed anyway, and the start only if this is not there.
            read_to(source, before..source.len(), &mut start)?;
            if start == MARK {
                return Ok(false);
            }
            start.clear();
        }
        read_to(source, 0..source.len().min(MAGIC_BYTES), &mut start)?;
        Ok(is_compressed(&start))
    }

    /// What the content is when it is decompressed.
    #[pyo3(signature = (*, max_size=None, threads, progress))]
    fn inflate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer_or_none)] max_size: Option<i64>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let pages = gzip::inflate_to_pages(py, self.source(), max_size, threads, progress)?;
        Ok(Self::made(pages))
    }

    /// The same up to the first damage, and what is damaged there.
    #[pyo3(signature = (*, max_size))]
    fn salvage(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer_or_none)] max_size: Option<i64>,
    ) -> PyResult<(Self, Option<String>)> {
        let (pages, damage) = gzip::salvage(py, self.source(), max_size)?;
        let pages = Arc::new(pages);
        Ok(match damage {
            None => (Self(Storage::Inflated(pages)), None),
            Some(damage) => (Self(Storage::Read(pages)), Some(damage.to_string())),
        })
    }
}

impl Content {
    /// The object of Python that has the bytes.
    fn origin(&self) -> Origin {
        match &self.0 {
            Storage::File(mapping) => Origin::File(mapping.clone()),
            Storage::Lent(borrowed) => Origin::Lent(Arc::downgrade(borrowed)),
            Storage::Elsewhere(elsewhere) => Origin::Elsewhere(Arc::downgrade(elsewhere)),
            _ => Origin::Nobody,
        }
    }

    /// Bytes that were made of others, and compared with their checksums.
    pub fn made(pages: Pages) -> Self {
        Self(Storage::Inflated(Arc::new(pages)))
    }

    /// A leaf that is compared with its checksum while it is copied from a file.
    pub fn copied(compared: Compared, file: Option<String>) -> Self {
        Self(Storage::Copied(Arc::new(Copied(compared, file))))
    }

    /// Bytes of which some are not there.
    pub fn sparse(sparse: Arc<Sparse>) -> Self {
        Self(Storage::Sparse(sparse))
    }

    /// The memory that the bytes lie in, and this as its owner.
    pub fn owned<'a, 'py>(slf: &'a Bound<'py, Self>) -> Option<Owned<'a, 'py>> {
        Owned::of(slf, Self::memory)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        match &self.0 {
            Storage::File(mapping) => mapping.pages(),
            Storage::Read(pages) | Storage::Inflated(pages) => Some(pages.as_raw()),
            Storage::Lent(borrowed) => Some(borrowed.as_raw()),
            Storage::Gzip(..) | Storage::Elsewhere(_) | Storage::Sparse(_) | Storage::Copied(_) => {
                None
            }
        }
    }

    /// The bytes.
    pub fn source(&self) -> &(dyn Source + Send + Sync) {
        match &self.0 {
            Storage::File(mapping) => mapping,
            Storage::Read(pages) | Storage::Inflated(pages) => pages,
            Storage::Lent(borrowed) => borrowed,
            Storage::Gzip(indexed, _) => indexed,
            Storage::Elsewhere(elsewhere) => elsewhere,
            Storage::Sparse(sparse) => sparse,
            Storage::Copied(copied) => copied,
        }
    }

    /// The same, for as long as somebody needs them.
    pub fn shared(&self) -> Arc<dyn Source + Send + Sync> {
        match &self.0 {
            Storage::File(mapping) => mapping.clone(),
            Storage::Read(pages) | Storage::Inflated(pages) => pages.clone(),
            Storage::Lent(borrowed) => borrowed.clone(),
            Storage::Elsewhere(elsewhere) => elsewhere.clone(),
            Storage::Gzip(indexed, _) => indexed.clone(),
            Storage::Sparse(sparse) => sparse.clone(),
            Storage::Copied(copied) => copied.clone(),
        }
    }

    /// The open file, if it is one.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        match &self.0 {
            Storage::File(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// Errors if it is a file that was written to since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        match &self.0 {
            Storage::File(mapping) | Storage::Gzip(_, Origin::File(mapping)) => {
                mapping.check_unchanged()
            }
            _ => Ok(()),
        }
    }

    /// What has been read of it, unless the file was written to since it was opened.
    pub fn unless_changed<T>(&self, read: Result<T>) -> Result<T> {
        match read {
            Ok(_) | Err(Error::Gzip(_)) => self.check_unchanged().and(read),
            read => read,
        }
    }

    /// The encoding of a manifest, which has gaps, if it is one.
    pub fn with_gaps(&self) -> Option<&Sparse> {
        match &self.0 {
            Storage::Sparse(sparse) => Some(sparse),
            _ => None,
        }
    }

    /// Whether damage is found whenever bytes are read.
    pub fn checks_itself(&self) -> bool {
        matches!(self.0, Storage::Gzip(..) | Storage::Inflated(_))
    }

    /// What is wrong with a compressed stream around the bytes, though all its blocks may be whole.
    pub fn stream_damage(&self) -> Option<&'static str> {
        match &self.0 {
            Storage::Gzip(indexed, _) => indexed.damage(),
            _ => None,
        }
    }

    /// Whether bytes are read by a function of Python.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.0, Storage::Elsewhere(_))
    }

    /// Takes pages that have been read off this process's account until they are read again.
    pub fn release(&self) {
        if let Some(mapping) = self.mapping() {
            mapping.release();
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
