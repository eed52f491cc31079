//! Reads boxes of sharded arrays into Python's memory.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use super::catalog::Catalog;
use super::grid::{BoxBounds, bounds_of, missing, name_in};
use super::memory::{Writable, keep_reserve, list_of, row};
use super::options::{self, Int};
use super::watch::Watcher;
use crate::elements::Bounds;
use crate::sharding::boxes::{self, Failed, OpenFile};
use crate::{Result, base::grow, base::parallel};

#[pyclass(frozen, module = "treepack._core")]
pub struct Shards(pub(super) Arc<boxes::ShardedArray>);

#[pymethods]
impl Shards {
    fn __len__(&self) -> usize {
        self.0.grid.len()
    }

    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of(py, self.0.files.iter())
    }

    fn name<'py>(&self, py: Python<'py>, shard: usize) -> PyResult<Bound<'py, PyString>> {
        name_in(py, &self.0.grid, shard)
    }

    fn find(&self, shard: usize, catalog: &Catalog) -> PyResult<Option<usize>> {
        keep_reserve()?;
        if shard >= self.0.grid.len() {
            return Err(missing());
        }
        let watcher = Watcher::at_each_call();
        watcher.raise(self.0.find(shard, &catalog.catalog, &watcher))
    }

    #[pyo3(name = "box")]
    fn box_of(&self, bounds: BoxBounds) -> PyResult<ShardBox> {
        keep_reserve()?;
        let shard_box = boxes::ShardBox::new(self.0.clone(), &bounds_of(bounds)?);
        let shard_box =
            shard_box.ok_or_else(|| PyIndexError::new_err("the array has no such box"))?;
        Ok(ShardBox(shard_box))
    }
}

#[pyclass(frozen, module = "treepack._core")]
pub struct ShardBox(boxes::ShardBox);

#[pymethods]
impl ShardBox {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        keep_reserve()?;
        let files = py.detach(|| self.0.files())?;
        list_of(
            py,
            files.iter().map(|(file, bytes)| [*file as usize, *bytes]),
        )
    }

    fn missing(&self, catalogs: &Bound<'_, PyList>) -> PyResult<Option<usize>> {
        let files = self.open(catalogs)?;
        let watcher = Watcher::signals();
        let missing = catalogs
            .py()
            .detach(|| self.0.missing(&files.open()?, &watcher));
        missing.map_err(|failed| watcher.explain(files.cause(failed).error, PyErr::from))
    }

    /// File number, leaf, and indices in the leaf, for each part of the box.
    fn places<'py>(&self, catalogs: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let py = catalogs.py();
        let files = self.open(catalogs)?;
        let watcher = Watcher::signals();
        let places = PyList::empty(py);
        let open = files.open()?;
        let done = self.0.each(&open, &watcher, |file, value, part| {
            let local = part.local.iter();
            let local = local.map(|&Bounds { start, count, step }| [start, count, step]);
            let place = || -> PyResult<Bound<'py, PyTuple>> {
                let file = u64::from(open[file].number);
                let value = value.ok_or_else(|| PyValueError::new_err("a shard is not there"))?;
                row!(py, file, value, list_of(py, local)?)
            };
            let added = place().and_then(|place| places.append(place));
            added.map_err(|error| crate::Error::Payload(Box::new(error)))
        });
        done.map_err(|failed| watcher.explain(files.cause(failed).error, PyErr::from))?;
        Ok(places)
    }

    fn prefetch(&self, catalogs: &Bound<'_, PyList>, explain: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = catalogs.py();
        let files = self.open(catalogs)?;
        let mut catalogs = files.0.iter();
        if catalogs.all(|(_, catalog)| catalog.get().content.get().mapping().is_none()) {
            return Ok(());
        }
        let watcher = Watcher::signals();
        let done = py.detach(|| {
            let open = files.open()?;
            self.0.each(&open, &watcher, |file, value, part| {
                let Some(mapping) = files.0[file].1.get().content.get().mapping() else {
                    return Ok(());
                };
                let array = self.0.place(&open[file], value)?;
                let runs = array.runs(&part.local, None);
                let ranges = runs.map(|runs| array.ranges(&runs)).transpose()?;
                mapping.prefetch(ranges.unwrap_or_default());
                Ok(())
            })
        });
        done.map_err(|failed| files.explain(py, failed, &watcher, explain))
    }

    #[pyo3(signature = (catalogs, target, at, strides, *, threads, explain, check=None))]
    fn read_to(
        &self,
        catalogs: &Bound<'_, PyList>,
        target: &Bound<'_, PyAny>,
        at: usize,
        strides: Vec<usize>,
        threads: Option<Int>,
        explain: &Bound<'_, PyAny>,
        check: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let py = catalogs.py();
        let files = self.open(catalogs)?;
        let mut target = Writable::get(target)?;
        for (_, catalog) in &files.0 {
            catalog.get().content.get().check_apart(&target, &[])?;
        }
        let range = at.min(target.len())..target.len();
        // Runs too short for several threads get one anyway.
        let threads = options::threads(threads, range.len(), parallel::MIN_COPY_BYTES)?;
        let watcher = Watcher::signals().checking(check);
        let done = target.fill(py, range, true, |memory| {
            self.0
                .read(&files.open()?, memory, &strides, threads, &watcher)
        });
        let done = done.and_then(|()| files.check_unchanged());
        done.map_err(|failed| files.explain(py, failed, &watcher, explain))
    }
}

impl ShardBox {
    fn open(&self, catalogs: &Bound<'_, PyList>) -> PyResult<Files> {
        keep_reserve()?;
        let py = catalogs.py();
        let needed = py.detach(|| self.0.files())?;
        let open = needed.into_iter().map(|(number, _)| {
            let catalog = catalogs.get_item(number as usize)?;
            let catalog = catalog.cast_into::<Catalog>();
            let catalog = catalog.map_err(|_| PyValueError::new_err("a file is closed"))?;
            Ok((number, catalog.unbind()))
        });
        Ok(Files(open.collect::<PyResult<_>>()?))
    }
}

type Read<T> = std::result::Result<T, Failed>;

struct Files(Vec<(u32, Py<Catalog>)>);

impl Files {
    fn open(&self) -> Result<Vec<OpenFile<'_>>> {
        let files = self.0.iter();
        grow::collect(files.map(|(number, catalog)| catalog.get().open_file(*number)))
    }

    fn check_unchanged(&self) -> Read<()> {
        for (file, (_, catalog)) in self.0.iter().enumerate() {
            let unchanged = catalog.get().content.get().check_unchanged();
            unchanged.map_err(|error| Failed {
                file: Some(file),
                value: None,
                error,
            })?;
        }
        Ok(())
    }

    /// Returns the error that a file has changed since it was opened, in place of its effect.
    fn cause(&self, failed: Failed) -> Failed {
        match self.check_unchanged() {
            Err(changed) if !failed.error.is_no_damage() => changed,
            _ => failed,
        }
    }

    fn explain(
        &self,
        py: Python<'_>,
        failed: Failed,
        watcher: &Watcher,
        explain: &Bound<'_, PyAny>,
    ) -> PyErr {
        let failed = self.cause(failed);
        let error = watcher.explain(failed.error, PyErr::from);
        let Some((number, catalog)) = failed.file.map(|file| &self.0[file]) else {
            return error;
        };
        let error = match failed.value {
            Some(value) => catalog.get().at(py, error, value),
            None => error,
        };
        match explain.call1((*number, error.value(py))) {
            Ok(explained) => PyErr::from_value(explained),
            Err(other) => other,
        }
    }
}
