//! An iterator of paths.

use std::ops::Range;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::memory::row;
use super::file::Catalog;
use crate::base::grow;
use crate::catalog;

/// Yields paths of values, made on demand: together they may be much larger than the data.
#[pyclass(module = "treepack._core")]
pub struct Paths {
    catalog: Arc<catalog::Catalog>,
    from: usize,
    left: Range<usize>,
    with_empty: bool,
}

#[pymethods]
impl Paths {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        /// Paths between checks of signals, because the loop may not run Python code.
        const CHECK_PATHS: usize = 1 << 10;
        for at in self.left.by_ref() {
            if at.is_multiple_of(CHECK_PATHS) {
                py.check_signals()?;
            }
            if self.catalog.leaf(at).is_some() || self.with_empty && self.catalog.is_end(at) {
                let path = self.catalog.path_below(self.from, at)?;
                return row!(py, grow::display(&path)?, at).map(Some);
            }
        }
        Ok(None)
    }
}

impl Catalog {
    pub(super) fn paths(&self, value: usize, with_empty: bool) -> PyResult<Paths> {
        self.check(value)?;
        Ok(Paths {
            catalog: self.catalog.clone(),
            from: value,
            left: value..self.catalog.after(value),
            with_empty,
        })
    }
}
