//! Selection by patterns and trees of bools.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use crate::catalog::{self, Catalog};
use crate::patterns::{self, State};

#[pyclass(frozen, module = "treepack._core")]
pub struct Selector(pub patterns::Selector);

#[pymethods]
impl Selector {
    #[staticmethod]
    fn patterns(patterns: Vec<(String, bool)>) -> PyResult<Self> {
        let patterns = patterns.iter().map(|(text, literal)| (&**text, *literal));
        Ok(Self(patterns::Selector::patterns(patterns)?))
    }

    #[staticmethod]
    fn bools(bools: Vec<(Vec<String>, bool)>) -> PyResult<Self> {
        let bools = bools
            .iter()
            .map(|(keys, bool)| (keys.iter().map(String::as_str), *bool));
        Ok(Self(patterns::Selector::bools(bools)?))
    }

    fn selects(&self, keys: Vec<String>) -> Option<bool> {
        let state = if keys.is_empty() {
            self.0.root()
        } else {
            self.through(&keys, |_| ())
        };
        state.selected.or(self.0.patterns.map(|_| false))
    }

    fn matching(&self, keys: Vec<String>) -> Vec<usize> {
        let mut numbers: Vec<_> = Vec::new();
        if keys.is_empty() {
            numbers.extend(self.0.ended(&self.0.root()));
        }
        self.through(&keys, |state| numbers.extend(self.0.ended(state)));
        numbers
    }
}

impl Selector {
    /// Follows `keys`, calls `each` with the state after each key, and returns the last state.
    fn through(&self, keys: &[String], mut each: impl FnMut(&State)) -> State {
        let mut state = self.0.start();
        each(&state);
        for key in keys {
            state = self.0.below(&state, key);
            each(&state);
        }
        state
    }
}

#[pyclass(frozen, module = "treepack._core")]
pub struct Marks(pub catalog::Marks);

#[pymethods]
impl Marks {
    #[getter]
    fn values(&self) -> Vec<usize> {
        (0..self.0.values())
            .filter(|value| self.0.has(*value))
            .collect()
    }

    fn __contains__(&self, value: usize) -> bool {
        value < self.0.values() && self.0.has(value)
    }

    #[getter]
    fn unmatched(&self) -> Vec<usize> {
        self.0.unmatched.clone()
    }

    #[getter]
    fn undecided(&self) -> Option<usize> {
        self.0.undecided
    }
}

impl Marks {
    /// Returns the marks, if they belong to this catalog.
    pub fn of(&self, catalog: &Catalog) -> PyResult<&catalog::Marks> {
        if self.0.values() == catalog.values() {
            return Ok(&self.0);
        }
        Err(PyIndexError::new_err(
            "the marks belong to a different file",
        ))
    }
}
