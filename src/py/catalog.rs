//! Leaves of encoded data by their paths, read one by one.
//!
//! It is one class of Python, and long because it has a method for whatever is asked of a file.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use smallvec::SmallVec;

use super::content::Content;
use super::dtypes::Dtype;
use super::errors;
use super::memory::{
    FreshArray, Writable, copied, detached, keep_reserve, list_of_results, new_dict, new_list,
    new_list_of, new_string, new_tuple_of, new_uint, sizes,
};
use super::objects::{Parts, explain};
use super::options::integer_or_none;
use super::select::{Marks, Selector};
use super::watch::{Signals, Watcher};
use crate::array::{Bounds, Runs, resolve};
use crate::catalog::{self, BLOCK_BYTES, Status};
use crate::events::Event;
use crate::source::{self, Pieces, Source as _};
use crate::structure::LeafKind;
use crate::watch::Watch as _;
use crate::{Error, Result, grow, parallel};

/// What is in encoded data: containers and leaves, by number; see `_core.pyi`.
#[pyclass(frozen, module = "treepack._core")]
#[allow(clippy::struct_field_names)] // the catalog of the core
pub struct Catalog {
    content: Py<Content>,
    catalog: Arc<catalog::Catalog>,
    chunked: Mutex<Chunked>,
    /// What was told last of a kind of leaves, and where that kind is: most are like the one before.
    told: Mutex<Option<(usize, Py<PyTuple>)>>,
}

/// The paths of values one after the other, each made when it is asked for: all of them may be much
/// larger than the data.
#[pyclass(module = "treepack._core")]
pub struct Paths {
    catalog: Arc<catalog::Catalog>,
    /// From which value on the paths lead.
    from: usize,
    /// The values that are still to come.
    left: Range<usize>,
    /// Whether containers with nothing in them are among them.
    with_empty: bool,
}

#[pymethods]
impl Paths {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        /// After so many the caller may stop, who may be a loop that is not of Python.
        const CHECK_PATHS: usize = 1 << 10;
        for at in self.left.by_ref() {
            if at.is_multiple_of(CHECK_PATHS) {
                py.check_signals()?;
            }
            if self.catalog.leaf(at).is_some() || self.with_empty && self.catalog.is_end(at) {
                let path = self.catalog.path_below(self.from, at)?;
                return numbered(py, &grow::display(&path)?, at).map(Some);
            }
        }
        Ok(None)
    }
}

/// What typed PRNG keys are made of.
const KEY_DTYPE: &str = "uint32";

/// Where arrays in many chunks are, which takes long to find out: some of them, by their values.
#[derive(Default)]
struct Chunked {
    known: HashMap<usize, Arc<ArrayPlace>>,
    chunks: usize,
}

impl Chunked {
    /// So many chunks are known at a time, at most, or those of one array.
    const MOST: usize = 1 << 20;

    fn remember(&mut self, value: usize, place: &Arc<ArrayPlace>) -> Result<()> {
        let chunks = place.parts.as_slice().len();
        if self.chunks + chunks > Self::MOST {
            *self = Self::default();
        }
        self.known.try_reserve(1)?;
        if self.known.insert(value, place.clone()).is_none() {
            self.chunks += chunks;
        }
        Ok(())
    }
}

/// How a tree is put together of some of its leaves.
#[derive(Clone, Copy)]
struct Selection<'a, 'py> {
    /// Which of them; nothing if all are wanted.
    marks: Option<&'a catalog::Marks>,
    /// What takes the place of the others.
    absent: Option<&'a Bound<'py, PyAny>>,
    signals: &'a Signals,
}

/// For each dimension: where a box begins, how many indices it has, and how far apart they are.
type BoxBounds = Vec<(usize, usize, usize)>;

/// Fills memory.
type Read<'a> = &'a (dyn Fn(&mut [MaybeUninit<u8>]) -> Result<()> + Sync);

/// What an array is, and where its bytes are in the data.
struct ArrayPlace {
    shape: SmallVec<[usize; 6]>,
    parts: Pieces,
}

impl ArrayPlace {
    fn nbytes(&self) -> usize {
        self.parts.len()
    }

    /// The runs of a box of it, for memory with these strides, or where it lies together.
    fn runs(&self, bounds: BoxBounds, strides: Option<&[usize]>) -> PyResult<Runs> {
        let bounds = bounds.into_iter();
        let bounds = bounds.map(|(start, count, step)| Bounds { start, count, step });
        let bounds = grow::collect(bounds)?;
        let count = self.shape.iter().product::<usize>().max(1);
        let itemsize = self.nbytes() / count;
        let found = match strides {
            Some(strides) => Runs::new(&self.shape, itemsize, &bounds, strides),
            None => Runs::compact(&self.shape, itemsize, &bounds),
        };
        found.ok_or_else(|| PyIndexError::new_err("the array has no such box"))
    }

    /// Where a box of it is in the data.
    fn ranges(&self, bounds: BoxBounds) -> PyResult<Vec<Range<usize>>> {
        /// To skip less is not worth another request to the disk.
        const NEAR_BYTES: usize = 32 << 10;
        let ranges = self.runs(bounds, None)?.ranges(NEAR_BYTES)?;
        let pieces = ranges.into_iter().flat_map(|range| self.parts.of(range));
        Ok(grow::collect(pieces)?)
    }
}

#[pymethods]
impl Catalog {
    /// Finds the leaves.
    #[staticmethod]
    #[pyo3(signature = (content, *, salvage))]
    fn open(content: Bound<'_, Content>, salvage: bool) -> PyResult<Self> {
        keep_reserve()?;
        let watcher = Watcher::signals();
        let source = content.get().source();
        let opened = content
            .py()
            .detach(|| catalog::Catalog::open(source, salvage, &watcher));
        let catalog = opened
            .map_err(|error| watcher.explain(error, |error| PyErr::from(explain(error, source))))?;
        Ok(Self {
            content: content.unbind(),
            catalog: Arc::new(catalog),
            chunked: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// The same without the data: only what is where is known.
    fn without_content(&self, py: Python<'_>) -> PyResult<Self> {
        let nothing = Content::lent(PyBytes::new(py, b"").as_any())?;
        Ok(Self {
            content: Py::new(py, nothing)?,
            catalog: self.catalog.clone(),
            chunked: Mutex::default(),
            told: Mutex::default(),
        })
    }

    #[allow(clippy::needless_pass_by_value)] // as it is called
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.content)
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
    fn trailer<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let trailer = self.catalog.trailer();
        trailer.map(|trailer| copied(py, trailer)).transpose()
    }

    /// What is wrong with data of which only a part could be read.
    #[getter]
    fn damage<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let damage = self.catalog.damage().map(grow::display);
        let text = |text: Result<String>| new_string(py, text?.as_bytes());
        damage.map(text).transpose()
    }

    /// Whether there are checksums of leaves.
    #[getter]
    fn is_summed(&self) -> bool {
        self.catalog.is_summed() || self.content.get().checks_itself()
    }

    /// The value that keys lead to from another one.
    fn find(&self, keys: Vec<String>, value: usize) -> PyResult<Option<usize>> {
        self.check(value)?;
        let watcher = Watcher::whenever_asked();
        let keys = keys.iter().map(String::as_str);
        let found = self.catalog.find(value, keys, &watcher);
        found.map_err(|error| watcher.explain(error, PyErr::from))
    }

    /// The keys and values in a container; nothing for a leaf.
    fn children<'py>(&self, py: Python<'py>, value: usize) -> PyResult<Option<Bound<'py, PyList>>> {
        self.check(value)?;
        if self.catalog.leaf(value).is_some() {
            return Ok(None);
        }
        let signals = Signals::new();
        let pairs = self.catalog.children(value).map(|child| {
            signals.check(py)?;
            numbered(py, self.catalog.key(child), child)
        });
        list_of_results(py, pairs).map(Some)
    }

    /// Whether a value is a list.
    fn is_list(&self, value: usize) -> PyResult<bool> {
        self.check(value)?;
        Ok(self.catalog.is_list(value))
    }

    /// The paths of the leaves below a value, and their numbers among all values.
    fn leaves(&self, value: usize) -> PyResult<Paths> {
        self.paths(value, false)
    }

    /// The same with the containers that have nothing in them.
    fn ends(&self, value: usize) -> PyResult<Paths> {
        self.paths(value, true)
    }

    /// What is wrong with a gzip stream around the data, though all its blocks may be whole.
    #[getter]
    fn stream_damage(&self) -> Option<&'static str> {
        self.content.get().stream_damage()
    }

    /// All dtypes that arrays have, by name.
    #[getter]
    fn dtypes(&self) -> Vec<&str> {
        self.catalog.dtypes().collect()
    }

    /// The numbers of the leaves below a value among all values.
    fn leaf_values<'py>(&self, py: Python<'py>, value: usize) -> PyResult<Bound<'py, PyList>> {
        self.check(value)?;
        let inside = value..self.catalog.after(value);
        let leaves = inside.filter(|at| self.catalog.leaf(*at).is_some());
        list_of_results(py, leaves.map(|at| Ok(new_uint(py, at as u64)?.into_any())))
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
        let kind = self.told(py, self.catalog.kind(leaf))?;
        Ok((leaf, kind, place.start, place.end, place.region))
    }

    /// Reads a value: a leaf, or a container with all its leaves.
    #[pyo3(signature = (value, *, copy, threads, marks=None, absent=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        copy: Option<bool>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
        marks: Option<&Marks>,
        absent: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check(value)?;
        let selection = Selection {
            marks: marks.map(|marks| marks.of(&self.catalog)).transpose()?,
            absent,
            signals: &Signals::new(),
        };
        let mut parts = self.parts(py, value, copy, threads)?;
        let read = self.value(value, selection, &mut parts);
        let read = read.and_then(|read| parts.finish().map(|()| read));
        if self.catalog.leaf(value).is_none() {
            self.content.get().release(); // of the whole file, which is not worth it for a leaf
        }
        read
    }

    /// The path to a value from one around it.
    fn path_of(&self, value: usize, start: usize) -> PyResult<String> {
        self.check(value)?;
        self.check(start)?;
        Ok(grow::display(&self.catalog.path_below(start, value)?)?)
    }

    /// Marks the leaves that a selector means below a value.
    fn select(&self, py: Python<'_>, value: usize, selector: &Selector) -> PyResult<Marks> {
        self.check(value)?;
        let watcher = Watcher::signals();
        let marks = py.detach(|| self.catalog.select(value, selector.get(), &watcher));
        let marks = marks.map_err(|error| watcher.explain(error, PyErr::from))?;
        Ok(Marks::new(marks))
    }

    /// Marks the leaves and empty containers below a value for whose paths a function says so.
    fn select_by(&self, value: usize, is_meant: &Bound<'_, PyAny>) -> PyResult<Marks> {
        self.check(value)?;
        let mut values = HashSet::new();
        for found in self.catalog.ends_below(value) {
            let (path, at) = found?;
            let path = new_string(is_meant.py(), grow::display(&path)?.as_bytes())?;
            if is_meant.call1((path,))?.is_truthy()? {
                values.try_reserve(1).map_err(Error::from)?;
                values.insert(at);
            }
        }
        self.mark(values)
    }

    /// Marks values.
    fn mark(&self, values: HashSet<usize>) -> PyResult<Marks> {
        let is_meant = |value| Ok(values.contains(&value));
        Ok(Marks::new(catalog::Marks::new(&self.catalog, is_meant)?))
    }

    /// Reads a range of the bytes of an array into a fresh array of bytes.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        start: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = self.array(py, value)?;
        let bounds = stop.checked_sub(start).map(|count| Bounds {
            start,
            count,
            step: 1,
        });
        let runs = bounds.and_then(|bounds| Runs::compact(&[array.nbytes()], 1, &[bounds]));
        let runs = runs.ok_or_else(|| PyIndexError::new_err("the array has fewer bytes"))?;
        self.read_fresh(py, value, &array, &runs)
    }

    /// Reads a box of an array into a fresh array of bytes.
    #[pyo3(signature = (value, bounds))]
    fn read_box<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        bounds: BoxBounds,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = self.array(py, value)?;
        let runs = array.runs(bounds, None)?;
        self.read_fresh(py, value, &array, &runs)
    }

    /// Reads a box of an array to memory; see `_core.pyi`.
    #[pyo3(signature = (value, bounds, target, at, strides, *, threads))]
    #[allow(clippy::too_many_arguments)] // as in Python
    fn read_box_to(
        &self,
        py: Python<'_>,
        value: usize,
        bounds: BoxBounds,
        target: &Bound<'_, PyAny>,
        at: usize,
        strides: Vec<usize>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
    ) -> PyResult<()> {
        let array = self.array(py, value)?;
        let runs = array.runs(bounds, Some(&strides))?;
        let threads = read_threads(threads, &runs)?;
        let mut target = Writable::get(target)?;
        let range = at..at.saturating_add(runs.extent());
        if range.end > target.len() {
            return Err(PyIndexError::new_err("the memory is too small for the box"));
        }
        self.read_runs(py, value, &array, &runs, threads, |read| {
            target.fill(py, range, true, read)
        })
    }

    /// Begins to read a box of an array from the disk.
    fn prefetch(&self, py: Python<'_>, value: usize, bounds: BoxBounds) -> PyResult<()> {
        if let Some(mapping) = self.content.get().mapping() {
            let ranges = self.array(py, value)?.ranges(bounds)?;
            py.detach(|| mapping.prefetch(ranges));
        }
        Ok(())
    }

    /// Begins to read boxes of arrays in another thread, and reads nothing around them.
    fn prefetch_only(&self, py: Python<'_>, boxes: Vec<(usize, BoxBounds)>) -> PyResult<()> {
        let Some(mapping) = self.content.get().mapping() else {
            return Ok(());
        };
        let mut ranges = Vec::new();
        for (value, bounds) in boxes {
            let more = self.array(py, value)?.ranges(bounds)?;
            ranges.try_reserve(more.len()).map_err(Error::from)?;
            ranges.extend(more);
        }
        mapping.prefetch_only(ranges);
        Ok(())
    }

    /// The number of the array in other files whose bytes a leaf has; nothing if they are here.
    fn array_elsewhere(&self, py: Python<'_>, value: usize) -> PyResult<Option<usize>> {
        let leaf = self.leaf_of(value)?;
        let place = self.catalog.place(leaf);
        let sparse = self.content.get().holes();
        let Some(sparse) = sparse.filter(|it| !it.is_whole(place.start..place.end)) else {
            return Ok(None);
        };
        let array = self.array(py, value)?;
        // Nothing of the leaf is missing but its bytes.
        let missing = place.end - place.start - sparse.present(place.start..place.end);
        let found = sparse.array_of(array.parts.as_slice().iter().cloned());
        match found.filter(|_| missing == array.nbytes()) {
            Some(found) => Ok(Some(found)),
            None => Err(self.at(py, source::missing(place.start).into(), value)),
        }
    }

    /// The data, and where in them the bytes of an array are.
    fn pieces<'py>(
        &self,
        py: Python<'py>,
        value: usize,
    ) -> PyResult<(Py<Content>, Bound<'py, PyList>)> {
        let array = self.array(py, value)?;
        let pieces = array.parts.as_slice().iter();
        let pieces = pieces.map(|part| Ok(sizes(py, &[part.start, part.end])?.into_any()));
        Ok((self.content.clone_ref(py), list_of_results(py, pieces)?))
    }

    /// Compares the data with their checksums; see `_core.pyi`.
    #[pyo3(signature = (*, threads, progress))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
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
        let word = |word: &str| new_string(py, word.as_bytes());
        let words = [word("ok")?, word("corrupt")?, word("unchecked")?];
        let [ok, corrupt, unchecked] = words.map(Bound::into_any);
        let word = |status| match status {
            Status::Ok => ok.clone(),
            Status::Corrupt => corrupt.clone(),
            Status::Unchecked => unchecked.clone(),
        };
        new_list_of(py, found.into_iter().map(word))
    }

    /// Which leaves have other headers than the index says; the number after them is that of what
    /// lies between the last one and the record.
    fn unlike_index(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let source = self.content.get().source();
        let watcher = Watcher::signals();
        let found = py.detach(|| self.catalog.unlike_index(source, |_| true, &watcher));
        found.map_err(|error| watcher.explain(error, PyErr::from))
    }
}

impl Catalog {
    fn paths(&self, value: usize, with_empty: bool) -> PyResult<Paths> {
        self.check(value)?;
        Ok(Paths {
            catalog: self.catalog.clone(),
            from: value,
            left: value..self.catalog.after(value),
            with_empty,
        })
    }

    fn told<'py>(&self, py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
        // Never held while others may run.
        let told = || self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let place = std::ptr::from_ref(kind).addr();
        if let Some((known, tuple)) = &*told()
            && *known == place
        {
            return Ok(tuple.bind(py).clone());
        }
        let tuple = described(py, kind)?;
        *told() = Some((place, tuple.clone().unbind()));
        Ok(tuple)
    }

    fn check(&self, value: usize) -> PyResult<()> {
        keep_reserve()?;
        if value < self.catalog.values() {
            return Ok(());
        }
        Err(PyIndexError::new_err("there is no such value"))
    }

    /// Where the array is that a leaf is, if the data have there what the catalog has.
    fn array(&self, py: Python<'_>, value: usize) -> PyResult<Arc<ArrayPlace>> {
        // Never held while others may run.
        let chunked = || self.chunked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = chunked().known.get(&value) {
            return Ok(known.clone());
        }
        let place = Arc::new(self.new_array(py, value)?);
        if place.parts.as_slice().len() > 1 {
            chunked().remember(value, &place)?;
        }
        Ok(place)
    }

    fn new_array(&self, py: Python<'_>, value: usize) -> PyResult<ArrayPlace> {
        let leaf = self.leaf_of(value)?;
        let source = self.content.get().source();
        let events = py.detach(|| self.catalog.events_of(source, value))?;
        // Of a PRNG key what counts is its data.
        let array = match (events.as_slice(), self.catalog.kind(leaf)) {
            (&[Event::Array(number)], LeafKind::Array(dtype, shape)) => {
                Some((number, dtype.as_str(), shape))
            }
            (&[Event::PrngKey(_), .., Event::Array(number)], LeafKind::PrngKey(_, shape)) => {
                Some((number, KEY_DTYPE, shape))
            }
            _ => None,
        };
        if let Some((number, dtype, expected)) = array
            && let found = events.array(number)
            && found.dtype == dtype.as_bytes()
            && let Some(known) = Dtype::named(py, found.dtype)?
        {
            let dims = |shape: &[usize]| {
                shape
                    .iter()
                    .map(|dim| *dim as u64)
                    .eq(expected.iter().copied())
            };
            let shape = resolve(found.dims, found.nbytes(), known.itemsize, found.offset);
            if let Some(shape) = shape.ok().filter(|shape| dims(shape)) {
                let parts = grow::collect(found.spans.iter().map(|span| span.range()))?;
                let parts = Pieces::new(parts)?;
                return Ok(ArrayPlace { shape, parts });
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

    /// Reads runs of an array into a fresh array of bytes.
    fn read_fresh<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        array: &ArrayPlace,
        runs: &Runs,
    ) -> PyResult<Bound<'py, PyAny>> {
        let byte = numpy::dtype::<u8>(py);
        let mut fresh = FreshArray::new(&byte, &[runs.nbytes()], true)?;
        let object = fresh.object().clone();
        let memory = fresh.memory();
        let threads = read_threads(None, runs)?;
        self.read_runs(py, value, array, runs, threads, |read| {
            detached(py, memory.len(), true, || read(memory))
        })?;
        Ok(object)
    }

    /// Reads runs of an array to memory that `fill` gives, detached from Python.
    fn read_runs(
        &self,
        py: Python<'_>,
        value: usize,
        array: &ArrayPlace,
        runs: &Runs,
        threads: NonZero<usize>,
        fill: impl FnOnce(Read<'_>) -> Result<()>,
    ) -> PyResult<()> {
        let source = source::Parts {
            source: self.content.get().source(),
            parts: &array.parts,
        };
        let watcher = Watcher::signals();
        let read = |memory: &mut [MaybeUninit<u8>]| {
            runs.read(&source, memory, threads, || watcher.check())
        };
        fill(&read).map_err(|error| self.at(py, watcher.explain(error, PyErr::from), value))
    }

    fn leaf_of(&self, value: usize) -> PyResult<usize> {
        self.check(value)?;
        let leaf = self.catalog.leaf(value);
        leaf.ok_or_else(|| PyTypeError::new_err("the value is no leaf"))
    }

    /// What reads parts of the data, of all that a value has.
    pub fn parts<'a, 'py>(
        &'a self,
        py: Python<'py>,
        value: usize,
        copy: Option<bool>,
        threads: Option<i64>,
    ) -> PyResult<Parts<'a, 'py>> {
        let content = self.content.bind(py);
        Parts::new(
            py,
            content.get().source(),
            self.catalog.totals(value).1,
            Content::owned(content),
            copy.into(),
            threads,
        )
    }

    /// Reads a leaf.
    pub fn read_leaf<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        leaf: usize,
        parts: &mut Parts<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = self.catalog.place(leaf);
        let content = self.content.get();
        if content
            .holes()
            .is_some_and(|it| !it.is_whole(place.start..place.end))
        {
            // Before there is memory for what is not there.
            return Err(self.at(py, source::missing(place.start).into(), value));
        }
        self.catalog.check_leaf(content.source(), value)?;
        let read = parts.read(place.start..place.end);
        read.map_err(|error| self.at(py, error, value))
    }

    /// The leaves and their paths.
    pub fn core(&self) -> &catalog::Catalog {
        &self.catalog
    }

    /// Takes what has been read off this process's account.
    pub fn release(&self) {
        self.content.get().release();
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
        value: usize,
        selection: Selection<'_, 'py>,
        parts: &mut Parts<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (catalog, py) = (&self.catalog, parts.py());
        selection.signals.check(py)?;
        if let Some(marks) = selection.marks
            && marks.count(value..catalog.after(value)) == 0
        {
            let absent = selection.absent.cloned();
            return Ok(absent.unwrap_or_else(|| py.None().into_bound(py)));
        }
        if let Some(leaf) = catalog.leaf(value) {
            return self.read_leaf(py, value, leaf, parts);
        }
        if catalog.is_end(value) {
            catalog.check_place(self.content.get().source(), value)?;
        }
        if catalog.is_list(value) {
            // A list with gaps would be another one.
            let whole = Selection {
                marks: None,
                ..selection
            };
            let list = new_list(py)?;
            for child in catalog.children(value) {
                list.append(self.value(child, whole, parts)?)?;
            }
            return Ok(list.into_any());
        }
        let dict = new_dict(py)?;
        for child in catalog.children(value) {
            let key = new_string(py, catalog.key(child).as_bytes())?;
            dict.set_item(key, self.value(child, selection, parts)?)?;
        }
        Ok(dict.into_any())
    }
}

/// How many threads read runs, where so many are wanted. The environment is asked here, where
/// Python is attached, and what is small needs no answer.
fn read_threads(wanted: Option<i64>, runs: &Runs) -> Result<NonZero<usize>> {
    parallel::threads(wanted, runs.span(), parallel::MIN_COPY_BYTES)
}

/// A text and a number.
fn numbered<'py>(py: Python<'py>, text: &str, number: usize) -> PyResult<Bound<'py, PyAny>> {
    let text = new_string(py, text.as_bytes())?.into_any();
    let number = new_uint(py, number as u64)?.into_any();
    Ok(new_tuple_of(py, [text, number])?.into_any())
}

/// What a leaf is: its kind, and what there is to know of that.
fn described<'py>(py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
    let text = |text: &str| Ok::<_, PyErr>(new_string(py, text.as_bytes())?.into_any());
    let shaped = |name: &str, dtype: &str, shape: &[u64]| {
        let dims = shape.iter().map(|dim| Ok(new_uint(py, *dim)?.into_any()));
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
