//! Keys of files: Python hashes and compares them, which must neither take long nor run code that a
//! file chooses.

use std::collections::HashMap;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::errors;
use super::hooks::Hooks;
use crate::{Error, Result};

#[derive(Default)]
pub struct Hashes(HashMap<isize, usize>);

impl Hashes {
    /// The most keys with one hash. Integers of 64 bits and floats have at most some twenty, and
    /// only tuples of -1 and -2 (which have the same) a few more.
    pub const MOST: usize = 128;

    /// Counts a key of a dict or set.
    pub fn add(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if is_unpredictable(key) {
            return Ok(());
        }
        let hash = key.hash()?;
        self.count(hash)
            .map_err(|error| errors::to_py(key.py(), error, None))
    }

    fn count(&mut self, hash: isize) -> Result<()> {
        self.0.try_reserve(1)?;
        let count = self.0.entry(hash).or_insert(0);
        *count += 1;
        if *count > Self::MOST {
            return Err(Error::Structure(format!(
                "more than {} keys have the same hash, which would take long to compare",
                Self::MOST
            )));
        }
        Ok(())
    }
}

/// See `_core.pyi`.
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

/// Fails unless a value of a file may be a key.
pub fn check_key(key: &Bound<'_, PyAny>) -> PyResult<()> {
    if may_be_key(key)? {
        return Ok(());
    }
    let kind = key.get_type().qualname()?;
    let reason = format!("a damaged value: code of {kind} would hash a key of the file");
    Err(errors::to_py(key.py(), Error::Structure(reason), None))
}

/// Fails unless a file may have a value as a key.
pub fn check_saved_key(key: &Bound<'_, PyAny>) -> PyResult<()> {
    if may_be_key(key)? {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "a key {} cannot be read back, since code of what it consists of would compare it: save \
         str(...) of it",
        key.repr()?
    )))
}

/// Whether hashing and comparing a value runs no code that a file can choose.
pub fn may_be_key(key: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_number = key.is_exact_instance_of::<PyInt>()
        || key.is_exact_instance_of::<PyFloat>()
        || key.is_exact_instance_of::<PyBool>();
    if is_unpredictable(key) || is_number || key.is_none() {
        return Ok(true); // the common case, without a call of Python
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
        .is_key
        .bind(key.py())
        .call1((key,))?
        .is_truthy()
}

/// Whether a file cannot predict the hash of a key.
fn is_unpredictable(key: &Bound<'_, PyAny>) -> bool {
    key.is_exact_instance_of::<PyString>() || key.is_exact_instance_of::<PyBytes>()
}
