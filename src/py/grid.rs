//! Arrays divided into shards.

use std::ops::Range;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::memory::{list_of, new_string};
use crate::elements::{self, Bounds, Runs};
use crate::{Result, base::grow};

/// Start, count and step for each dimension.
pub type BoxBounds = Vec<(usize, usize, usize)>;

pub fn bounds_of(bounds: BoxBounds) -> Result<Vec<Bounds>> {
    let bounds = bounds.into_iter();
    grow::collect(bounds.map(|(start, count, step)| Bounds { start, count, step }))
}

#[pyclass(frozen, module = "treepack._core")]
pub struct ShardGrid(elements::ShardGrid);

#[pymethods]
impl ShardGrid {
    #[new]
    fn new(shape: Vec<usize>, counts: Vec<usize>) -> PyResult<Self> {
        let grid = elements::ShardGrid::new(&shape, &counts);
        let error = || PyValueError::new_err("shards of the array would be empty");
        grid.map(Self).ok_or_else(error)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn shard_at(&self, start: Vec<usize>) -> PyResult<usize> {
        let shard = self.0.shard_at(&start);
        shard.ok_or_else(|| PyValueError::new_err("no shard begins there"))
    }

    fn bounds<'py>(&self, py: Python<'py>, shard: usize) -> PyResult<Bound<'py, PyList>> {
        let bounds = self.0.bounds(shard).ok_or_else(missing)?;
        ranges(py, &bounds)
    }

    fn name<'py>(&self, py: Python<'py>, shard: usize) -> PyResult<Bound<'py, PyString>> {
        name_in(py, &self.0, shard)
    }
}

pub fn name_in<'py>(
    py: Python<'py>,
    grid: &elements::ShardGrid,
    shard: usize,
) -> PyResult<Bound<'py, PyString>> {
    let name = grid.name(shard)?.ok_or_else(missing)?;
    new_string(py, &name)
}

#[pyfunction]
pub fn ranges_of_box(
    py: Python<'_>,
    shape: Vec<usize>,
    itemsize: usize,
    bounds: BoxBounds,
    near: usize,
) -> PyResult<Bound<'_, PyList>> {
    let runs = Runs::compact(&shape, itemsize, &bounds_of(bounds)?);
    let runs = runs.ok_or_else(|| PyIndexError::new_err("the array has no such box"))?;
    ranges(py, &runs.ranges(near)?)
}

pub(super) fn ranges<'py>(
    py: Python<'py>,
    ranges: &[Range<usize>],
) -> PyResult<Bound<'py, PyList>> {
    list_of(py, ranges.iter().map(|range| [range.start, range.end]))
}

pub(super) fn missing() -> PyErr {
    PyIndexError::new_err("shard index out of range")
}
