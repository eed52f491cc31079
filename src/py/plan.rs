//! The plan of a sharded checkpoint: which process writes each shard.

use pyo3::prelude::*;
use pyo3::types::PyList;

use super::memory::{keep_reserve, list_of};
use crate::base::grow;
use crate::sharding::plan::{self, Holders, Split};

#[pyclass(frozen, module = "treepack._core")]
pub struct ShardPlan(pub(super) plan::ShardPlan);

/// The number of shards per dimension, the index of the holders, bytes per shard, whether it is a
/// host array.
type Array = (Vec<u32>, usize, u64, bool);

#[pymethods]
impl ShardPlan {
    #[new]
    fn new(py: Python<'_>, arrays: Vec<Array>, holders: Vec<Vec<Vec<u32>>>) -> PyResult<Self> {
        keep_reserve()?;
        let make = || {
            let holders = grow::try_collect(holders.into_iter().map(Holders::new))?;
            let splits = arrays
                .into_iter()
                .map(|(counts, holders, nbytes, host)| Split {
                    counts,
                    holders,
                    nbytes,
                    host,
                });
            plan::ShardPlan::new(grow::collect(splits)?, &holders)
        };
        Ok(Self(py.detach(make)?))
    }

    #[getter]
    fn processes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        list_of(py, &self.0.processes)
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
        let plan = &self.0;
        list_of(
            py,
            py.detach(|| grow::collect(plan.shards_of(array, process)))?,
        )
    }
}
