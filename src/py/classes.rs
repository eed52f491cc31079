//! Classifies values by their types.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use super::hooks::Hooks;

/// The kinds that `classify` in `_src/leaves/leaves.py` distinguishes.
#[pyclass(
    eq,
    frozen,
    from_py_object,
    module = "treepack._core",
    rename_all = "SCREAMING_SNAKE_CASE"
)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Unsupported,
    Array,
    Scalar,
    JaxArray,
    PrngKey,
    BytesLike,
    Ext,
    Timestamp,
    Node,
    Deferred,
    /// Left out where the structure is recorded.
    Code,
    /// A NumPy array that may have a mask.
    Masked,
}

/// Answers by type. Holding the types keeps their addresses from being reused.
pub type ByType<'py, T> = Vec<(Bound<'py, PyType>, T)>;

/// Returns the answer for the type of a value, which `make` gives for the first value.
#[inline]
pub fn by_type<'py, T: Clone>(
    answers: &mut ByType<'py, T>,
    value: &Bound<'py, PyAny>,
    make: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    let class = value.get_type();
    if let Some((_, answer)) = answers.iter().find(|(key, _)| key.is(&class)) {
        return Ok(answer.clone());
    }
    let answer = make()?;
    answers.push((class, answer.clone()));
    Ok(answer)
}

#[derive(Default)]
pub struct Classes<'py> {
    answers: ByType<'py, Class>,
    /// The option of a save.
    r#static: Option<Bound<'py, PyAny>>,
}

impl<'py> Classes<'py> {
    pub fn new(r#static: Option<Bound<'py, PyAny>>) -> Self {
        Self {
            answers: Vec::new(),
            r#static,
        }
    }

    /// Returns whether there were values that only Python classifies.
    pub fn has_called_python(&self) -> bool {
        !self.answers.is_empty()
    }

    pub fn of(&mut self, value: &Bound<'py, PyAny>) -> PyResult<Class> {
        by_type(&mut self.answers, value, || {
            let classify = Hooks::get(value.py())?.classify.bind(value.py());
            Ok(classify.call1((value, &self.r#static))?.extract()?)
        })
    }

    /// Returns whether a child of a module certainly is state, without functions in it.
    pub fn is_state(&mut self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        /// Python decides about deeper values.
        const MAX_DEPTH: usize = 16;
        self.is_state_below(value, MAX_DEPTH)
    }

    fn is_state_below(&mut self, value: &Bound<'py, PyAny>, depth: usize) -> PyResult<bool> {
        if is_plain(value) {
            return Ok(true);
        }
        let mut all = |items: &mut dyn Iterator<Item = Bound<'py, PyAny>>| {
            for item in items {
                if depth == 0 || !self.is_state_below(&item, depth - 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        if let Ok(list) = value.cast_exact::<PyList>() {
            return all(&mut list.iter());
        }
        if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            return all(&mut tuple.iter());
        }
        if let Ok(dict) = value.cast_exact::<PyDict>() {
            return all(&mut dict.values().iter());
        }
        Ok(!matches!(self.of(value)?, Class::Unsupported | Class::Code))
    }
}

pub fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyString>()
}
