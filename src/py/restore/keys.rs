//! Dicts of keys, and paths of them.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::memory::new_dict;
use crate::error::Path;

/// A dict with these keys, as many as there are children.
#[inline(never)] // what calls this is recursive
pub(super) fn dict_of<'py>(
    py: Python<'py>,
    keys: impl Iterator<Item = Bound<'py, PyAny>>,
    children: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = new_dict(py)?;
    for (key, child) in keys.zip(children) {
        dict.set_item(key, child)?;
    }
    Ok(dict)
}

/// How the place that keys lead to is written.
pub(super) fn path_text(keys: &[Bound<'_, PyAny>]) -> String {
    let mut path = Path::default();
    for key in keys.iter().rev() {
        path.push_outer(key.to_string());
    }
    path.to_string()
}
