//! The plan of a sharded checkpoint: which process writes each shard.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::memory::{keep_reserve, list_of_results, new_uint};
use crate::plan::{self, Split};
use crate::{Result, grow};

#[pyclass(frozen, module = "treepack._core")]
pub struct ShardHolders(Arc<plan::Holders>);

#[pymethods]
impl ShardHolders {
    #[new]
    fn new(py: Python<'_>, shards: Vec<Vec<u32>>) -> PyResult<Self> {
        keep_reserve()?;
        let holders = py.detach(|| plan::Holders::new(shards))?;
        let holders = holders.ok_or_else(|| PyValueError::new_err("a shard has no holder"))?;
        Ok(Self(Arc::new(holders)))
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

#[pyclass(frozen, module = "treepack._core")]
pub struct ShardPlan(pub(super) Arc<plan::ShardPlan>);

/// The number of shards per dimension, their holders, bytes per shard, whether it is a host array.
type Array<'py> = (Vec<u32>, Bound<'py, ShardHolders>, u64, bool);

#[pymethods]
impl ShardPlan {
    #[new]
    fn new(py: Python<'_>, arrays: Vec<Array<'_>>) -> PyResult<Self> {
        keep_reserve()?;
        let splits = arrays
            .into_iter()
            .map(|(counts, holders, nbytes, host)| Split {
                counts,
                holders: holders.get().0.clone(),
                nbytes,
                host,
            });
        let splits = grow::collect(splits)?;
        let are_whole = splits.iter().all(|split| {
            let counts = split.counts.iter().map(|count| *count as usize);
            counts.product::<usize>() == split.holders.count()
        });
        if !are_whole {
            return Err(PyValueError::new_err(
                "an array does not have one holder per shard",
            ));
        }
        Ok(Self(Arc::new(py.detach(|| plan::ShardPlan::new(splits))?)))
    }

    #[getter]
    fn processes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        numbers(
            py,
            self.0.processes.iter().map(|process| u64::from(*process)),
        )
    }

    #[getter]
    fn checksum(&self, py: Python<'_>) -> u32 {
        py.detach(|| self.0.checksum())
    }

    fn shards_of<'py>(
        &self,
        py: Python<'py>,
        array: usize,
        process: u32,
    ) -> PyResult<Bound<'py, PyList>> {
        if array >= self.0.splits.len() {
            return Err(PyIndexError::new_err("array index out of range"));
        }
        let plan = &self.0;
        let found: Result<Vec<_>> =
            py.detach(|| grow::collect(plan.shards_of(array, process).map(|shard| shard as u64)));
        numbers(py, found?.into_iter())
    }
}

fn numbers(
    py: Python<'_>,
    numbers: impl ExactSizeIterator<Item = u64>,
) -> PyResult<Bound<'_, PyList>> {
    list_of_results(py, numbers.map(|number| new_uint(py, number)))
}
