//! The class `Catalog`.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;

use super::super::content::Content;
use super::super::errors;
use super::super::memory::keep_reserve;
use crate::catalog::{self, Compared, FoundArrays};
use crate::sharding::boxes::OpenFile;

#[pyclass(frozen, module = "treepack._core")]
#[allow(clippy::struct_field_names)] // the core's catalog
pub struct Catalog {
    pub content: Py<Content>,
    pub catalog: Arc<catalog::Catalog>,
    pub(super) arrays: FoundArrays,
}

impl Catalog {
    pub(super) fn new(content: Py<Content>, catalog: Arc<catalog::Catalog>) -> Self {
        Self {
            content,
            catalog,
            arrays: FoundArrays::default(),
        }
    }

    pub fn open_file(&self, number: u32) -> OpenFile<'_> {
        OpenFile {
            number,
            catalog: &self.catalog,
            source: self.content.get().source(),
            arrays: &self.arrays,
        }
    }

    pub fn at(&self, py: Python<'_>, error: PyErr, value: usize) -> PyErr {
        let path = errors::path_text(&self.catalog.path_of(value));
        let placed = errors::placed(py, &error, &path);
        placed.ok().flatten().unwrap_or(error)
    }

    pub(super) fn compared(
        &self,
        py: Python<'_>,
        value: usize,
        ranges: &[Range<usize>],
    ) -> PyResult<Option<Compared>> {
        let source = self.content.get().shared();
        Ok(py.detach(|| self.catalog.compared(source, value, ranges))?)
    }

    pub fn check(&self, value: usize) -> PyResult<()> {
        keep_reserve()?;
        if value < self.catalog.values() {
            return Ok(());
        }
        Err(PyIndexError::new_err("there is no such value"))
    }

    pub fn leaf_of(&self, value: usize) -> PyResult<usize> {
        self.check(value)?;
        let leaf = self.catalog.leaf(value);
        leaf.ok_or_else(|| PyTypeError::new_err("the value is not a leaf"))
    }
}
