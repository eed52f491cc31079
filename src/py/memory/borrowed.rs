//! Borrows memory of Python objects, which stay alive.

use std::mem::ManuallyDrop;
use std::ops::Range;

use numpy::PyUntypedArray;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString};

use super::arrays::{ArrayParts, Owned};
use crate::base::raw::{AsRaw, RawBytes};

/// Borrowed bytes, and the object that keeps them in place.
pub struct Borrowed {
    owner: Py<PyAny>,
    start: *const u8,
    len: usize,
    /// Whether they never change.
    stable: bool,
}

// SAFETY: the pointer is only read from; `owner` is a `Py`, which any thread may take and drop.
unsafe impl Send for Borrowed {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Borrowed {}

impl AsRaw for Borrowed {
    #[inline]
    fn as_raw(&self) -> RawBytes<'_> {
        // SAFETY: `start` and `len` describe memory that stays valid while `owner` lives, as all
        // constructors check.
        unsafe { RawBytes::new(self.start, self.len) }
    }
}

impl Borrowed {
    /// Borrows the elements of a C-contiguous array.
    #[inline]
    pub fn array(array: &Bound<'_, PyUntypedArray>) -> Self {
        let parts = ArrayParts::of(array);
        let memory = parts.memory();
        Self {
            owner: array.clone().into_any().unbind(),
            start: memory.as_ptr(),
            len: memory.len(),
            stable: false,
        }
    }

    pub fn bytes(bytes: &Bound<'_, PyBytes>) -> Self {
        Self::stable(bytes.as_any(), bytes.as_bytes())
    }

    /// Borrows the UTF-8 form of a string, which never changes.
    pub fn string(string: &Bound<'_, PyString>) -> PyResult<Self> {
        Ok(Self::stable(string.as_any(), string.to_str()?.as_bytes()))
    }

    fn stable(owner: &Bound<'_, PyAny>, content: &[u8]) -> Self {
        Self {
            owner: owner.clone().unbind(),
            start: content.as_ptr(),
            len: content.len(),
            stable: true,
        }
    }

    pub fn buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            return Ok(Self::bytes(bytes));
        }
        let export = exported_by(object)?;
        if !export.is_c_contiguous() {
            return Err(PyTypeError::new_err(
                "the buffer must be contiguous: pass bytes(...) of it",
            ));
        }
        Self::export(object.py(), export)
    }

    /// Borrows a contiguous buffer, and keeps its export.
    pub fn export(py: Python<'_>, export: PyUntypedBuffer) -> PyResult<Self> {
        let memory = exported(&export);
        Ok(Self {
            start: memory.as_ptr(),
            len: memory.len(),
            owner: Py::new(py, Export::new(py, export))?.into_any(),
            stable: false,
        })
    }

    pub fn owner<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.owner.bind(py)
    }

    pub fn owned<'a, 'py>(&'a self, py: Python<'py>) -> Owned<'a, 'py> {
        Owned::new(self.as_raw(), self.owner(py))
    }

    /// Returns the owner, for threads that are not attached to Python.
    pub fn unbound(&self) -> &Py<PyAny> {
        &self.owner
    }

    /// Returns the bytes, if they never change.
    pub fn as_stable(&self) -> Option<&[u8]> {
        // SAFETY: as for `as_raw`; besides, the content of these objects never changes.
        let bytes = || unsafe { std::slice::from_raw_parts(self.start, self.len) };
        self.stable.then(bytes)
    }

    #[inline]
    pub fn part(&self, py: Python<'_>, range: Range<usize>) -> Self {
        let part = self.as_raw().slice(range);
        Self {
            start: part.as_ptr(),
            len: part.len(),
            owner: self.owner.clone_ref(py),
            stable: self.stable,
        }
    }
}

pub fn exported_by(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    match PyUntypedBuffer::get(object) {
        // Arrays of ctypes leave out the strides, which a memoryview adds.
        Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
            PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any())
        }
        export => export,
    }
}

pub fn exported(export: &PyUntypedBuffer) -> RawBytes<'_> {
    assert!(export.is_c_contiguous());
    // SAFETY: a contiguous buffer has `len_bytes` bytes at `buf_ptr`, valid until the export is
    // released.
    unsafe { RawBytes::new(export.buf_ptr().cast_const().cast(), export.len_bytes()) }
}

/// The export of a buffer, released with this object: the base of arrays over its memory.
#[pyclass(frozen, module = "treepack._core")]
pub struct Export {
    /// The exporter, by the reference of the export; `None` for a `memoryview`, which Python must
    /// not clear before the buffer is released: then releasing it would be a segmentation fault.
    exporter: Option<ManuallyDrop<Py<PyAny>>>,
    _buffer: PyUntypedBuffer,
}

impl Export {
    fn new(py: Python<'_>, buffer: PyUntypedBuffer) -> Self {
        let exporter = buffer
            .obj(py)
            .filter(|exporter| !exporter.is_instance_of::<PyMemoryView>());
        // SAFETY: the buffer holds this reference until it is released, with this object.
        // `ManuallyDrop` keeps the copy from releasing it, too.
        let exporter = exporter.map(|exporter| unsafe {
            ManuallyDrop::new(Bound::from_owned_ptr(py, exporter.as_ptr()).unbind())
        });
        Self {
            exporter,
            _buffer: buffer,
        }
    }
}

#[pymethods]
impl Export {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.exporter {
            Some(exporter) => visit.call(&**exporter),
            None => Ok(()),
        }
    }
}
