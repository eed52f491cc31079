//! Manifests of sharded checkpoints.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::boxes::Shards;
use super::catalog::Catalog;
use super::content::Content;
use super::gzip;
use super::layout::Layout;
use super::memory::{copied, keep_reserve, list_of_results, new_string, new_uint, row};
use super::options::Int;
use super::plan::ShardPlan;
use crate::array::ShardGrid;
use crate::boxes::ShardedArray;
use crate::grow;
use crate::manifest::{self, Grid, ShardFile, Sparse};
use crate::source::Source as _;

#[pyclass(frozen, module = "treepack._core")]
pub struct Manifest {
    manifest: manifest::Manifest,
    encoding: Arc<Sparse>,
}

impl Manifest {
    pub fn new(manifest: manifest::Manifest, encoding: Sparse) -> Self {
        let encoding = Arc::new(encoding);
        Self { manifest, encoding }
    }
}

/// The name of a file, its length, and the CRC-32 of its record.
type FileRow = (String, u64, u32);

#[pymethods]
impl Manifest {
    /// Makes the manifest of a layout with gaps, before its files are written.
    #[staticmethod]
    fn planned(layout: &Bound<'_, Layout>, plan: &Bound<'_, ShardPlan>) -> PyResult<Self> {
        let py = layout.py();
        keep_reserve()?;
        let plan = &plan.get().0;
        let grids = plan.arrays.iter().map(|grid| {
            Ok(Grid {
                counts: grow::to_vec(&grid.counts)?,
                files: grid.files.clone(),
                host: grid.host,
            })
        });
        let grids = grow::try_collect(grids)?;
        let files = plan.processes.iter().map(|_| ShardFile::default());
        let manifest = layout.get().manifest(py, grow::collect(files)?, grids)?;
        let encoding = manifest.encoding(None)?;
        Ok(Self::new(manifest, encoding))
    }

    #[staticmethod]
    #[pyo3(signature = (data, *, max_size=None))]
    fn decode(data: &[u8], max_size: Option<Int>) -> PyResult<Self> {
        keep_reserve()?;
        let manifest = manifest::Manifest::decode(data)?;
        let encoding = manifest.encoding(gzip::limit(max_size))?;
        Ok(Self::new(manifest, encoding))
    }

    #[pyo3(signature = (files, writer=None))]
    fn with_files<'py>(
        &self,
        py: Python<'py>,
        files: Vec<FileRow>,
        writer: Option<String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if files.len() < self.manifest.files.len() {
            return Err(PyIndexError::new_err(format!(
                "expected at least {} files, got {}",
                self.manifest.files.len(),
                files.len()
            )));
        }
        keep_reserve()?;
        let writer = writer.unwrap_or_default();
        copied(
            py,
            &self.manifest.encode_with(&shard_files(files)?, &writer)?,
        )
    }

    #[getter]
    fn writer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_string(py, self.manifest.writer.as_bytes())
    }

    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let files = self
            .manifest
            .files
            .iter()
            .map(|file| row!(py, file.name, file.nbytes, u64::from(file.record)));
        list_of_results(py, files)
    }

    #[getter]
    fn inflated(&self) -> usize {
        self.encoding.present(0..self.encoding.len())
    }

    /// Returns the number of shards per dimension, and whether it is a host array.
    fn grid<'py>(&self, py: Python<'py>, array: usize) -> PyResult<(Bound<'py, PyList>, bool)> {
        let grid = self.array(array)?;
        let counts = grid.counts.iter();
        let counts = counts.map(|count| new_uint(py, (*count).into()));
        Ok((list_of_results(py, counts)?, grid.host))
    }

    fn shards(
        &self,
        array: usize,
        catalog: &Catalog,
        value: usize,
        dtype: String,
        itemsize: usize,
        shape: Vec<usize>,
    ) -> PyResult<Shards> {
        keep_reserve()?;
        let Grid {
            counts,
            files,
            host,
        } = self.array(array)?;
        let counts: Vec<usize> = match host {
            true => vec![1; shape.len()],
            false => counts.iter().map(|count| *count as usize).collect(),
        };
        catalog.check(value)?;
        let place = (catalog.catalog.clone(), value);
        let split = |grid| {
            ShardedArray::new(grid, files.clone(), place, *host, dtype, itemsize).transpose()
        };
        let made = ShardGrid::new(&shape, &counts)
            .and_then(split)
            .transpose()?;
        let error = || PyValueError::new_err("the shards of the array do not have one shape");
        Ok(Shards(Arc::new(made.ok_or_else(error)?)))
    }

    #[getter]
    fn content(&self) -> Content {
        Content::sparse(self.encoding.clone())
    }
}

impl Manifest {
    fn array(&self, number: usize) -> PyResult<&Grid> {
        let array = self.manifest.arrays.get(number);
        array.ok_or_else(|| PyIndexError::new_err("array index out of range"))
    }
}

fn shard_files(files: Vec<FileRow>) -> PyResult<Vec<ShardFile>> {
    let files = files.into_iter().map(|(name, nbytes, record)| ShardFile {
        name,
        nbytes,
        record,
    });
    Ok(grow::collect(files)?)
}
