//! Integer options.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::parallel;

/// Converts an integer; one outside `i64` becomes the nearest bound, which later checks reject.
pub fn integer(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    value.extract().or_else(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(value.py()) {
            return Err(error);
        }
        Ok(if value.lt(0)? { i64::MIN } else { i64::MAX })
    })
}

pub fn integer_or_none(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if value.is_none() {
        return Ok(None);
    }
    integer(value).map(Some)
}

#[pyfunction]
pub fn thread_count(
    #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
) -> PyResult<usize> {
    Ok(parallel::threads(threads, 0, 0)?.get())
}
