//! Reads boxes of arrays into Python's memory.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::super::dtypes::Dtype;
use super::super::grid::{BoxBounds, bounds_of};
use super::super::memory::{Borrowed, FreshArray, Writable, detached};
use super::super::options::{self, Int};
use super::super::watch::Watcher;
use super::file::Catalog;
use crate::Result;
use crate::base::raw::{AsRaw as _, Uninit};
use crate::base::watch::Watch as _;
use crate::catalog::ArrayPlace;
use crate::elements::{Bounds, Runs};

type Read<'a> = &'a (dyn Fn(&mut Uninit) -> Result<()> + Sync);

pub(super) fn runs(
    array: &ArrayPlace,
    bounds: BoxBounds,
    strides: Option<&[usize]>,
) -> PyResult<Runs> {
    let runs = array.runs(&bounds_of(bounds)?, strides);
    runs.ok_or_else(|| PyIndexError::new_err("the array has no such box"))
}

/// Copies the bytes of a C-order array to memory with these strides.
#[pyfunction]
#[pyo3(signature = (source, shape, itemsize, target, at, strides, *, threads))]
pub fn copy_array(
    source: &Bound<'_, PyAny>,
    shape: Vec<usize>,
    itemsize: usize,
    target: &Bound<'_, PyAny>,
    at: usize,
    strides: Vec<usize>,
    threads: Option<Int>,
) -> PyResult<()> {
    let py = source.py();
    let (source, mut target) = (Borrowed::buffer(source)?, Writable::get(target)?);
    let nbytes = shape
        .iter()
        .try_fold(itemsize, |all, len| all.checked_mul(*len));
    if nbytes != Some(source.as_raw().len()) || source.as_raw().overlaps(target.memory()) {
        let reason = "the memory of the array has another size, or overlaps the target";
        return Err(PyValueError::new_err(reason));
    }
    let all = |count| Bounds {
        start: 0,
        count,
        step: 1,
    };
    let bounds: Vec<Bounds> = shape.iter().copied().map(all).collect();
    let runs = Runs::new(&shape, itemsize, &bounds, &strides);
    let runs = runs.ok_or_else(|| PyIndexError::new_err("elements would overlap in memory"))?;
    let threads = read_threads(threads, &runs)?;
    let range = range_in(&target, at, &runs)?;
    let watcher = Watcher::signals();
    let memory = source.as_raw();
    let done = target.fill(py, range, true, |target| {
        runs.read(&memory, target, threads, || watcher.check())
    });
    watcher.raise(done)
}

pub(super) fn range_in(target: &Writable, at: usize, runs: &Runs) -> PyResult<Range<usize>> {
    let range = at..at.saturating_add(runs.extent());
    if range.end > target.len() {
        return Err(PyIndexError::new_err("the memory is too small for the box"));
    }
    Ok(range)
}

impl Catalog {
    pub fn array(&self, py: Python<'_>, value: usize) -> PyResult<Arc<ArrayPlace>> {
        if let Some(known) = self.arrays.known(value) {
            return Ok(known);
        }
        let leaf = self.leaf_of(value)?;
        let dtype = match self.catalog.dtype_and_shape(leaf) {
            Some((name, _)) => Dtype::named(py, name.as_bytes())?,
            None => None,
        };
        let itemsize = dtype.map(|dtype| dtype.itemsize);
        let source = self.content.get().source();
        let place = py.detach(|| self.arrays.find(&self.catalog, source, value, itemsize));
        Ok(place.map_err(|error| self.content.get().cause(error))?)
    }

    pub(super) fn ranges(
        &self,
        py: Python<'_>,
        value: usize,
        bounds: BoxBounds,
    ) -> PyResult<Vec<Range<usize>>> {
        let array = self.array(py, value)?;
        Ok(array.ranges(&runs(&array, bounds, None)?)?)
    }

    pub(super) fn read_fresh<'py>(
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

    pub(super) fn read_runs(
        &self,
        py: Python<'_>,
        value: usize,
        array: &ArrayPlace,
        runs: &Runs,
        threads: NonZero<usize>,
        fill: impl FnOnce(Read<'_>) -> Result<()>,
    ) -> PyResult<()> {
        let source = self.content.get().source();
        let watcher = Watcher::signals();
        let read = |memory: &mut Uninit| {
            array.read_runs(source, runs, memory, threads, || watcher.check())
        };
        let done = self.content.get().unless_changed(fill(&read));
        done.map_err(|error| self.at(py, watcher.explain(error, PyErr::from), value))
    }
}

/// For large runs this reads the environment, so Python must be attached.
pub(super) fn read_threads(wanted: Option<Int>, runs: &Runs) -> Result<NonZero<usize>> {
    options::threads(wanted, runs.span(), runs.min_parallel_bytes())
}
