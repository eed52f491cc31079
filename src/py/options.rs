//! Integer options.

use std::num::NonZero;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::{Result, base::parallel};

/// An integer; one outside `i64` is the nearest bound, which later checks reject.
#[derive(Clone, Copy)]
pub struct Int(pub i64);

impl<'py> FromPyObject<'_, 'py> for Int {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let number = value.extract().or_else(|error: PyErr| {
            if !error.is_instance_of::<PyOverflowError>(value.py()) {
                return Err(error);
            }
            Ok(if value.lt(0)? { i64::MIN } else { i64::MAX })
        });
        number.map(Self)
    }
}

/// See `parallel::threads`.
pub fn threads(wanted: Option<Int>, bytes: usize, min_bytes: usize) -> Result<NonZero<usize>> {
    parallel::threads(wanted.map(|count| count.0), bytes, min_bytes)
}

#[pyfunction]
pub fn thread_count(threads: Option<Int>) -> PyResult<usize> {
    Ok(self::threads(threads, 0, 0)?.get())
}
