//! Typed values as Python objects.

use pyo3::exceptions::{PyException, PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyString, PyTuple,
};

use super::errors;
use super::hashes::{Hashes, check_hashes};
use super::hooks::Hooks;
use super::memory::{
    copied, list_of_results, new_complex, new_dict, new_float, new_int, new_list_of, new_string,
    new_tuple_of,
};
use super::watch::Signals;
use crate::structure::Value;
use crate::{Error, grow};

/// A typed value as bytes; see `_core.pyi`.
#[pyfunction]
pub fn encode_value<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    copied(value.py(), &encode(value)?)
}

/// The value that bytes of `encode_value` are; see `_core.pyi`.
#[pyfunction]
pub fn decode_value<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    decode(py, data)
}

/// A value of Python as bytes.
pub fn encode(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok(to_value(value, 0, &Signals::new())?.encode()?)
}

/// The value of Python that bytes are.
pub fn decode<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let value = Value::decode(data)?;
    to_python(py, &value, &Signals::new())
}

fn to_value(value: &Bound<'_, PyAny>, depth: usize, signals: &Signals) -> PyResult<Value> {
    signals.check(value.py())?;
    if depth >= Value::MAX_DEPTH {
        return Err(PyValueError::new_err(format!(
            "a value is nested more than {} levels deep, or contains itself",
            Value::MAX_DEPTH
        )));
    }
    let below = |value: &Bound<'_, PyAny>| to_value(value, depth + 1, signals);
    // As many as there were at the beginning: what is asked about one may add others.
    let each = |values: &Bound<'_, PyAny>| -> PyResult<Vec<_>> {
        let len = values.len()?;
        let mut found = grow::with_room(len)?;
        for item in values.try_iter()?.take(len) {
            found.push(below(&item?)?);
        }
        Ok(found)
    };
    // Subclasses are other types, which the program has to know by name.
    Ok(if value.is_none() {
        Value::None
    } else if let Ok(value) = value.cast_exact::<PyBool>() {
        Value::Bool(value.is_true())
    } else if let Ok(value) = value.cast_exact::<PyInt>()
        && let Ok(value) = value.extract()
    {
        Value::Int(value)
    } else if let Ok(value) = value.cast_exact::<PyFloat>() {
        Value::Float(value.value())
    } else if let Ok(value) = value.cast_exact::<PyComplex>() {
        Value::Complex(value.real(), value.imag())
    } else if let Ok(value) = value.cast_exact::<PyString>() {
        Value::Str(grow::to_string(value.to_str()?)?)
    } else if let Ok(value) = value.cast_exact::<PyBytes>() {
        Value::Bytes(grow::to_vec(value.as_bytes())?)
    } else if let Ok(value) = value.cast_exact::<PyTuple>() {
        Value::Tuple(each(value.as_any())?)
    } else if let Ok(value) = value.cast_exact::<PyList>() {
        Value::List(each(value.as_any())?)
    } else if let Ok(value) = value.cast_exact::<PyDict>() {
        // A copy of the items, since what is asked about one may change the dict.
        let items = value.call_method0(intern!(value.py(), "items"))?;
        let items = list_of_results(value.py(), items.try_iter()?)?;
        let mut pairs = grow::with_room(items.len())?;
        for item in items {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            pairs.push((below(&key)?, below(&value)?));
        }
        Value::Dict(pairs)
    } else if let Ok(value) = value.cast_exact::<PyFrozenSet>() {
        Value::frozenset(each(value.as_any())?)?
    } else {
        let reduced = Hooks::get(value.py())?
            .reduce_value
            .bind(value.py())
            .call1((value,))?;
        let (name, made_of): (Bound<'_, PyString>, Bound<'_, PyAny>) = reduced.extract()?;
        Value::Named(
            grow::to_string(name.to_str()?)?,
            grow::boxed(below(&made_of)?)?,
        )
    })
}

fn to_python<'py>(
    py: Python<'py>,
    value: &Value,
    signals: &Signals,
) -> PyResult<Bound<'py, PyAny>> {
    signals.check(py)?;
    let below = |value: &Value| to_python(py, value, signals);
    let each = |values: &[Value]| -> PyResult<Vec<_>> {
        let mut found = grow::with_room(values.len())?;
        for value in values {
            found.push(below(value)?);
        }
        Ok(found)
    };
    Ok(match value {
        Value::None => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Int(value) => new_int(py, *value)?.into_any(),
        Value::Float(value) => new_float(py, *value)?.into_any(),
        Value::Complex(real, imaginary) => new_complex(py, *real, *imaginary)?.into_any(),
        Value::Str(value) => new_string(py, value.as_bytes())?.into_any(),
        Value::Bytes(value) => copied(py, value)?.into_any(),
        Value::Tuple(values) => new_tuple_of(py, each(values)?)?.into_any(),
        Value::List(values) => new_list_of(py, each(values)?)?.into_any(),
        Value::Dict(pairs) => {
            let dict = new_dict(py)?;
            let mut hashes = Hashes::default();
            for (key, value) in pairs {
                let (key, value) = (below(key)?, below(value)?);
                let known = pairs.len() <= Hashes::MOST;
                let set = if known { Ok(()) } else { hashes.add(&key) };
                set.and_then(|()| dict.set_item(key, value))
                    .map_err(|error| hashing(py, error))?;
            }
            dict.into_any()
        }
        Value::Frozenset(values) => {
            let items = new_list_of(py, each(values)?)?;
            let set = check_hashes(items.as_any()).and_then(|()| PyFrozenSet::new(py, items));
            set.map_err(|error| hashing(py, error))?.into_any()
        }
        Value::Named(name, made_of) => {
            let rebuild = Hooks::get(py)?.rebuild_value.bind(py);
            rebuild.call1((name, below(made_of)?))?
        }
    })
}

/// The exception for a key that Python does not take.
fn hashing(py: Python<'_>, error: PyErr) -> PyErr {
    if errors::is(py, &error, "TreepackError") || error.is_instance_of::<PyMemoryError>(py) {
        return error;
    }
    if error.is_instance_of::<PyException>(py) {
        let reason = format!("a damaged value: a key cannot be hashed: {error}");
        return errors::to_py(py, Error::Structure(reason), None);
    }
    error
}
