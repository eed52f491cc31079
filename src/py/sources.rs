//! Sources whose bytes Python holds, returns or names.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::layout::Layout;
use super::memory::Borrowed;
use crate::catalog::Compared;
use crate::raw::{AsRaw, Filling, RawBytes, Uninit};
use crate::source::Source;
use crate::{Error, Result};

impl Source for Borrowed {
    fn len(&self) -> usize {
        self.as_raw().len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.as_raw().read_at(offset, target)
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(self.as_raw())
    }

    fn stable(&self) -> Option<&[u8]> {
        self.as_stable()
    }
}

/// Bytes from a Python function, which takes an offset and a length, and returns a buffer of 1 to
/// `length` bytes.
pub struct Elsewhere {
    pub read: Py<PyAny>,
    pub len: usize,
    pub near: usize,
}

impl Source for Elsewhere {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let len = target.len();
        let mut filling = Filling::new(target);
        while filling.left() > 0 {
            let done = len - filling.left();
            let found = Python::attach(|py| {
                let found = self.read.bind(py).call1((offset + done, len - done))?;
                let found = Borrowed::buffer(&found)?;
                let count = found.as_raw().len();
                if count == 0 || count > len - done {
                    let reason =
                        format!("read returned {count} bytes, expected 1 to {}", len - done);
                    return Err(PyValueError::new_err(reason));
                }
                Ok(found)
            });
            // The copy to `target` runs detached.
            let found = found.map_err(|error| Error::Payload(Box::new(error)))?;
            let bytes = found.as_raw();
            filling.fill(bytes.len(), |now| bytes.read_at(0, now))?;
        }
        Ok(filling.finish())
    }

    fn near(&self) -> usize {
        self.near
    }
}

/// A layout as a source: reads its arrays where they lie.
pub struct Laid {
    pub layout: Py<Layout>,
    pub near: usize,
}

impl Source for Laid {
    fn len(&self) -> usize {
        self.layout.get().output.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.layout.get().output.read_at(offset, target)
    }

    fn near(&self) -> usize {
        self.near
    }
}

/// A leaf that is compared with its checksum during its copy, and the name of its file.
pub struct Copied(pub Compared, pub Option<String>);

impl Copied {
    /// Adds the name of the source file, because callers name the file that they write.
    fn named(&self, error: Error) -> PyErr {
        let error = PyErr::from(error);
        // Best effort: out of memory, the error has no name.
        let _ = Python::attach(|py| error.value(py).setattr("filename", &self.1));
        error
    }
}

impl Source for Copied {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let read = self.0.read_at(offset, target);
        read.map_err(|error| match error {
            Error::Corrupt { .. } => Error::Payload(Box::new(self.named(error))),
            error => error,
        })
    }

    fn run(&self, offset: usize) -> usize {
        self.0.run(offset)
    }

    fn present(&self, range: Range<usize>) -> usize {
        self.0.present(range)
    }

    fn near(&self) -> usize {
        self.0.near()
    }
}
