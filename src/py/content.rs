//! The bytes of a file or buffer: mapped, read, or returned by a Python function.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use super::layout::Layout;
use super::memory::{Borrowed, Owned, Writable, new_bytes, new_string, row};
use super::options::Int;
use super::walk::LeafPayload;
use super::watch::Watcher;
use super::{errors, gzip};
use crate::base::pages::Pages;
use crate::base::raw::{AsRaw, Filling, RawBytes, Uninit};
use crate::base::source::{SharedSource, Source, as_inner, bytes_of};
use crate::base::system::{self, repeated};
use crate::base::watch::Watch;
use crate::catalog::Compared;
use crate::codec::gzip::{Contained, Indexed, Stream, mended};
use crate::files::handle;
use crate::files::mapping::Mapping;
use crate::format::events::Span;
use crate::format::footer::MARK;
use crate::format::layout::{Payload as _, Slice};
use crate::{Error, Result, base::grow, base::parallel};

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

/// Bytes between two calls of the watch.
const PART: usize = 8 << 20;

/// Encoded bytes. Arrays that view them keep them alive.
#[pyclass(frozen, module = "treepack._core")]
pub struct Content {
    source: SharedSource,
    kind: Kind,
    /// The file that has the bytes, even compressed.
    file: Option<Arc<Mapping>>,
    /// The Python object that has the bytes, even compressed. `source` owns it.
    object: Option<Weak<dyn Object>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    File,
    /// Decompressed gzip: reading it detects damage.
    Checked,
    Elsewhere,
}

/// A source that owns a Python object.
trait Object: Send + Sync {
    fn object(&self) -> &Py<PyAny>;

    /// Whether memory has bytes of these ranges, or could.
    fn overlaps(&self, _memory: RawBytes<'_>, _ranges: &[Range<usize>]) -> bool {
        false
    }

    fn laid(&self) -> Option<&Laid> {
        None
    }
}

impl Object for Borrowed {
    fn object(&self) -> &Py<PyAny> {
        self.unbound()
    }

    fn overlaps(&self, memory: RawBytes<'_>, _: &[Range<usize>]) -> bool {
        self.as_raw().overlaps(memory)
    }
}

/// Bytes from a Python function, which takes an offset and a length, and returns a buffer of 1 to
/// `length` bytes.
struct Elsewhere {
    read: Py<PyAny>,
    len: usize,
    near: usize,
}

impl Object for Elsewhere {
    fn object(&self) -> &Py<PyAny> {
        &self.read
    }
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
            let buffer = Python::attach(|py| {
                let object = self.read.bind(py).call1((offset + done, len - done))?;
                let buffer = Borrowed::buffer(&object)?;
                let count = buffer.as_raw().len();
                if count == 0 || count > len - done {
                    let reason =
                        format!("read returned {count} bytes, expected 1 to {}", len - done);
                    return Err(PyValueError::new_err(reason));
                }
                Ok(buffer)
            });
            // The copy to `target` runs detached.
            let buffer = buffer.map_err(|error| Error::Payload(Box::new(error)))?;
            let bytes = buffer.as_raw();
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
    /// The files with its arrays; empty if a function reads them.
    files: Vec<Py<Content>>,
}

impl Object for Laid {
    fn object(&self) -> &Py<PyAny> {
        self.layout.as_any()
    }

    fn overlaps(&self, memory: RawBytes<'_>, ranges: &[Range<usize>]) -> bool {
        let output = &self.layout.get().output;
        let mut slices = ranges.iter().flat_map(|range| output.slices(range.clone()));
        let is_shared = |slice| match slice {
            Slice::Payload(LeafPayload::Source(leaf), _, range) => Python::attach(|py| {
                let content = leaf.content.bind(py).cast::<Content>();
                content.is_ok_and(|found| found.get().overlaps(memory, &leaf.stored(range)))
            }),
            Slice::Payload(leaf, ..) => leaf.memory().is_some_and(|array| array.overlaps(memory)),
            Slice::Headers(_) => false,
        };
        slices.any(is_shared)
            || self
                .files
                .iter()
                .any(|file| file.get().overlaps(memory, &[]))
    }

    fn laid(&self) -> Option<&Laid> {
        Some(self)
    }
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
        match output.slices(offset..output.len()).next() {
            Some(Slice::Headers(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    fn stored(&self, range: Range<usize>) -> Range<usize> {
        self.layout.get().stored(range)
    }

    fn near(&self) -> usize {
        let files = self.files.iter().map(|file| file.get().source.near());
        files.min().unwrap_or(usize::MAX)
    }
}

/// Memory of encoded bytes, which arrays can view.
pub enum Memory<'a, 'py> {
    Whole(Owned<'a, 'py>),
    /// Arrays of a layout, in memory of other contents.
    Parts(&'a Bound<'py, Content>),
}

impl<'py> Memory<'_, 'py> {
    /// Calls `make` with the memory that has these spans in one piece, and their start there.
    pub fn view<T>(
        &self,
        spans: &[Span],
        make: impl FnOnce(Owned<'_, 'py>, usize) -> T,
    ) -> Option<T> {
        let (first, rest) = spans.split_first()?;
        match self {
            Self::Whole(memory) => rest.is_empty().then(|| make(*memory, first.start)),
            Self::Parts(content) => {
                let laid = content.get().object.as_ref()?.upgrade()?;
                let layout = laid.laid()?.layout.get();
                let (file, start) = layout.content_of(first.range())?;
                let mut end = start + first.range().len();
                for span in rest {
                    let (other, start) = layout.content_of(span.range())?;
                    if other.as_ptr() != file.as_ptr() || start != end {
                        return None;
                    }
                    end += span.range().len();
                }
                let file = file.bind(content.py()).cast::<Content>().ok()?;
                match Content::memory_of(file)? {
                    Memory::Whole(memory) => Some(make(memory, start)),
                    Memory::Parts(_) => None,
                }
            }
        }
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
            Error::Corrupt(_) => Error::Payload(Box::new(self.named(error))),
            error => error,
        })
    }

    as_inner!(self, self.0);
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, *, by_start=false))]
pub fn is_compressed(data: &Bound<'_, PyAny>, by_start: bool) -> PyResult<bool> {
    let Ok(content) = data.cast::<Content>() else {
        return Ok(Stream(&Borrowed::buffer(data)?).is_compressed()?);
    };
    let (content, source) = (content.get(), content.get().source());
    if content.is_elsewhere()
        && !by_start
        && let Some(before) = source.len().checked_sub(MARK.len())
        // The end is needed anyway, and the start only if the mark is not there.
        && bytes_of(source, before..source.len())? == MARK
    {
        return Ok(false);
    }
    Ok(Stream(source).is_compressed()?)
}

#[pymethods]
impl Content {
    #[staticmethod]
    fn map(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let mapping = py
            .detach(|| Mapping::open(&path))
            .map_err(|error| errors::file_error(error, &path))?;
        let mapping = Arc::new(mapping);
        Ok(Self {
            file: Some(mapping.clone()),
            ..Self::of(mapping, Kind::File)
        })
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
        let expected = repeated(|| file.metadata())?.len();
        let expected = usize::try_from(expected).unwrap_or(0);
        let watcher = Watcher::new(progress, expected);
        let content = py.detach(|| read(&file, expected, &watcher));
        let explain = |error| watcher.explain(error, |error| errors::file_error(error, &path));
        Ok(Self::of(Arc::new(content.map_err(explain)?), Kind::Plain))
    }

    #[staticmethod]
    pub fn lent(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self::owning(Borrowed::buffer(data)?, Kind::Plain))
    }

    /// Reads by a function. Ranges less than `near` bytes apart are read as one.
    #[staticmethod]
    fn elsewhere(read: Py<PyAny>, len: usize, near: usize) -> Self {
        Self::owning(Elsewhere { read, len, near }, Kind::Elsewhere)
    }

    #[staticmethod]
    fn laid(layout: Py<Layout>, files: Vec<Py<Self>>) -> Self {
        Self::owning(Laid { layout, files }, Kind::Plain)
    }

    /// Returns the range of the file that holds a range of the content: whole blocks of gzip, or
    /// arrays of a layout.
    fn stored<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let range = self.source.stored(self.range(start, stop)?);
        row!(py, range.start, range.end)
    }

    /// Decompresses gzip block by block, when read; `None` without an index of blocks.
    #[pyo3(signature = (*, max_size=None))]
    fn indexed(&self, py: Python<'_>, max_size: Option<Int>) -> PyResult<Option<Self>> {
        let source = self.shared();
        let indexed = py.detach(|| Indexed::open(source))?;
        if let Some(indexed) = &indexed {
            gzip::check_size(indexed.len(), gzip::limit(max_size))?;
        }
        Ok(indexed.map(|indexed| self.gzip(indexed)))
    }

    /// Decompresses a file of treepack whose gzip header is damaged; `None` for others.
    #[pyo3(signature = (*, max_size=None))]
    fn mended(&self, py: Python<'_>, max_size: Option<Int>) -> PyResult<Option<Self>> {
        let source = self.shared();
        let mended = Watcher::signals().detached(py, |watch| mended(&source, &MARK, watch))?;
        let content = mended.map(|contained| match contained {
            Contained::Indexed(indexed) => self.gzip(indexed),
            Contained::Whole(pages) => Self::checked(pages),
        });
        if let Some(content) = &content {
            gzip::check_size(content.nbytes(), gzip::limit(max_size))?;
        }
        Ok(content)
    }

    /// Returns whether the content ends like gzip with an index, even a damaged one.
    fn has_traces_of_index(&self, py: Python<'_>) -> PyResult<bool> {
        let source = self.source();
        Ok(py.detach(|| Stream(source).has_traces_of_index())?)
    }

    /// Visits only objects with one owner, because others would be counted for each owner.
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        if Arc::strong_count(&self.source) == 1
            && let Some(object) = &self.object
            && object.strong_count() == 1
            && let Some(object) = object.upgrade()
        {
            visit.call(object.object())?;
        }
        Ok(())
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
        let range = self.range(start, stop)?;
        let bytes = new_bytes(py, range.len(), true, |target| {
            self.source().read_at(start, target)
        })?;
        Ok(bytes?)
    }

    /// Reads all bytes into memory, which arrays then view.
    #[pyo3(signature = (*, progress))]
    fn in_memory(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let source = self.source();
        let watcher = Watcher::new(progress, source.len());
        let pages = watcher.detached(py, |watch| {
            let mut pages = Pages::with_room(source.len())?;
            for part in parallel::blocks(0..source.len(), PART) {
                pages.fill(part.len(), |target| source.read_at(part.start, target))?;
                watch.done(pages.len())?;
            }
            Ok(pages)
        })?;
        Ok(Self::of(Arc::new(pages), Kind::Plain))
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
        Ok(Self::checked(pages))
    }

    #[pyo3(signature = (*, max_size))]
    fn salvage<'py>(
        &self,
        py: Python<'py>,
        max_size: Option<Int>,
    ) -> PyResult<(Self, Option<Bound<'py, PyString>>)> {
        let (source, max_size) = (self.source(), gzip::limit(max_size));
        let (pages, damage) =
            Watcher::signals().detached(py, |watch| Stream(source).salvage(max_size, watch))?;
        Ok(match damage {
            None => (Self::checked(pages), None),
            Some(damage) => {
                let content = Self::of(Arc::new(pages), Kind::Plain);
                let text = grow::display(&damage)?;
                (content, Some(new_string(py, &text)?))
            }
        })
    }
}

impl Content {
    fn of(source: SharedSource, kind: Kind) -> Self {
        Self {
            source,
            kind,
            file: None,
            object: None,
        }
    }

    fn owning<S: Source + Object + 'static>(source: S, kind: Kind) -> Self {
        let source = Arc::new(source);
        let object: Weak<dyn Object> = Arc::downgrade(&source) as _;
        Self {
            object: Some(object),
            ..Self::of(source, kind)
        }
    }

    fn gzip(&self, indexed: Indexed<SharedSource>) -> Self {
        Self {
            file: self.file.clone(),
            object: self.object.clone(),
            ..Self::of(Arc::new(indexed), Kind::Checked)
        }
    }

    fn range(&self, start: usize, stop: usize) -> PyResult<Range<usize>> {
        if start > stop || stop > self.source().len() {
            return Err(PyIndexError::new_err("the range exceeds the content"));
        }
        Ok(start..stop)
    }

    pub fn checked(pages: Pages) -> Self {
        Self::of(Arc::new(pages), Kind::Checked)
    }

    /// Data whose reader compares checksums.
    pub fn unchecked(source: Arc<impl Source + Send + 'static>) -> Self {
        Self::of(source, Kind::Plain)
    }

    pub fn copied(compared: Compared, file: Option<String>) -> Self {
        Self::of(Arc::new(Copied(compared, file)), Kind::Plain)
    }

    pub fn memory_of<'a, 'py>(slf: &'a Bound<'py, Self>) -> Option<Memory<'a, 'py>> {
        let owned = Owned::of(slf, Self::memory).map(Memory::Whole);
        owned.or_else(|| slf.get().files(|_| ()).map(|()| Memory::Parts(slf)))
    }

    /// Calls `each` with the files of a layout; `None` for other contents.
    fn files<T>(&self, each: impl FnOnce(&[Py<Self>]) -> T) -> Option<T> {
        let object = self.object.as_ref()?.upgrade()?;
        Some(each(&object.laid()?.files))
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        match self.mapping() {
            Some(mapping) => mapping.pages(),
            None => self.source().memory(),
        }
    }

    pub fn source(&self) -> &(dyn Source + Send + Sync) {
        &*self.source
    }

    pub fn shared(&self) -> SharedSource {
        self.source.clone()
    }

    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.file.as_ref().filter(|_| self.kind == Kind::File)
    }

    /// Errors if a caller's memory has bytes of these ranges, which reading them there would change.
    pub fn check_apart(&self, target: &Writable, ranges: &[Range<usize>]) -> PyResult<()> {
        if self.overlaps(target.memory(), ranges) {
            let reason = "the array shares memory with the target, which reading would change";
            return Err(PyValueError::new_err(reason));
        }
        Ok(())
    }

    fn overlaps(&self, memory: RawBytes<'_>, ranges: &[Range<usize>]) -> bool {
        let object = self.object.as_ref().and_then(Weak::upgrade);
        object.is_some_and(|object| object.overlaps(memory, ranges))
    }

    /// Errors if the file has changed since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        let each = |files: &[Py<Self>]| {
            files
                .iter()
                .try_for_each(|file| file.get().check_unchanged())
        };
        self.files(each).transpose()?;
        self.file
            .as_ref()
            .map_or(Ok(()), |file| file.check_unchanged())
    }

    pub fn unless_changed<T>(&self, read: Result<T>) -> Result<T> {
        match read {
            Ok(_) => self.check_unchanged().and(read),
            Err(error) => Err(self.cause(error)),
        }
    }

    /// Returns the error that the file has changed since it was opened, in place of its effect.
    pub fn cause(&self, error: Error) -> Error {
        match self.check_unchanged() {
            Err(changed) if !error.is_no_damage() => changed,
            _ => error,
        }
    }

    pub fn checks_itself(&self) -> bool {
        self.kind == Kind::Checked
    }

    pub fn is_elsewhere(&self) -> bool {
        self.kind == Kind::Elsewhere
    }

    pub fn release(&self) {
        self.files(|files| files.iter().for_each(|file| file.get().release()));
        if let Some(mapping) = self.mapping() {
            mapping.release();
        }
    }
}

fn read(mut file: &File, expected: usize, watch: &dyn Watch) -> Result<Pages> {
    let may_wait = !repeated(|| file.metadata())?.is_file();
    let mut pages = Pages::with_room(expected + 1)?;
    loop {
        if may_wait {
            system::wait(file, &system::Ready::Input, watch)?;
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
