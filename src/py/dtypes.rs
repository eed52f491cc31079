//! Dtypes, described by Python once per process.

use std::sync::{Arc, Mutex, MutexGuard};

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

use super::failure::{Failure, Walked};
use super::hooks::Hooks;
use super::memory::copied;

pub struct Dtype {
    pub object: Py<PyArrayDescr>,
    pub name: String,
    pub itemsize: usize,
    pub alignment: usize,
    /// Whether files have the same byte order.
    pub native: bool,
}

/// A program has few dtypes, but may have many objects of one.
const MAX_KNOWN: usize = 64;

static KNOWN: Mutex<Known> = Mutex::new(Known {
    dtypes: Vec::new(),
    names: Vec::new(),
});

struct Known {
    dtypes: Vec<Arc<Dtype>>,
    /// Names in files, several per dtype.
    names: Vec<(Box<[u8]>, Arc<Dtype>)>,
}

impl Dtype {
    pub fn of(object: &Bound<'_, PyArrayDescr>) -> Walked<Arc<Self>> {
        if let Some(found) = Self::described(object)? {
            return Ok(found);
        }
        let has_fields = !object.getattr("names")?.is_none();
        let or_fields = if has_fields {
            ", or its fields as a dict: {name: array[name] for name in array.dtype.names}"
        } else {
            ""
        };
        Err(Failure::leaf(format!(
            "cannot serialize an array of dtype {}: only numeric, boolean and date dtypes \
             can be stored; save its .tolist(){or_fields}",
            object.repr()?
        )))
    }

    pub fn named(py: Python<'_>, name: &[u8]) -> PyResult<Option<Arc<Self>>> {
        let known = lock();
        if let Some((_, found)) = known.names.iter().find(|(known, _)| **known == *name) {
            return Ok(Some(found.clone()));
        }
        drop(known);
        let resolve = Hooks::get(py)?.resolve_dtype.bind(py);
        let object = resolve.call1((copied(py, name)?,))?;
        if object.is_none() {
            return Ok(None);
        }
        let found = Self::described(&object.cast_into()?)?;
        if let Some(found) = &found {
            remember(|known| &mut known.names, (name.into(), found.clone()));
        }
        Ok(found)
    }

    /// `None` if files cannot hold the dtype.
    fn described(object: &Bound<'_, PyArrayDescr>) -> PyResult<Option<Arc<Self>>> {
        let known = lock();
        if let Some(found) = known.dtypes.iter().find(|known| known.object.is(object)) {
            return Ok(Some(found.clone()));
        }
        drop(known);
        let describe = Hooks::get(object.py())?.describe_dtype.bind(object.py());
        let (name, native): (Option<String>, bool) = describe.call1((object,))?.extract()?;
        let Some(name) = name else {
            return Ok(None);
        };
        let found = Arc::new(Self {
            name,
            native,
            itemsize: object.itemsize(),
            alignment: object.alignment().max(1),
            object: object.clone().unbind(),
        });
        remember(|known| &mut known.dtypes, found.clone());
        Ok(Some(found))
    }
}

fn lock() -> MutexGuard<'static, Known> {
    KNOWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn remember<T>(list: impl FnOnce(&mut Known) -> &mut Vec<T>, new: T) {
    let mut known = lock();
    let list = list(&mut known);
    let older = if list.len() == MAX_KNOWN {
        std::mem::take(list)
    } else {
        Vec::new()
    };
    list.push(new);
    drop(known);
    drop(older); // dropping a dtype can call Python
}
