//! Safe hashing of keys in files: Python hashes and compares them, which must be quick and must not
//! run code that a file chooses.

use std::collections::HashMap;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PySet, PyString, PyTuple};

use super::errors;
use super::hooks::Hooks;
use super::memory::list_of_results;
use crate::Error;

#[derive(Default)]
pub struct Hashes(HashMap<isize, usize>);

impl Hashes {
    /// The maximum number of keys with one hash. At most about 20 floats or 64-bit integers have
    /// the same hash, and tuples of -1 and -2 (equal hashes) a few more.
    pub const MOST: usize = 128;

    pub fn add(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if is_unpredictable(key) {
            return Ok(());
        }
        self.0.try_reserve(1).map_err(Error::from)?;
        let count = self.0.entry(key.hash()?).or_insert(0);
        *count += 1;
        if *count > Self::MOST {
            let most = Self::MOST;
            let reason = format!(
                "more than {most} keys have the same hash, which would take long to compare"
            );
            return Err(Error::Structure(reason).into());
        }
        Ok(())
    }
}

#[pyfunction]
pub fn check_hashes(keys: &Bound<'_, PyAny>) -> PyResult<()> {
    match keys.cast_exact::<PyList>() {
        Ok(keys) if keys.len() > Hashes::MOST => {
            let mut hashes = Hashes::default();
            keys.iter().try_for_each(|key| hashes.add(&key))
        }
        _ => Ok(()),
    }
}

#[pyfunction]
pub fn check_unique_keys(mapping: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = mapping.py();
    let keys = list_of_results(py, mapping.try_iter()?)?; // a subclass may override `len`
    let texts = PySet::empty(py)?;
    for key in &keys {
        texts.add(key.str()?)?;
    }
    if texts.len() == keys.len() {
        return Ok(());
    }
    let error = PyValueError::new_err(format!(
        "Dict keys do not have a unique string representation: {} vs given: {}",
        texts.str()?,
        mapping.str()?
    ));
    let remedy = "treepack: rename keys that are equal as strings";
    error.value(py).call_method1("add_note", (remedy,))?;
    Err(error)
}

pub fn check_key(key: &Bound<'_, PyAny>) -> PyResult<()> {
    if may_be_key(key)? {
        return Ok(());
    }
    let kind = key.get_type().qualname()?;
    let reason = format!("a damaged value: hashing a key of the file would run code of {kind}");
    Err(errors::to_py(key.py(), Error::Structure(reason), None))
}

pub fn check_saved_key(key: &Bound<'_, PyAny>) -> PyResult<()> {
    if may_be_key(key)? {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "a key {} cannot be read back, since that would run code of its parts: save str(...) of it",
        key.repr()?
    )))
}

/// Returns whether hashing and comparing a value runs only known code.
pub fn may_be_key(key: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_number = key.is_exact_instance_of::<PyInt>()
        || key.is_exact_instance_of::<PyFloat>()
        || key.is_exact_instance_of::<PyBool>();
    if is_unpredictable(key) || is_number || key.is_none() {
        return Ok(true); // common, and needs no call
    }
    if let Ok(parts) = key.cast_exact::<PyTuple>() {
        for part in parts {
            if !may_be_key(&part)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    Hooks::get(key.py())?
        .static_data
        .bind(key.py())
        .call_method1(intern!(key.py(), "is_key"), (key,))?
        .is_truthy()
}

/// Returns whether the hash is secret, so that a file cannot choose equal ones.
fn is_unpredictable(key: &Bound<'_, PyAny>) -> bool {
    key.is_exact_instance_of::<PyString>() || key.is_exact_instance_of::<PyBytes>()
}
