//! What is in encoded data, and the data.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::content::Content;
use super::super::errors;
use super::super::memory::keep_reserve;
use crate::boxes::{ManifestPlace, OpenFile};
use crate::catalog::{self, Compared, FoundArrays};
use crate::mapping::Mapping;

/// What is in encoded data: containers and leaves, by number; see `_core.pyi`.
#[pyclass(frozen, module = "treepack._core")]
#[allow(clippy::struct_field_names)] // the catalog of the core
pub struct Catalog {
    pub(super) content: Py<Content>,
    pub(super) catalog: Arc<catalog::Catalog>,
    pub(super) arrays: FoundArrays,
    /// What was told last of a kind of leaves, and where that kind is: most are like the one before.
    pub(super) told: Mutex<Option<(usize, Py<PyTuple>)>>,
}

impl Catalog {
    /// Of these data.
    pub(super) fn new(content: Py<Content>, catalog: Arc<catalog::Catalog>) -> Self {
        Self {
            content,
            catalog,
            arrays: FoundArrays::default(),
            told: Mutex::default(),
        }
    }

    /// The leaves and their paths.
    pub fn core(&self) -> &catalog::Catalog {
        &self.catalog
    }

    /// The place of a value, if this is the catalog of a manifest.
    pub fn place_of(&self, value: usize) -> PyResult<ManifestPlace> {
        self.check(value)?;
        Ok((self.catalog.clone(), value))
    }

    /// The same as the file of a sharded checkpoint that has this number.
    pub fn open_file(&self, number: u32) -> OpenFile<'_> {
        OpenFile {
            number,
            catalog: &self.catalog,
            source: self.content.get().source(),
            arrays: &self.arrays,
        }
    }

    /// Errors if its file was written to since it was opened.
    pub fn check_unchanged(&self) -> crate::Result<()> {
        self.content.get().check_unchanged()
    }

    /// The open file, if it is one.
    pub fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.content.get().mapping()
    }

    /// Takes what has been read off this process's account.
    pub fn release(&self) {
        self.content.get().release();
    }

    /// What is wrong with a value, with its path.
    pub fn at(&self, py: Python<'_>, error: PyErr, value: usize) -> PyErr {
        let path = errors::path_text(&self.catalog.path_of(value));
        let placed = errors::placed(py, &error, &path);
        placed.ok().flatten().unwrap_or(error)
    }

    /// The data in which these ranges of a leaf are compared with its checksum as they are read, if
    /// it has one.
    pub(super) fn compared(
        &self,
        py: Python<'_>,
        value: usize,
        ranges: &[Range<usize>],
    ) -> PyResult<Option<Compared>> {
        let source = self.content.get().shared();
        Ok(py.detach(|| self.catalog.compared(source, value, ranges))?)
    }

    /// Errors if there is no such value.
    pub(super) fn check(&self, value: usize) -> PyResult<()> {
        keep_reserve()?;
        if value < self.catalog.values() {
            return Ok(());
        }
        Err(PyIndexError::new_err("there is no such value"))
    }

    /// The number of the leaf that a value is.
    pub(super) fn leaf_of(&self, value: usize) -> PyResult<usize> {
        self.check(value)?;
        let leaf = self.catalog.leaf(value);
        leaf.ok_or_else(|| PyTypeError::new_err("the value is no leaf"))
    }
}
