//! The class `Catalog`: encoded data, whose leaves are read one by one.
//!
//! | file | contents |
//! |---|---|
//! | `file.rs` | the class, and access to the data |
//! | `paths.rs` | iterator of paths |
//! | `state.rs` | leaves, and states of containers |
//! | `selected.rs` | cursor for the walk over a template |
//! | `boxes.rs` | boxes of arrays |

mod boxes;
mod file;
mod paths;
mod selected;
mod state;

use std::collections::HashSet;
use std::sync::Arc;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use self::boxes::{range_in, read_threads, runs};
use self::paths::Paths;
use super::content::Content;
use super::grid::{BoxBounds, ranges};
use super::memory::{
    Item, Writable, copied, keep_reserve, list_of, list_of_results, new_string, new_tuple, row,
};
use super::objects::CopyMode;
use super::options::{self, Int};
use super::select::{Marks, Selector};
use super::watch::{Signals, Watcher};
use crate::catalog::{self, BLOCK_BYTES, Status};
use crate::foreign::sniff::{Sample, explain};
use crate::format::dtypes::itemsize;
use crate::format::index::LeafKind;
use crate::{Error, Result, base::grow, base::parallel};

pub use self::boxes::copy_array;
pub use self::file::Catalog;
pub use self::selected::restore_selected;

#[pymethods]
impl Catalog {
    #[staticmethod]
    #[pyo3(signature = (content, *, salvage))]
    fn open(content: Bound<'_, Content>, salvage: bool) -> PyResult<Self> {
        keep_reserve()?;
        let watcher = Watcher::signals();
        let source = content.get().source();
        let opened = content.py().detach(|| {
            let catalog = catalog::Catalog::open(source, salvage, &watcher)?;
            // Some bytes with which other formats begin are maps and lists.
            if salvage && catalog.damage.is_some() {
                match Sample::of(source).map(|sample| sample.is_foreign()) {
                    Ok(true) => return catalog.emptied(),
                    Err(error) if error.is_no_damage() => return Err(error),
                    Ok(false) | Err(_) => {}
                }
            }
            Ok(catalog)
        });
        let mut catalog = opened
            .map_err(|error| watcher.explain(error, |error| PyErr::from(explain(error, source))))?;
        catalog.damage = catalog.damage.map(|error| explain(error, source));
        Ok(Self::new(content.unbind(), Arc::new(catalog)))
    }

    fn salvaging(&self, py: Python<'_>) -> PyResult<Self> {
        Self::open(self.content.bind(py).clone(), true)
    }

    fn without_content(&self, py: Python<'_>) -> PyResult<Self> {
        let nothing = Content::lent(PyBytes::new(py, b"").as_any())?;
        Ok(Self::new(Py::new(py, nothing)?, self.catalog.clone()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.content)
    }

    fn __len__(&self) -> usize {
        self.catalog.len()
    }

    fn totals<'py>(&self, py: Python<'py>, value: usize) -> PyResult<Bound<'py, PyTuple>> {
        self.check(value)?;
        let (leaves, nbytes) = self.catalog.totals(value);
        row!(py, leaves, nbytes)
    }

    fn kinds<'py>(&self, py: Python<'py>, value: usize) -> PyResult<Bound<'py, PyList>> {
        self.check(value)?;
        let kinds = self.catalog.kinds_in(value)?;
        let row =
            |(kind, count, bytes): (_, usize, usize)| row!(py, described(py, kind)?, count, bytes);
        list_of_results(py, kinds.into_iter().map(row))
    }

    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let record = self.catalog.record();
        record.map(|record| copied(py, record)).transpose()
    }

    #[getter]
    fn damage<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let damage = self.catalog.damage.as_ref().map(grow::display);
        let text = |text: Result<String>| new_string(py, &text?);
        damage.map(text).transpose()
    }

    #[getter]
    fn is_newer(&self) -> bool {
        self.catalog.damage.as_ref().is_some_and(Error::is_newer)
    }

    #[getter]
    fn is_summed(&self) -> bool {
        self.catalog.is_summed() || self.content.get().checks_itself()
    }

    /// The number of leaves that can be verified, which are the first ones.
    #[getter]
    fn summed(&self) -> usize {
        if self.content.get().checks_itself() {
            self.catalog.len()
        } else {
            self.catalog.summed()
        }
    }

    fn find(&self, keys: Vec<String>, value: usize) -> PyResult<Option<usize>> {
        self.check(value)?;
        let watcher = Watcher::at_each_call();
        let keys = keys.iter().map(String::as_str);
        watcher.raise(self.catalog.find(value, keys, &watcher))
    }

    fn children<'py>(&self, py: Python<'py>, value: usize) -> PyResult<Option<Bound<'py, PyList>>> {
        self.check(value)?;
        if self.catalog.leaf(value).is_some() {
            return Ok(None);
        }
        let signals = Signals::new(py);
        let pairs = self.catalog.children(value).map(|child| {
            signals.check(py)?;
            row!(py, self.catalog.key(child), child)
        });
        list_of_results(py, pairs).map(Some)
    }

    fn is_list(&self, value: usize) -> PyResult<bool> {
        self.check(value)?;
        Ok(self.catalog.is_list(value))
    }

    fn leaves(&self, value: usize) -> PyResult<Paths> {
        self.paths(value, false)
    }

    fn ends(&self, value: usize) -> PyResult<Paths> {
        self.paths(value, true)
    }

    #[getter]
    fn stream_damage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.content.get().source().damage().item(py)
    }

    fn check_record(&self, py: Python<'_>) -> PyResult<()> {
        let source = self.content.get().source();
        Watcher::signals().detached(py, |watch| self.catalog.check_record(source, watch))
    }

    fn static_differences<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        other: &Self,
        other_value: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        self.check(value)?;
        other.check(other_value)?;
        let compare = |watch: &Watcher| {
            (self.catalog).static_differences(value, &other.catalog, other_value, watch)
        };
        let (differences, places) = Watcher::signals().detached(py, compare)?;
        let rows = places.iter().flat_map(|(value, at)| {
            differences[*at]
                .iter()
                .map(|difference| (*value, difference))
        });
        list_of_results(
            py,
            rows.map(|(value, difference)| {
                let field = difference.field.as_deref().unwrap_or_default();
                row!(py, value, field, difference.one, difference.other)
            }),
        )
    }

    #[getter]
    fn dtypes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of(py, self.catalog.dtypes())
    }

    fn inner_dtypes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let source = self.content.get().source();
        let find = |watch: &Watcher| self.catalog.inner_dtypes(source, watch);
        list_of(py, Watcher::signals().detached(py, find)?)
    }

    fn other_dtypes<'py>(
        &self,
        py: Python<'py>,
        inner: Vec<String>,
    ) -> PyResult<Bound<'py, PyList>> {
        let names = self
            .catalog
            .dtypes()
            .chain(inner.iter().map(String::as_str));
        list_of(py, names.filter(|name| itemsize(name).is_none()))
    }

    #[pyo3(signature = (value, least=0))]
    fn leaf_values<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        least: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        self.check(value)?;
        let inside = value..self.catalog.after(value);
        let leaves = inside.filter(|at| {
            let place = self.catalog.leaf(*at).map(|leaf| self.catalog.place(leaf));
            place.is_some_and(|place| place.end - place.start >= least)
        });
        list_of(py, leaves)
    }

    #[getter]
    fn values(&self) -> usize {
        self.catalog.values()
    }

    /// Index, kind, start and end of a leaf, and the start of its checksum's range.
    fn leaf<'py>(&self, py: Python<'py>, value: usize) -> PyResult<Bound<'py, PyTuple>> {
        let leaf = self.leaf_of(value)?;
        let place = self.catalog.place(leaf);
        let kind = described(py, self.catalog.kind(leaf))?;
        row!(py, leaf, kind, place.start, place.end, place.region)
    }

    #[pyo3(signature = (
        value, *, copy, threads, marks=None, absent=None, given=None, r#abstract=false,
    ))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        copy: Option<bool>,
        threads: Option<Int>,
        marks: Option<&Marks>,
        absent: Option<&Bound<'py, PyAny>>,
        given: Option<Bound<'py, PyDict>>,
        r#abstract: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check(value)?;
        let marks = marks.map(|marks| marks.of(&self.catalog)).transpose()?;
        let copy = if r#abstract {
            CopyMode::Abstract
        } else {
            copy.into()
        };
        self.content.get().check_unchanged()?;
        let mut objects = self.objects(py, value, copy, threads)?;
        objects.given = given;
        let read = self.value(value, marks, absent, &mut objects);
        let read = read.and_then(|read| objects.copy_all().map(|()| read));
        if self.catalog.leaf(value).is_none() {
            self.content.get().release(); // only for the whole file: too slow for each leaf
        }
        read
    }

    fn path_of<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        start: usize,
    ) -> PyResult<Bound<'py, PyString>> {
        self.check(value)?;
        self.check(start)?;
        let text = grow::display(&self.catalog.path_below(start, value)?)?;
        new_string(py, &text)
    }

    fn select(&self, py: Python<'_>, value: usize, selector: &Selector) -> PyResult<Marks> {
        self.check(value)?;
        let select = |watch: &Watcher| self.catalog.select(value, &selector.0, watch);
        Watcher::signals().detached(py, select).map(Marks)
    }

    fn mark(&self, values: HashSet<usize>) -> PyResult<Marks> {
        let is_selected = |value| Ok(values.contains(&value));
        Ok(Marks(catalog::Marks::new(&self.catalog, is_selected)?))
    }

    fn read_box<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        bounds: BoxBounds,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = self.array(py, value)?;
        let runs = runs(&array, bounds, None)?;
        self.read_fresh(py, value, &array, &runs)
    }

    #[pyo3(signature = (value, bounds, target, at, strides, *, threads))]
    fn read_box_to(
        &self,
        py: Python<'_>,
        value: usize,
        bounds: BoxBounds,
        target: &Bound<'_, PyAny>,
        at: usize,
        strides: Vec<usize>,
        threads: Option<Int>,
    ) -> PyResult<()> {
        let array = self.array(py, value)?;
        let runs = runs(&array, bounds, Some(&strides))?;
        let threads = read_threads(threads, &runs)?;
        let mut target = Writable::get(target)?;
        let range = range_in(&target, at, &runs)?;
        self.content.get().check_apart(&target, array.parts())?;
        self.read_runs(py, value, &array, &runs, threads, |read| {
            target.fill(py, range, true, read)
        })
    }

    fn prefetch_only(&self, py: Python<'_>, boxes: Vec<(usize, BoxBounds)>) -> PyResult<()> {
        let Some(mapping) = self.content.get().mapping() else {
            return Ok(());
        };
        let mut ranges = Vec::new();
        for (value, bounds) in boxes {
            let more = self.ranges(py, value, bounds)?;
            ranges.try_reserve(more.len()).map_err(Error::from)?;
            ranges.extend(more);
        }
        mapping.prefetch_only(ranges);
        Ok(())
    }

    fn pieces_to_copy<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        file: Option<String>,
    ) -> PyResult<(Py<Content>, Bound<'py, PyList>)> {
        let array = self.array(py, value)?;
        let content = match self.compared(py, value, array.parts())? {
            Some(compared) => Py::new(py, Content::copied(compared, file))?,
            None => self.content.clone_ref(py),
        };
        Ok((content, ranges(py, array.parts())?))
    }

    fn compare(&self, py: Python<'_>, value: usize) -> PyResult<()> {
        self.leaf_of(value)?;
        self.compared(py, value, &[]).map(drop)
    }

    #[pyo3(signature = (*, threads, progress))]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        threads: Option<Int>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let content = self.content.get();
        let source = content.source();
        let threads = options::threads(threads, source.len(), parallel::MIN_COPY_BYTES)?;
        let watcher = Watcher::new(progress, source.len());
        let checks = content.checks_itself();
        // In a remote store, large reads take hardly longer than small ones.
        let block = if content.is_elsewhere() {
            8 << 20
        } else {
            BLOCK_BYTES
        };
        let statuses = watcher.detached(py, |watch| {
            let statuses = self.catalog.verify(source, checks, block, threads, watch);
            content.unless_changed(statuses)
        })?;
        let word = |word: &str| new_string(py, word);
        let words = [word("ok")?, word("corrupt")?, word("unchecked")?];
        let [ok, corrupt, unchecked] = &words;
        let words = statuses.into_iter().map(|status| match status {
            Status::Ok => ok,
            Status::Corrupt => corrupt,
            Status::Unchecked => unchecked,
        });
        list_of(py, words)
    }

    fn unlike_index(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let source = self.content.get().source();
        Watcher::signals().detached(py, |watch| {
            self.catalog.unlike_index(source, |_| true, watch)
        })
    }
}

/// Describes a kind of leaves: its name, with the dtype and the shape of arrays.
fn described<'py>(py: Python<'py>, kind: &LeafKind) -> PyResult<Bound<'py, PyTuple>> {
    let (dtype, shape) = match kind {
        LeafKind::Array(dtype, shape) | LeafKind::PrngKey(dtype, shape) => (&**dtype, &shape[..]),
        LeafKind::Scalar(dtype) => (&**dtype, &[][..]),
        plain => return row!(py, plain.name()),
    };
    let shape = new_tuple(py, shape)?;
    row!(py, kind.name(), dtype, shape)
}
