//! Keys that have the same hash: a dict or set compares each with all that it has of them.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::errors;
use crate::{Error, Result};

/// How often each hash has come by.
#[derive(Default)]
pub struct Hashes(HashMap<isize, usize>);

impl Hashes {
    /// The most keys with one hash. Integers of 64 bits and floats have at most some twenty, and
    /// only tuples of -1 and -2 (which have the same) a few more.
    pub const MOST: usize = 128;

    /// Takes a key that a dict or set gets.
    pub fn add(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        if key.is_exact_instance_of::<PyString>() || key.is_exact_instance_of::<PyBytes>() {
            return Ok(()); // nobody can foresee theirs
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

/// An error if too many keys of a list have the same hash; see `_core.pyi`.
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
