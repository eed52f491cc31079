//! The manifest of a sharded checkpoint.

use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::content::Content;
use super::save::Layout;
use super::{gzip, integer_or_none};
use crate::manifest::{self, Grid, ShardFile, Sparse};
use crate::source::Source as _;

/// What holds the files of a sharded checkpoint together; see `_core.pyi`.
#[pyclass(frozen, module = "treepack._core")]
pub struct Manifest {
    manifest: manifest::Manifest,
    encoding: Arc<Sparse>,
}

/// The name of a file, how many bytes it has, and the CRC-32 of its record.
type File = (String, u64, u32);

/// How many shards an array has in each dimension, the file of each, and whether it is of the host.
type Split = (Vec<u32>, Vec<u32>, bool);

#[pymethods]
impl Manifest {
    /// The manifest of a layout with holes, as bytes.
    #[staticmethod]
    fn encode<'py>(
        layout: &Bound<'py, Layout>,
        files: Vec<File>,
        arrays: Vec<Split>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let py = layout.py();
        let grids = arrays.into_iter().map(|(counts, files, host)| Grid {
            counts,
            files,
            host,
        });
        let manifest = layout
            .get()
            .manifest(py, shard_files(files), grids.collect())?;
        Ok(PyBytes::new(py, &manifest.encode()))
    }

    /// Reads a manifest.
    #[staticmethod]
    #[pyo3(signature = (data, *, max_size=None))]
    fn decode(
        data: &[u8],
        #[pyo3(from_py_with = integer_or_none)] max_size: Option<i64>,
    ) -> PyResult<Self> {
        let manifest = manifest::Manifest::decode(data)?;
        let encoding = Arc::new(manifest.encoding(gzip::limit(max_size)?)?);
        Ok(Self { manifest, encoding })
    }

    /// The same manifest as bytes, with other files.
    fn with_files<'py>(&self, py: Python<'py>, files: Vec<File>) -> PyResult<Bound<'py, PyBytes>> {
        if files.len() != self.manifest.files.len() {
            return Err(PyIndexError::new_err("there are other files"));
        }
        let mut manifest = self.manifest.clone();
        manifest.files = shard_files(files);
        Ok(PyBytes::new(py, &manifest.encode()))
    }

    /// The files with the shards.
    #[getter]
    fn files(&self) -> Vec<File> {
        let files = self.manifest.files.iter();
        files
            .map(|file| (file.name.clone(), file.nbytes, file.record))
            .collect()
    }

    /// How many bytes what is compressed in it has.
    #[getter]
    fn inflated(&self) -> usize {
        self.encoding.present(0..self.encoding.len())
    }

    /// How many shards an array has in each dimension, and whether it is of the host.
    fn grid(&self, array: usize) -> PyResult<(Vec<u32>, bool)> {
        let grid = self.array(array)?;
        Ok((grid.counts.clone(), grid.host))
    }

    /// The number of the file of a shard.
    fn file_of(&self, array: usize, shard: usize) -> PyResult<u32> {
        let file = self.array(array)?.files.get(shard);
        file.copied()
            .ok_or_else(|| PyIndexError::new_err("there are fewer shards"))
    }

    /// The encoding, of which the bytes of arrays are not there.
    #[getter]
    fn content(&self) -> Content {
        Content::sparse(self.encoding.clone())
    }
}

impl Manifest {
    fn array(&self, number: usize) -> PyResult<&Grid> {
        let array = self.manifest.arrays.get(number);
        array.ok_or_else(|| PyIndexError::new_err("there are fewer arrays"))
    }
}

fn shard_files(files: Vec<File>) -> Vec<ShardFile> {
    let files = files.into_iter().map(|(name, nbytes, record)| ShardFile {
        name,
        nbytes,
        record,
    });
    files.collect()
}
