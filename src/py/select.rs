//! Which leaves are meant: patterns and trees of bools of Python, and what they mark.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use crate::catalog::{self, Catalog};
use crate::select::{self, State};

/// Patterns of paths, or bools for parts of a tree; see `_core.pyi`.
#[pyclass(frozen, module = "treepack._core")]
pub struct Selector(select::Selector);

#[pymethods]
impl Selector {
    /// Leaves that patterns match; those that are literal have no wildcards.
    #[staticmethod]
    fn patterns(patterns: Vec<(String, bool)>) -> PyResult<Self> {
        let patterns = patterns.iter().map(|(text, literal)| (&**text, *literal));
        Ok(Self(select::Selector::patterns(patterns)?))
    }

    /// Leaves at or below keys with `True`, unless others that are nearer have `False`.
    #[staticmethod]
    fn bools(bools: Vec<(Vec<String>, bool)>) -> PyResult<Self> {
        let bools = bools
            .iter()
            .map(|(keys, bool)| (keys.iter().map(String::as_str), *bool));
        Ok(Self(select::Selector::bools(bools)?))
    }

    /// Whether what keys lead to is meant; nothing if no bool is for it.
    fn means(&self, keys: Vec<String>) -> Option<bool> {
        let found = self.through(&keys, |_| ()).meant();
        found.or(self.0.pattern_count().map(|_| false))
    }

    /// The patterns that match what keys lead to, or what is around it, by their numbers.
    fn matching(&self, keys: Vec<String>) -> Vec<usize> {
        let mut found: Vec<_> = Vec::new();
        self.through(&keys, |state| found.extend(self.0.ended(state)));
        found
    }
}

impl Selector {
    /// What knows nothing of Python.
    pub fn get(&self) -> &select::Selector {
        &self.0
    }

    /// Goes through the places that keys lead to, and returns the last one.
    fn through(&self, keys: &[String], mut each: impl FnMut(&State)) -> State {
        let mut state = if keys.is_empty() {
            self.0.root()
        } else {
            self.0.start()
        };
        each(&state);
        for key in keys {
            state = self.0.below(&state, key);
            each(&state);
        }
        state
    }
}

/// Marks of leaves and empty containers of a catalog; see `_core.pyi`.
#[pyclass(frozen, module = "treepack._core")]
pub struct Marks(catalog::Marks);

#[pymethods]
impl Marks {
    /// The values that are marked.
    #[getter]
    fn values(&self) -> Vec<usize> {
        (0..self.0.values())
            .filter(|value| self.0.has(*value))
            .collect()
    }

    fn __contains__(&self, value: usize) -> bool {
        value < self.0.values() && self.0.has(value)
    }

    /// The patterns that match nothing, by their numbers.
    #[getter]
    fn unmatched(&self) -> Vec<usize> {
        self.0.unmatched().to_vec()
    }

    /// The first leaf for which there is no bool.
    #[getter]
    fn undecided(&self) -> Option<usize> {
        self.0.undecided()
    }
}

impl Marks {
    pub fn new(marks: catalog::Marks) -> Self {
        Self(marks)
    }

    /// The marks, if they are those of this catalog.
    pub fn of(&self, catalog: &Catalog) -> PyResult<&catalog::Marks> {
        if self.0.values() == catalog.values() {
            return Ok(&self.0);
        }
        Err(PyIndexError::new_err("these are the marks of another file"))
    }
}

/// What the wildcards of a pattern stand for in a path, and what follows; see `_core.pyi`.
#[pyfunction]
pub fn captures<'p>(pattern: &str, path: &'p str) -> PyResult<Option<(Vec<&'p str>, &'p str)>> {
    Ok(select::captures(pattern, path)?)
}
