//! Converts core errors to Python exceptions.

use std::io;
use std::path::Path;

use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::hooks::Hooks;
use super::memory::{Item, list_of, new_string, new_tuple};
use crate::base::error::Reason;
use crate::{Error, base::grow};

/// Makes an exception; a `MemoryError` if allocation fails.
pub fn make<'py, const N: usize>(
    py: Python<'py>,
    name: &str,
    arguments: [&dyn Item<'py>; N],
) -> PyErr {
    new_error(py, Hooks::error(py, name), arguments)
}

fn new_error<'py, const N: usize>(
    py: Python<'py>,
    class: PyResult<Bound<'py, PyAny>>,
    arguments: [&dyn Item<'py>; N],
) -> PyErr {
    let instance = class.and_then(|class| class.call1(new_tuple(py, &arguments)?));
    instance.map_or_else(|error| error, PyErr::from_value)
}

/// `…` if allocation fails.
pub fn path_text(path: &crate::Path) -> String {
    grow::display(path).unwrap_or_else(|_| "…".into())
}

pub fn placed(py: Python<'_>, error: &PyErr, path: &str) -> PyResult<Option<PyErr>> {
    if !is(py, error, "DecodeError") {
        return Ok(None);
    }
    let value = error.value(py);
    let is_unregistered = is(py, error, "UnregisteredTypeError");
    let second = if is_unregistered { "name" } else { "offset" };
    let path = new_string(py, path)?;
    let arguments = (value.getattr("message")?, value.getattr(second)?, path);
    let placed = PyErr::from_value(error.get_type(py).call1(arguments)?);
    placed.set_cause(py, error.cause(py));
    Ok(Some(placed))
}

/// `name` is a class of `treepack.errors`.
pub fn is(py: Python<'_>, error: &PyErr, name: &str) -> bool {
    // Out of memory, looking up the class may fail.
    !error.is_instance_of::<PyMemoryError>(py)
        && Hooks::error(py, name).is_ok_and(|class| error.is_instance(py, &class))
}

/// Ours, out of memory, or not an `Exception`.
pub fn stays(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<PyMemoryError>(py)
        || !error.is_instance_of::<PyException>(py)
        || is(py, error, "TreepackError")
}

/// Converts an error; `path` is its place in the tree, unless it has one.
pub fn to_py(py: Python<'_>, error: Error, path: Option<&str>) -> PyErr {
    let (error, own_path) = error.split();
    if matches!(error, Error::OutOfMemory) {
        // A message would need memory.
        return PyMemoryError::new_err(());
    }
    let own_path = own_path.map(|path| path_text(&path));
    let path = own_path.as_deref().or(path);
    let Ok(message) = grow::display(&Reason(&error)) else {
        return PyMemoryError::new_err(());
    };
    let plain = |class| make(py, class, [&message]);
    let decode = |class, offset: Option<usize>| make(py, class, [&message, &offset, &path]);
    let msgpack = |class: &str, offset: usize| {
        let hook = Hooks::get(py)
            .and_then(|hooks| hooks.msgpack.bind(py).getattr(intern!(py, "decode_error")));
        new_error(py, hook, [&class, &message, &offset, &path])
    };
    match error {
        Error::Truncated { offset, .. } => decode("DecodeError", Some(offset)),
        Error::Malformed { offset, .. } => msgpack("FormatError", offset),
        Error::Trailing { offset, .. } => msgpack("ExtraData", offset),
        Error::TooDeep { offset, .. } => msgpack("StackError", offset),
        Error::Structure(_) => decode("DecodeError", None),
        Error::Newer { .. } => decode("NewerVersionError", None),
        Error::TooLarge { .. }
        | Error::OutputLimit { .. }
        | Error::ReservedKey { .. }
        | Error::Torn => plain("TreepackError"),
        Error::BaseMismatch { paths, .. } => list_of(py, paths.iter().map(path_text)).map_or_else(
            |error| error,
            |paths| make(py, "BaseMismatchError", [&message, &paths]),
        ),
        Error::Corrupt(_) | Error::Overwritten => plain("CorruptionError"),
        Error::GzipTruncated => plain("GzipTruncatedError"),
        Error::Gzip(_) => plain("GzipCorruptionError"),
        Error::Payload(error) => match error.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(other) => PyRuntimeError::new_err(other.to_string()),
        },
        Error::NotDurable(error) => os_error(&error, Some(&message), None),
        Error::Io(error) => os_error(&error, None, None),
        _ => PyValueError::new_err(message),
    }
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        Python::attach(|py| to_py(py, error, None))
    }
}

pub fn file_error(error: Error, path: &Path) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Io(error) => os_error(&error, None, Some(path)),
        Error::NotDurable(error) => os_error(&error, Some(&message), Some(path)),
        other => other.into(),
    }
}

/// An `OSError`, of the subclass that `open` raises for the number.
fn os_error(error: &io::Error, text: Option<&str>, path: Option<&Path>) -> PyErr {
    let Some(number) = error.raw_os_error() else {
        // For example a path with a zero byte.
        return match error.kind() {
            io::ErrorKind::InvalidInput => PyValueError::new_err(error.to_string()),
            _ => PyOSError::new_err(error.to_string()),
        };
    };
    Python::attach(|py| {
        let strerror = || {
            let text = py.import("os")?.call_method1("strerror", (number,))?;
            text.extract::<String>()
        };
        let text = match text {
            Some(text) => text.to_owned(),
            None => strerror().unwrap_or_else(|_| error.to_string()),
        };
        match path {
            Some(path) => PyOSError::new_err((number, text, path.as_os_str().to_owned())),
            None => PyOSError::new_err((number, text)),
        }
    })
}

pub fn type_name(class: &Bound<'_, PyType>) -> String {
    class
        .fully_qualified_name()
        .map_or_else(|_| "object".into(), |name| name.to_string())
}
