//! Converts core errors to Python exceptions.

use std::io;
use std::path::Path;

use pyo3::exceptions::{PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::hooks::Hooks;
use super::memory::{list_of_results, new_string, new_tuple_of};
use crate::error::Reason;
use crate::{Error, grow};

pub fn make<'py, A>(py: Python<'py>, name: &str, arguments: A) -> PyErr
where
    A: pyo3::call::PyCallArgs<'py>,
{
    made(Hooks::error(py, name).and_then(|class| class.call1(arguments)))
}

/// Makes an exception; a `MemoryError` if allocation fails.
pub fn make_of<const N: usize>(py: Python<'_>, name: &str, text: [&str; N]) -> PyErr {
    let texts = text.map(|it| Ok(new_string(py, it.as_bytes())?.into_any()));
    let texts = texts.into_iter().collect::<PyResult<Vec<_>>>();
    match texts.and_then(|texts| new_tuple_of(py, texts)) {
        Ok(arguments) => make(py, name, arguments),
        Err(error) => error,
    }
}

fn made(result: PyResult<Bound<'_, PyAny>>) -> PyErr {
    result.map_or_else(|error| error, PyErr::from_value)
}

type DecodeArguments<'py> = (
    Bound<'py, PyString>,
    Option<usize>,
    Option<Bound<'py, PyString>>,
);

fn decode_arguments<'py>(
    py: Python<'py>,
    message: &str,
    offset: Option<usize>,
    path: Option<&str>,
) -> PyResult<DecodeArguments<'py>> {
    let path = path.map(|path| new_string(py, path.as_bytes()));
    Ok((
        new_string(py, message.as_bytes())?,
        offset,
        path.transpose()?,
    ))
}

fn decode_error(
    py: Python<'_>,
    class: &str,
    message: &str,
    offset: Option<usize>,
    path: Option<&str>,
) -> PyErr {
    match decode_arguments(py, message, offset, path) {
        Ok(arguments) => make(py, class, arguments),
        Err(error) => error,
    }
}

fn msgpack_error(
    py: Python<'_>,
    class: &str,
    message: &str,
    offset: usize,
    path: Option<&str>,
) -> PyErr {
    made(
        decode_arguments(py, message, Some(offset), path).and_then(|(message, offset, path)| {
            let decode_error = Hooks::get(py)?.decode_error.bind(py);
            decode_error.call1((class, message, offset, path))
        }),
    )
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
    let path = new_string(py, path.as_bytes())?;
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

/// Converts an error; `path` is its place in the tree, unless it has one.
pub fn to_py(py: Python<'_>, error: Error, path: Option<&str>) -> PyErr {
    let (error, known) = error.split();
    if matches!(error, Error::OutOfMemory) {
        // A message would need memory.
        return PyMemoryError::new_err(());
    }
    let known = known.map(|path| path_text(&path));
    let path = known.as_deref().or(path);
    let Ok(message) = grow::display(&Reason(&error)) else {
        return PyMemoryError::new_err(());
    };
    let message = &*message;
    match error {
        Error::Truncated { offset, .. } => {
            decode_error(py, "DecodeError", message, Some(offset), path)
        }
        Error::Malformed { offset, .. } => msgpack_error(py, "FormatError", message, offset, path),
        Error::Trailing { offset, .. } => msgpack_error(py, "ExtraData", message, offset, path),
        Error::TooDeep { offset, .. } => msgpack_error(py, "StackError", message, offset, path),
        Error::Structure(_) => decode_error(py, "DecodeError", message, None, path),
        Error::Newer { .. } => decode_error(py, "NewerVersionError", message, None, path),
        Error::TooLarge { .. } | Error::OutputLimit { .. } | Error::ReservedKey { .. } => {
            make_of(py, "TreepackError", [message])
        }
        Error::BaseMismatch { paths, .. } => base_mismatch(py, message, &paths),
        Error::Torn => make_of(py, "TreepackError", [message]),
        Error::Corrupt { .. } | Error::Overwritten => make_of(py, "CorruptionError", [message]),
        Error::GzipTruncated => make_of(py, "GzipTruncatedError", [message]),
        Error::Gzip(_) => make_of(py, "GzipCorruptionError", [message]),
        Error::Payload(error) => match error.downcast::<PyErr>() {
            Ok(raised) => *raised,
            Err(other) => PyRuntimeError::new_err(other.to_string()),
        },
        Error::NotDurable(error) => os_error(&error, Some(message), None),
        Error::Io(error) => os_error(&error, None, None),
        _ => PyValueError::new_err(message.to_owned()),
    }
}

fn base_mismatch(py: Python<'_>, message: &str, paths: &[crate::Path]) -> PyErr {
    let paths = paths.iter();
    let paths = paths.map(|path| new_string(py, path_text(path).as_bytes()));
    let arguments = list_of_results(py, paths)
        .and_then(|paths| Ok((new_string(py, message.as_bytes())?, paths)));
    match arguments {
        Ok(arguments) => make(py, "BaseMismatchError", arguments),
        Err(error) => error,
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
        let known = || {
            let text = py.import("os")?.call_method1("strerror", (number,))?;
            text.extract::<String>()
        };
        let text = match text {
            Some(text) => text.to_owned(),
            None => known().unwrap_or_else(|_| error.to_string()),
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
