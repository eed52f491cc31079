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
const MAX_CACHED: usize = 64;

static CACHE: Mutex<Cache> = Mutex::new(Cache {
    dtypes: Vec::new(),
    names: Vec::new(),
});

struct Cache {
    dtypes: Vec<Arc<Dtype>>,
    /// Names in files, several per dtype.
    names: Vec<(Box<[u8]>, Arc<Dtype>)>,
}

impl Dtype {
    pub fn of(object: &Bound<'_, PyArrayDescr>) -> Walked<Arc<Self>> {
        if let Some(dtype) = Self::known(object)? {
            return Ok(dtype);
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
        let cache = lock();
        if let Some((_, dtype)) = cache.names.iter().find(|(key, _)| **key == *name) {
            return Ok(Some(dtype.clone()));
        }
        drop(cache);
        let dtype = Self::described(copied(py, name)?.as_any())?;
        if let Some(dtype) = &dtype {
            remember(|cache| &mut cache.names, (name.into(), dtype.clone()));
        }
        Ok(dtype)
    }

    fn known(object: &Bound<'_, PyArrayDescr>) -> PyResult<Option<Arc<Self>>> {
        let cache = lock();
        if let Some(dtype) = cache.dtypes.iter().find(|dtype| dtype.object.is(object)) {
            return Ok(Some(dtype.clone()));
        }
        drop(cache);
        Self::described(object.as_any())
    }

    /// `None` if files cannot hold the dtype, or the dtype of this name.
    fn described(dtype_or_name: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Self>>> {
        type Described<'py> = (Bound<'py, PyArrayDescr>, String, bool);
        let describe = Hooks::get(dtype_or_name.py())?
            .dtype
            .bind(dtype_or_name.py());
        let described: Option<Described<'_>> = describe.call1((dtype_or_name,))?.extract()?;
        let Some((object, name, native)) = described else {
            return Ok(None);
        };
        let dtype = Arc::new(Self {
            name,
            native,
            itemsize: object.itemsize(),
            alignment: object.alignment().max(1),
            object: object.unbind(),
        });
        remember(|cache| &mut cache.dtypes, dtype.clone());
        Ok(Some(dtype))
    }
}

fn lock() -> MutexGuard<'static, Cache> {
    CACHE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn remember<T>(list: impl FnOnce(&mut Cache) -> &mut Vec<T>, new: T) {
    let mut cache = lock();
    let list = list(&mut cache);
    let older = if list.len() == MAX_CACHED {
        std::mem::take(list)
    } else {
        Vec::new()
    };
    list.push(new);
    drop(cache);
    drop(older); // dropping a dtype can call Python
}
