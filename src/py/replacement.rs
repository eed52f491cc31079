//! Files that Python writes and that atomically replace others.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::errors::file_error;
use super::watch::Watcher;
#[cfg(unix)]
use crate::base::system::repeated;
use crate::files::sink;

#[pyclass(frozen, module = "treepack._core")]
pub struct Replacement {
    path: PathBuf,
    state: Mutex<Option<sink::Replacement>>,
}

impl Replacement {
    fn with<T>(&self, get: impl FnOnce(&sink::Replacement) -> io::Result<T>) -> PyResult<T> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || io::ErrorKind::NotFound.into();
        let result = state.as_ref().ok_or_else(closed).and_then(get);
        result.map_err(|error| file_error(error.into(), &self.path))
    }

    fn take(&self) -> Option<sink::Replacement> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.take()
    }
}

#[pymethods]
impl Replacement {
    #[new]
    #[pyo3(signature = (path, *, private))]
    fn new(py: Python<'_>, path: PathBuf, private: bool) -> PyResult<Self> {
        let make = || {
            // Here and not at the commit: the directory may be used after this file is discarded.
            make_durable(path.parent().unwrap_or(Path::new("")))?;
            sink::Replacement::begin(&path, private)
        };
        match py.detach(make) {
            Ok(begun) => Ok(Self {
                path,
                state: Mutex::new(Some(begun)),
            }),
            Err(error) => Err(file_error(error, &path)),
        }
    }

    #[getter]
    fn name(&self) -> PyResult<PathBuf> {
        self.with(|new| Ok(new.place().to_path_buf()))
    }

    /// Duplicates the descriptor of the temporary file; on Windows, the handle.
    #[cfg(unix)]
    fn descriptor(&self) -> PyResult<i32> {
        use std::os::fd::IntoRawFd;
        self.with(|new| Ok(repeated(|| new.file().try_clone())?.into_raw_fd()))
    }

    #[cfg(windows)]
    fn descriptor(&self) -> PyResult<usize> {
        use std::os::windows::io::IntoRawHandle;
        self.with(|new| Ok(new.file().try_clone()?.into_raw_handle().addr()))
    }

    #[pyo3(signature = (*, durable))]
    fn complete(&self, py: Python<'_>, durable: bool) -> PyResult<()> {
        let Some(taken) = self.take() else {
            return Ok(());
        };
        let watcher = Watcher::signals();
        let completed = py.detach(|| taken.complete(durable, &watcher));
        completed.map_err(|error| watcher.explain(error, |error| file_error(error, &self.path)))
    }

    fn discard(&self, py: Python<'_>) {
        let taken = self.take();
        py.detach(|| taken.map(sink::Replacement::abandon));
    }
}

#[pyfunction]
pub fn make_directories(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    let result = py.detach(|| make_durable(&path));
    result.map_err(|error| file_error(error.into(), &path))
}

fn make_durable(directory: &Path) -> io::Result<()> {
    let created = sink::make_directories(directory)?;
    created
        .iter()
        .try_for_each(|changed: &PathBuf| sink::sync_directory(changed))
}

/// Removes temporary files of a dead writer.
#[pyfunction]
pub fn remove_if_dead(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    let removed = py.detach(|| sink::remove_if_dead(Path::new(&path)));
    removed.map_err(|error| file_error(error.into(), &path))
}
