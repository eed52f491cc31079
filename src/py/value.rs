//! Typed values as Python objects.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyString, PyTuple,
};

use super::errors;
use super::failure::{Built, Walked};
use super::hashes::{Hashes, check_hashes, check_key, check_saved_key};
use super::hooks::Hooks;
use super::memory::{
    copied, list_of_results, new_complex, new_dict, new_float, new_int, new_list_of, new_string,
    new_tuple_of,
};
use super::watch::Signals;
use crate::format::structure::Value;
use crate::{Error, base::grow};

#[pyfunction]
pub fn encode_value<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    copied(value.py(), &encode(value)?)
}

pub fn encode(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    Ok(to_value(value, 0, &Signals::new(value.py()))?.encode()?)
}

pub fn encode_keys(keys: &Bound<'_, PyList>) -> PyResult<Vec<u8>> {
    keys.iter().try_for_each(|key| check_saved_key(&key))?;
    encode(keys.as_any())
}

#[pyfunction]
pub fn decode_value<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let value = decode_at(py, data, false);
    value.map_err(|failure| failure.without_path().into_py(py, "loading"))
}

/// Decodes with the path of a failure. With `unknown_as_dict`, a dict replaces a value that cannot
/// be rebuilt.
pub fn decode_at<'py>(py: Python<'py>, data: &[u8], unknown_as_dict: bool) -> Built<'py> {
    let value = Value::decode(data)?;
    let values = Values {
        py,
        signals: Signals::new(py),
        unknown_as_dict,
    };
    values.of(&value)
}

fn to_value(value: &Bound<'_, PyAny>, depth: usize, signals: &Signals<'_>) -> PyResult<Value> {
    signals.check(value.py())?;
    if depth >= Value::MAX_DEPTH {
        return Err(PyValueError::new_err(format!(
            "a value is nested more than {} levels deep, or contains itself",
            Value::MAX_DEPTH
        )));
    }
    let below = |value: &Bound<'_, PyAny>| to_value(value, depth + 1, signals);
    // Takes a copy first: Python code called for an item may add others.
    let each = |values: &Bound<'_, PyAny>| -> PyResult<Vec<_>> {
        let len = values.len()?;
        let mut items = grow::with_room(len)?;
        for item in values.try_iter()?.take(len) {
            items.push(below(&item?)?);
        }
        Ok(items)
    };
    // Exact types only: subclasses are types of their own, found by name.
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
        // A copy, because Python code called for an item may change the dict.
        let items = value.call_method0(intern!(value.py(), "items"))?;
        let items = list_of_results(value.py(), items.try_iter()?)?;
        let mut pairs = grow::with_room(items.len())?;
        for item in items {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            check_saved_key(&key)?;
            pairs.push((below(&key)?, below(&value)?));
        }
        Value::Dict(pairs)
    } else if let Ok(value) = value.cast_exact::<PyFrozenSet>() {
        value.iter().try_for_each(|item| check_saved_key(&item))?;
        Value::frozenset(each(value.as_any())?)?
    } else {
        let reduced = Hooks::get(value.py())?
            .static_data
            .bind(value.py())
            .call_method1(intern!(value.py(), "reduce_value"), (value,))?;
        let (name, made_of): (Bound<'_, PyString>, Bound<'_, PyAny>) = reduced.extract()?;
        Value::Named(
            grow::to_string(name.to_str()?)?,
            grow::boxed(below(&made_of)?)?,
        )
    })
}

struct Values<'py> {
    py: Python<'py>,
    signals: Signals<'py>,
    unknown_as_dict: bool,
}

impl<'py> Values<'py> {
    fn of(&self, value: &Value) -> Built<'py> {
        let py = self.py;
        self.signals.check(py)?;
        Ok(match value {
            Value::None => py.None().into_bound(py),
            Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
            Value::Int(value) => new_int(py, *value)?.into_any(),
            Value::Float(value) => new_float(py, *value)?.into_any(),
            Value::Complex(real, imaginary) => new_complex(py, *real, *imaginary)?.into_any(),
            Value::Str(value) => new_string(py, value)?.into_any(),
            Value::Bytes(value) => copied(py, value)?.into_any(),
            Value::Tuple(values) => new_tuple_of(py, self.each(values)?)?.into_any(),
            Value::List(values) => new_list_of(py, self.each(values)?)?.into_any(),
            Value::Dict(pairs) => self.dict(pairs)?,
            Value::Frozenset(values) => {
                let mut items = self.each(values)?;
                for item in &mut items {
                    *item = self.key(item.clone())?;
                }
                let items = new_list_of(py, items)?;
                let set = check_hashes(items.as_any()).and_then(|()| PyFrozenSet::new(py, items));
                set.map_err(|error| hashing(py, error))?.into_any()
            }
            Value::Named(name, made_of) => self.named(name, made_of)?,
        })
    }

    fn each(&self, values: &[Value]) -> Walked<Vec<Bound<'py, PyAny>>> {
        let mut objects = grow::with_room(values.len())?;
        for (index, value) in values.iter().enumerate() {
            let value = self.of(value);
            objects.push(value.map_err(|failure| failure.below(index.to_string()))?);
        }
        Ok(objects)
    }

    #[inline(never)]
    fn dict(&self, pairs: &[(Value, Value)]) -> Built<'py> {
        let py = self.py;
        let dict = new_dict(py)?;
        let mut hashes = Hashes::default();
        for (key, value) in pairs {
            let key = self.key(self.of(key)?)?;
            let value = self.of(value);
            let value = value.map_err(|failure| failure.below(key.to_string()))?;
            let is_small = pairs.len() <= Hashes::MOST;
            let set = if is_small { Ok(()) } else { hashes.add(&key) };
            set.and_then(|()| dict.set_item(key, value))
                .map_err(|error| hashing(py, error))?;
        }
        Ok(dict.into_any())
    }

    #[inline(never)]
    fn named(&self, name: &str, made_of: &Value) -> Built<'py> {
        let py = self.py;
        let parts = self.of(made_of)?;
        let hook = Hooks::get(py)?.static_data.bind(py);
        match hook.call_method1(intern!(py, "rebuild_value"), (name, &parts)) {
            Err(error) if self.unknown_as_dict && errors::is(py, &error, "DecodeError") => {
                if parts.is_exact_instance_of::<PyDict>() {
                    return Ok(parts);
                }
                let dict = new_dict(py)?;
                dict.set_item(new_string(py, name)?, parts)?;
                Ok(dict.into_any())
            }
            value => Ok(value?),
        }
    }

    /// Returns a key or an element of a set; text instead of a dict.
    fn key(&self, key: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        check_key(&key)?;
        if self.unknown_as_dict
            && key
                .hash()
                .is_err_and(|error| error.is_instance_of::<PyTypeError>(self.py))
        {
            return Ok(key.str()?.into_any());
        }
        Ok(key)
    }
}

fn hashing(py: Python<'_>, error: PyErr) -> PyErr {
    if errors::stays(py, &error) {
        return error;
    }
    let reason = format!("a damaged value: a key cannot be hashed: {error}");
    errors::to_py(py, Error::Structure(reason), None)
}
