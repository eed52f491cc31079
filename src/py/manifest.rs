//! Manifests of sharded checkpoints.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::boxes::Shards;
use super::catalog::Catalog;
use super::content::Content;
use super::dtypes::Dtype;
use super::gzip;
use super::layout::Layout;
use super::memory::{copied, keep_reserve, list_of, list_of_results, new_string, row};
use super::options::Int;
use super::plan::ShardPlan;
use crate::base::source::{self, Source as _};
use crate::catalog::ArrayPlace;
use crate::sharding::boxes::ShardedArray;
use crate::sharding::manifest::{self, Grid, ShardFile, Sparse};
use crate::{Error, base::grow};

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

    #[pyo3(signature = (files, writer=None, places=None))]
    fn with_files<'py>(
        &self,
        py: Python<'py>,
        files: Vec<FileRow>,
        writer: Option<String>,
        places: Option<Vec<Vec<u32>>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        keep_reserve()?;
        let (files, writer) = (shard_files(files)?, writer.unwrap_or_default());
        let count = files.len();
        let arrays = match places {
            None => None,
            Some(places) => {
                let are_files = places.iter().flatten().all(|file| (*file as usize) < count);
                let arrays = self.manifest.placed(places)?.filter(|_| are_files);
                let error = || PyIndexError::new_err("places must have a file for each shard");
                Some(arrays.ok_or_else(error)?)
            }
        };
        let arrays = arrays.as_ref().unwrap_or(&self.manifest.arrays);
        copied(py, &self.manifest.encode_with(&files, arrays, &writer)?)
    }

    #[getter]
    fn writer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        new_string(py, &self.manifest.writer)
    }

    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let files = self
            .manifest
            .files
            .iter()
            .map(|file| row!(py, file.name, file.nbytes, file.record));
        list_of_results(py, files)
    }

    #[getter]
    fn inflated(&self) -> usize {
        self.encoding.present(0..self.encoding.len())
    }

    /// Returns the number of shards per dimension, and whether it is a host array.
    fn grid<'py>(&self, py: Python<'py>, array: usize) -> PyResult<(Bound<'py, PyList>, bool)> {
        let grid = self.array(array)?;
        Ok((list_of(py, &grid.counts)?, grid.host))
    }

    /// `None` if the bytes are in the manifest.
    fn array_of(&self, py: Python<'_>, catalog: &Catalog, value: usize) -> PyResult<Option<usize>> {
        let elsewhere = self.elsewhere(py, catalog, value)?;
        Ok(elsewhere.map(|(number, _)| number))
    }

    fn shards(
        &self,
        py: Python<'_>,
        catalog: &Catalog,
        value: usize,
    ) -> PyResult<Option<(Shards, bool)>> {
        keep_reserve()?;
        let Some((name, _)) = catalog.catalog.dtype_and_shape(catalog.leaf_of(value)?) else {
            return Ok(None);
        };
        let Some(dtype) = Dtype::named(py, name.as_bytes())? else {
            return Ok(None); // so `LazyArray` raises
        };
        let Some((number, array)) = self.elsewhere(py, catalog, value)? else {
            return Ok(None);
        };
        let (grid, shape) = (self.array(number)?, array.shape());
        let place = (catalog.catalog.clone(), value);
        let array = ShardedArray::new(grid, shape, place, name.to_owned(), dtype.itemsize)?;
        let array = array.ok_or_else(|| {
            let counts = &grid.counts;
            let reason = format!(
                "the manifest is damaged: it splits the shape {shape:?} into {counts:?} shards"
            );
            catalog.at(py, Error::Structure(reason).into(), value)
        })?;
        Ok(Some((Shards(Arc::new(array)), grid.host)))
    }

    #[getter]
    fn content(&self) -> Content {
        Content::unchecked(self.encoding.clone())
    }
}

impl Manifest {
    fn elsewhere(
        &self,
        py: Python<'_>,
        catalog: &Catalog,
        value: usize,
    ) -> PyResult<Option<(usize, Arc<ArrayPlace>)>> {
        let place = catalog.catalog.place(catalog.leaf_of(value)?);
        let range = place.start..place.end;
        if self.encoding.is_whole(range.clone()) {
            return Ok(None);
        }
        let array = catalog.array(py, value)?;
        // A leaf elsewhere has one gap, as large as its array.
        let missing = range.len() - self.encoding.present(range);
        let number = self.encoding.array_of(array.parts().iter().cloned());
        match number.filter(|_| missing == array.nbytes()) {
            Some(number) => Ok(Some((number, array))),
            None => Err(catalog.at(py, source::missing(place.start).into(), value)),
        }
    }

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
