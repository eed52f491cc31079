//! Core errors as Python exceptions, each made in one place.

use std::path::Path;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::Error;

/// A class of `treepack.errors`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    MODULE
        .get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("treepack.errors")?.into_any().unbind())
        })?
        .bind(py)
        .getattr(name)
}

/// An exception of a class of `treepack.errors`, made from `arguments`.
pub fn make<'py, A>(py: Python<'py>, name: &str, arguments: A) -> PyErr
where
    A: pyo3::call::PyCallArgs<'py>,
{
    match class(py, name).and_then(|class| class.call1(arguments)) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Whether an exception is one of a class of `treepack.errors`.
pub fn is(py: Python<'_>, error: &PyErr, name: &str) -> bool {
    class(py, name).is_ok_and(|class| error.is_instance(py, &class))
}

/// The exception for `error`; `path` is where in the tree it happened, if known.
pub fn to_py(py: Python<'_>, error: Error, path: Option<&str>) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Truncated { offset, .. }
        | Error::Malformed { offset, .. }
        | Error::TooDeep { offset } => make(py, "DecodeError", (message, offset, path)),
        Error::Structure(_) => make(py, "DecodeError", (message, None::<usize>, path)),
        Error::TooLarge { .. } | Error::OutputLimit { .. } => make(py, "TreepackError", (message,)),
        Error::Stopped | Error::Option(_) => PyValueError::new_err(message),
        Error::GzipTruncated => make(py, "GzipTruncatedError", (message,)),
        Error::Gzip(_) => make(py, "GzipError", (message,)),
        Error::Io(error) => os_error(&error, None),
    }
}

/// The exception for an error in working on the file at `path`.
pub fn file_error(py: Python<'_>, error: Error, path: &Path) -> PyErr {
    match error {
        Error::Io(error) => os_error(&error, Some(path)),
        other => to_py(py, other, None),
    }
}

/// An `OSError` of the subclass that belongs to the error number, as `open` raises it.
fn os_error(error: &std::io::Error, path: Option<&Path>) -> PyErr {
    let Some(number) = error.raw_os_error() else {
        return PyOSError::new_err(error.to_string());
    };
    Python::attach(|py| {
        let text = py
            .import("os")
            .and_then(|os| os.call_method1("strerror", (number,)))
            .and_then(|text| text.extract::<String>())
            .unwrap_or_else(|_| error.to_string());
        match path {
            Some(path) => PyOSError::new_err((number, text, path.as_os_str().to_owned())),
            None => PyOSError::new_err((number, text)),
        }
    })
}

/// The path to a place in a tree, as `current_path` has it, from the keys that were
/// collected on the way up from there.
pub fn path_to(keys: &[String]) -> String {
    let root = std::iter::once(".");
    let path: Vec<&str> = root.chain(keys.iter().rev().map(String::as_str)).collect();
    path.join("/")
}

/// The name of a type, with its module unless that is `builtins`.
pub fn type_name(class: &Bound<'_, PyType>) -> String {
    class
        .fully_qualified_name()
        .map_or_else(|_| "object".into(), |name| name.to_string())
}
