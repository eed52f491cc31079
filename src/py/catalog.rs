//! Leaves of encoded data by their paths, read one by one.

use std::ops::Range;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use super::content::Content;
use super::memory::FreshArray;
use super::objects::{CopyMode, blocks_of, build, explain, read_blocks};
use super::watch::Watcher;
use super::{errors, integer_or_none};
use crate::Error;
use crate::catalog::{self, BLOCK_BYTES, Status};
use crate::events::{ArrayEvent, Event, Events};
use crate::parallel;
use crate::structure::LeafKind;

/// What is in encoded data: containers and leaves, by number; see `_core.pyi`.
#[pyclass(frozen, module = "treepack._core")]
pub struct Catalog {
    content: Py<Content>,
    catalog: catalog::Catalog,
}

/// From where to where the bytes of an array lie.
type Pieces = Vec<(usize, usize)>;

/// How a tree is put together of some of its leaves.
struct Selection<'py> {
    /// By the numbers of leaves and empty containers; nothing if all are wanted.
    wanted: Option<Vec<u8>>,
    /// What takes the place of the others.
    absent: Bound<'py, PyAny>,
    copy: CopyMode,
    threads: Option<i64>,
}

/// Where ranges of the bytes of an array are in the data, and how many bytes these are.
fn pieces_of(
    array: &ArrayEvent<'_>,
    ranges: Vec<(usize, usize)>,
) -> PyResult<(Vec<Range<usize>>, usize)> {
    let mut nbytes = 0;
    let mut pieces = Vec::new();
    for (start, stop) in ranges {
        if start > stop || stop > array.nbytes() {
            return Err(PyIndexError::new_err("the array has fewer bytes"));
        }
        nbytes += stop - start;
        let mut before = 0;
        for span in array.spans {
            let span = span.range();
            let end = before + span.len();
            let part = start.clamp(before, end)..stop.clamp(before, end);
            pieces.push(span.start + part.start - before..span.start + part.end - before);
            before = end;
        }
    }
    Ok((pieces, nbytes))
}

#[pymethods]
impl Catalog {
    /// Finds the leaves.
    #[staticmethod]
    #[pyo3(signature = (content, *, salvage))]
    fn open(content: Bound<'_, Content>, salvage: bool) -> PyResult<Self> {
        let watcher = Watcher::signals();
        let source = content.get().source();
        let opened = content
            .py()
            .detach(|| catalog::Catalog::open(source, salvage, &watcher));
        let catalog = opened
            .map_err(|error| watcher.explain(error, |error| PyErr::from(explain(error, source))))?;
        Ok(Self {
            content: content.unbind(),
            catalog,
        })
    }

    /// How many leaves there are.
    fn __len__(&self) -> usize {
        self.catalog.len()
    }

    /// How many leaves there are in a value, and how many bytes they have.
    fn totals(&self, value: usize) -> PyResult<(usize, usize)> {
        self.check(value)?;
        Ok(self.catalog.totals(value))
    }

    /// The record of the structure, with what stands after it.
    #[getter]
    fn trailer<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let trailer = self.catalog.trailer();
        trailer.map(|trailer| PyBytes::new(py, trailer))
    }

    /// What is wrong with data of which only a part could be read.
    #[getter]
    fn damage(&self) -> Option<String> {
        self.catalog.damage().map(ToString::to_string)
    }

    /// Whether there are checksums of leaves.
    #[getter]
    fn is_summed(&self) -> bool {
        self.catalog.is_summed() || self.content.get().checks_itself()
    }

    /// The value that keys lead to from another one.
    fn find(&self, keys: Vec<String>, value: usize) -> PyResult<Option<usize>> {
        self.check(value)?;
        Ok(self.catalog.find(value, keys.iter().map(String::as_str)))
    }

    /// The keys and values in a container; nothing for a leaf.
    fn children(&self, value: usize) -> PyResult<Option<Vec<(&str, usize)>>> {
        self.check(value)?;
        let found = self.catalog.children(value);
        let found = found.map(|child| (self.catalog.key(child), child));
        Ok(self.catalog.leaf(value).is_none().then(|| found.collect()))
    }

    /// Whether a value is a list.
    fn is_list(&self, value: usize) -> PyResult<bool> {
        self.check(value)?;
        Ok(self.catalog.is_list(value))
    }

    /// The paths of the leaves below a value, and their numbers among all values.
    fn leaves(&self, value: usize) -> PyResult<Vec<(String, usize)>> {
        self.check(value)?;
        let found = self.catalog.ends_below(value);
        let found = found.filter(|(_, at)| self.catalog.leaf(*at).is_some());
        Ok(found.map(|(path, at)| (path.to_string(), at)).collect())
    }

    /// The same with the containers that have nothing in them.
    fn ends(&self, value: usize) -> PyResult<Vec<(String, usize)>> {
        self.check(value)?;
        let found = self.catalog.ends_below(value);
        Ok(found.map(|(path, at)| (path.to_string(), at)).collect())
    }

    /// How many values there are.
    #[getter]
    fn values(&self) -> usize {
        self.catalog.values()
    }

    /// The number of a leaf among all, what it is, and where: its value, from what on it is summed.
    fn leaf<'py>(
        &self,
        py: Python<'py>,
        value: usize,
    ) -> PyResult<(usize, Bound<'py, PyTuple>, usize, usize, usize)> {
        let leaf = self.leaf_of(value)?;
        let place = self.catalog.place(leaf);
        let kind = described(py, self.catalog.kind(leaf))?;
        Ok((leaf, kind, place.start, place.end, place.region))
    }

    /// Reads a value: a leaf, or a container with all its leaves.
    #[pyo3(signature = (value, *, copy, threads, wanted=None, absent=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        copy: Option<bool>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
        wanted: Option<Vec<u8>>,
        absent: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check(value)?;
        let selection = Selection {
            wanted,
            absent: absent.unwrap_or_else(|| py.None().into_bound(py)),
            copy: copy.into(),
            threads,
        };
        let read = self.value(py, value, &selection);
        if self.catalog.leaf(value).is_none() {
            self.content.get().release(); // of the whole file, which is not worth it for a leaf
        }
        read
    }

    /// Reads ranges of the bytes of an array, one after the other, into a fresh array of bytes.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        ranges: Vec<(usize, usize)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = self.catalog.place(self.leaf_of(value)?);
        let source = self.content.get().source();
        let watcher = Watcher::signals();
        let events = py.detach(|| Events::read_part(source, place.start..place.end));
        let events =
            events.map_err(|error| self.at(py, watcher.explain(error, PyErr::from), value))?;
        let found = self.array_of(&events, value)?;
        let (pieces, nbytes) = pieces_of(&found, ranges)?;
        let byte = numpy::dtype::<u8>(py);
        let mut fresh = FreshArray::new(&byte, &[nbytes], true)?;
        let object = fresh.object().clone();
        let blocks = blocks_of(pieces, fresh.memory());
        read_blocks(py, source, blocks, true, None, &watcher)
            .map_err(|error| watcher.explain(error, PyErr::from))?;
        Ok(object)
    }

    /// Begins to read ranges of the bytes of an array.
    fn prefetch(&self, py: Python<'_>, value: usize, ranges: Vec<(usize, usize)>) -> PyResult<()> {
        let place = self.catalog.place(self.leaf_of(value)?);
        let source = self.content.get().source();
        let events = Events::read_part(source, place.start..place.end);
        let events = events.map_err(|error| self.at(py, error.into(), value))?;
        let (pieces, _) = pieces_of(&self.array_of(&events, value)?, ranges)?;
        py.detach(|| self.content.get().prefetch(pieces));
        Ok(())
    }

    /// The data, and where in them the bytes of an array are.
    fn pieces(&self, py: Python<'_>, value: usize) -> PyResult<(Py<Content>, Pieces)> {
        let place = self.catalog.place(self.leaf_of(value)?);
        let source = self.content.get().source();
        let events = py.detach(|| Events::read_part(source, place.start..place.end));
        let events = events.map_err(|error| self.at(py, error.into(), value))?;
        let spans = self.array_of(&events, value)?.spans.iter();
        let spans = spans.map(|span| (span.range().start, span.range().end));
        Ok((self.content.clone_ref(py), spans.collect()))
    }

    /// Compares the data with their checksums; see `_core.pyi`.
    #[pyo3(signature = (*, threads, progress))]
    fn verify(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<&'static str>> {
        let content = self.content.get();
        let source = content.source();
        let threads = parallel::threads(threads, source.len(), parallel::MIN_COPY_BYTES)?;
        let watcher = Watcher::new(progress, source.len());
        let checks = content.checks_itself();
        // Far away, a read of many bytes takes hardly longer than one of few.
        let block = if content.is_elsewhere() {
            8 << 20
        } else {
            BLOCK_BYTES
        };
        let found = py.detach(|| {
            self.catalog
                .verify(source, checks, block, threads, &watcher)
        });
        let found = found.map_err(|error| watcher.explain(error, PyErr::from))?;
        let word = |status| match status {
            Status::Ok => "ok",
            Status::Corrupt => "corrupt",
            Status::Unchecked => "unchecked",
        };
        Ok(found.into_iter().map(word).collect())
    }
}

impl Catalog {
    fn check(&self, value: usize) -> PyResult<()> {
        if value < self.catalog.values() {
            return Ok(());
        }
        Err(PyIndexError::new_err("there is no such value"))
    }

    /// The array that a leaf is, as the catalog has it.
    fn array_of<'a>(&self, events: &'a Events, value: usize) -> PyResult<ArrayEvent<'a>> {
        if let &[Event::Array(number)] = events.as_slice()
            && let LeafKind::Array(_, expected) = self.catalog.kind(self.leaf_of(value)?)
        {
            let found = events.array(number);
            let same = |shape: &[usize]| {
                let dims = shape.iter().map(|dim| *dim as u64);
                dims.eq(expected.iter().copied())
            };
            if found.shape().is_some_and(|shape| same(&shape)) {
                return Ok(found);
            }
        }
        let path = self.catalog.path_of(value);
        let reason = "the leaf is not what the index of the file has there";
        let error = Error::At {
            path,
            error: Box::new(Error::Structure(reason.into())),
        };
        Err(error.into())
    }

    fn leaf_of(&self, value: usize) -> PyResult<usize> {
        self.check(value)?;
        let leaf = self.catalog.leaf(value);
        leaf.ok_or_else(|| PyTypeError::new_err("the value is no leaf"))
    }

    fn read_leaf<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        leaf: usize,
        selection: &Selection<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = self.catalog.place(leaf);
        let content = self.content.bind(py);
        let read = build(
            py,
            content.get().source(),
            place.start..place.end,
            Content::owned(content),
            selection.copy,
            selection.threads,
        );
        read.map_err(|error| self.at(py, error, value))
    }

    /// What is wrong with a value, with its path.
    fn at(&self, py: Python<'_>, error: PyErr, value: usize) -> PyErr {
        if !errors::is(py, &error, "DecodeError") {
            return error;
        }
        let raised = error.value(py);
        let again = || -> PyResult<PyErr> {
            let message: String = raised.getattr("message")?.extract()?;
            let offset: Option<usize> = raised.getattr("offset")?.extract()?;
            let path = self.catalog.path_of(value).to_string();
            Ok(errors::make(py, "DecodeError", (message, offset, path)))
        };
        again().unwrap_or(error.clone_ref(py))
    }

    /// A value with all that is wanted below it.
    fn value<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        selection: &Selection<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let catalog = &self.catalog;
        if let Some(wanted) = &selection.wanted {
            let below = wanted.get(value..catalog.after(value)).unwrap_or_default();
            if below.iter().all(|it| *it == 0) {
                return Ok(selection.absent.clone());
            }
        }
        if let Some(leaf) = catalog.leaf(value) {
            return self.read_leaf(py, value, leaf, selection);
        }
        if catalog.is_list(value) {
            // A list with gaps would be another one.
            let whole = Selection {
                wanted: None,
                absent: selection.absent.clone(),
                ..*selection
            };
            let list = PyList::empty(py);
            for child in catalog.children(value) {
                list.append(self.value(py, child, &whole)?)?;
            }
            return Ok(list.into_any());
        }
        let dict = PyDict::new(py);
        for child in catalog.children(value) {
            dict.set_item(catalog.key(child), self.value(py, child, selection)?)?;
        }
        Ok(dict.into_any())
    }
}

/// What a leaf is: its kind, and what there is to know of that.
fn described<'py>(py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
    let shaped = |name: &str, text: &str, shape: &[u64]| {
        (name, text, PyTuple::new(py, shape)?).into_pyobject(py)
    };
    let plain = |name: &str| (name,).into_pyobject(py);
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
