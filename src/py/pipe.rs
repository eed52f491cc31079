//! Pipes from a save to Python, without a path: not every system has `/dev/fd`.

use std::fs::File;
use std::io::{self, Read};
#[cfg(unix)]
use std::os::fd::OwnedFd as Owned;
#[cfg(windows)]
use std::os::windows::io::OwnedHandle as Owned;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::memory::new_bytes_at_most;
use super::watch::Watcher;
use crate::base::raw::{Filling, zeroed};
use crate::base::system::{Ready, wait};
use crate::{Error, Result};

#[derive(FromPyObject)]
pub enum Destination {
    Pipe(Py<Pipe>),
    Path(PathBuf),
}

#[pyclass(frozen, module = "treepack._core")]
pub struct Pipe(Mutex<Option<Arc<File>>>);

impl Pipe {
    fn new(end: impl Into<Owned>) -> Self {
        Self(Mutex::new(Some(Arc::new(File::from(end.into())))))
    }

    pub fn file(&self) -> Result<Arc<File>> {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || Error::Io(io::ErrorKind::BrokenPipe.into());
        file.clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Pipe {
    #[staticmethod]
    fn pair() -> PyResult<(Self, Self)> {
        let (reader, writer) = io::pipe()?;
        Ok((Self::new(reader), Self::new(writer)))
    }

    /// Reads up to `most` bytes; fewer only at the end.
    fn read<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyBytes>> {
        const PART: usize = 64 << 10;
        let file = self.file()?;
        let watcher = Watcher::signals();
        let read = new_bytes_at_most(py, most, true, |target| {
            let mut filling = Filling::new(target);
            while filling.left() > 0 {
                wait(&file, &Ready::Input, &watcher)?;
                let read = filling.fill_some(|target| {
                    let part = PART.min(target.len());
                    let target = zeroed(&mut target[..part]);
                    let read = (&*file).read(target)?;
                    Ok(&mut target[..read])
                });
                match read {
                    Ok(0) => break,
                    Err(Error::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => drop(read?),
                }
            }
            Ok(filling.finish())
        })?;
        watcher.raise(read)
    }

    /// Closes the file after its last use.
    fn close(&self) {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(file);
    }
}
