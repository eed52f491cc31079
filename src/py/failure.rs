//! Failures of a walk, with their paths.

use std::fmt;

use pyo3::exceptions::{PyException, PyOverflowError, PyUnicodeEncodeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::errors;
use super::hooks::Hooks;
use super::memory::new_string;
use crate::base::error::Path;
use crate::{Error, base::grow};

pub struct Failure {
    cause: Cause,
    path: Path,
}

enum Cause {
    Core(Error),
    Raised(PyErr),
    Leaf(String),
    Tree(String),
    Overflow(&'static str),
    /// An exception from code of a node's type.
    Node(String, PyErr),
}

/// The result of a step of a walk. Boxed, because each level of the recursion holds one.
pub type Walked<T = ()> = Result<T, Box<Failure>>;

pub type Built<'py> = Walked<Bound<'py, PyAny>>;

impl Failure {
    fn new(cause: Cause) -> Box<Self> {
        let path = Path::default();
        Box::new(Self { cause, path })
    }

    pub fn leaf(why: impl Into<String>) -> Box<Self> {
        Self::new(Cause::Leaf(why.into()))
    }

    pub fn tree(why: impl Into<String>) -> Box<Self> {
        Self::new(Cause::Tree(why.into()))
    }

    pub fn structure(reason: impl Into<String>) -> Box<Self> {
        let reason = format!("the record does not match the tree: {}", reason.into());
        Self::new(Cause::Core(Error::Structure(reason)))
    }

    pub fn overflow(why: &'static str) -> Box<Self> {
        Self::new(Cause::Overflow(why))
    }

    pub fn node(name: &str, error: PyErr) -> Box<Self> {
        Self::new(Cause::Node(name.into(), error))
    }

    pub fn below(mut self: Box<Self>, key: impl AsRef<str>) -> Box<Self> {
        self.path.push_outer(key);
        self
    }

    pub fn push_outer(&mut self, key: String) {
        self.path.push_outer(key);
    }

    pub fn without_path(mut self: Box<Self>) -> Box<Self> {
        self.path = Path::default();
        self
    }

    /// Converts to an exception; adds the path to a message of ours.
    pub fn into_py_at(self, py: Python<'_>, doing: &str) -> PyErr {
        let path = errors::path_text(&self.path);
        let Cause::Raised(error) = &self.cause else {
            return self.into_py(py, doing);
        };
        let has_path = error
            .value(py)
            .getattr("path")
            .is_ok_and(|value| !value.is_none());
        if has_path {
            return self.into_py(py, doing);
        }
        match errors::placed(py, error, &path) {
            Ok(Some(placed)) => placed,
            Ok(None) => self.into_py(py, doing),
            Err(error) => error,
        }
    }

    pub fn must_be_raised(&self, py: Python<'_>) -> bool {
        self.raised()
            .is_some_and(|error| !error.is_instance_of::<PyException>(py))
    }

    pub fn place_and_reason(&self, py: Python<'_>) -> (String, String) {
        let why = match &self.cause {
            Cause::Core(error) => error.to_string(),
            Cause::Leaf(why) | Cause::Tree(why) => why.clone(),
            Cause::Node(name, error) => format!("{name}: {error}"),
            Cause::Overflow(why) => (*why).into(),
            Cause::Raised(error) => {
                let class = errors::type_name(&error.get_type(py));
                format!("{class}: {}", error.value(py))
            }
        };
        (errors::path_text(&self.path), why)
    }

    pub fn map_core(mut self: Box<Self>, other: impl FnOnce(Error) -> Error) -> Box<Self> {
        self.cause = match self.cause {
            Cause::Core(error) => Cause::Core(other(error)),
            cause => cause,
        };
        self
    }

    pub fn raised(&self) -> Option<&PyErr> {
        match &self.cause {
            Cause::Raised(error) => Some(error),
            _ => None,
        }
    }

    pub fn into_py(self, py: Python<'_>, doing: &str) -> PyErr {
        let path = errors::path_text(&self.path);
        let cause = match self.cause {
            Cause::Core(error @ Error::TooLarge { .. }) => Cause::Tree(error.to_string()),
            cause => cause,
        };
        match cause {
            Cause::Core(error) => errors::to_py(py, error, Some(&path)),
            Cause::Leaf(why) => errors::make(py, "UnserializableLeafError", [&why, &path]),
            Cause::Tree(why) => match grow::display(&format_args!("at {path}: {why}")) {
                Ok(text) => errors::make(py, "TreepackError", [&text]),
                Err(error) => error.into(),
            },
            Cause::Node(name, cause) => {
                let reason = format!("a node of the type {name} cannot be made: {cause}");
                let error = errors::to_py(py, Error::Structure(reason), Some(&path));
                error.set_cause(py, Some(cause));
                error
            }
            Cause::Overflow(why) => match shown(py, "at ", &path, format_args!(": {why}")) {
                Ok(text) => PyOverflowError::new_err(text.unbind()),
                Err(error) => error,
            },
            Cause::Raised(error) => {
                let value = error.value(py);
                // Best effort: the exception is complete without it.
                let _ = if error.is_instance_of::<PyUnicodeEncodeError>(py) {
                    value.getattr("reason").and_then(|why| {
                        let start = format!("{why} (at ");
                        value.setattr("reason", shown(py, &start, &path, format_args!(")"))?)
                    })
                } else if path != "." {
                    let start = format!("treepack: while {doing} ");
                    let note = shown(py, &start, &path, format_args!(""));
                    note.and_then(|note| value.call_method1("add_note", (note,)).map(drop))
                } else {
                    Ok(())
                };
                error
            }
        }
    }
}

fn shown<'py>(
    py: Python<'py>,
    start: &str,
    path: &str,
    end: fmt::Arguments<'_>,
) -> PyResult<Bound<'py, PyString>> {
    let path = new_string(py, path)?;
    let path = Hooks::get(py)?.printable.bind(py).call1((path,))?;
    let path = path.cast::<PyString>()?.to_str()?;
    let text = grow::display(&format_args!("{start}{path}{end}"))?;
    new_string(py, &text)
}

// Out of line: a recursion whose frames hold an error of either kind needs twice the stack.

impl From<Error> for Box<Failure> {
    #[cold]
    #[inline(never)]
    fn from(error: Error) -> Self {
        let (error, path) = error.split();
        let cause = match error {
            Error::ReservedKey { .. } => Cause::Tree(error.to_string()),
            error => Cause::Core(error),
        };
        let path = path.unwrap_or_default();
        Box::new(Failure { cause, path })
    }
}

macro_rules! raised {
    ($($error:ty,)*) => {$(
        impl From<$error> for Box<Failure> {
            #[cold]
            #[inline(never)]
            fn from(error: $error) -> Self {
                Failure::new(Cause::Raised(error.into()))
            }
        }
    )*};
}
raised!(PyErr, pyo3::CastError<'_, '_>, pyo3::CastIntoError<'_>,);
