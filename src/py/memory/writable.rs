//! Writing to a buffer of the caller.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use super::detached::detached;
use crate::raw::RawBytes;

/// Memory of a caller that is to be written.
pub struct Writable {
    /// Keeps the memory where it is.
    _export: PyUntypedBuffer,
    start: *mut MaybeUninit<u8>,
    len: usize,
}

impl Writable {
    /// The memory of any object with a contiguous buffer that can be written.
    pub fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let export = PyUntypedBuffer::get(object)?;
        if export.readonly() || !export.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer must be writable and contiguous",
            ));
        }
        let len = export.len_bytes();
        // Where there are no bytes, the exporter need not have an address for them.
        let start = match len {
            0 => NonNull::dangling().as_ptr(),
            _ => export.buf_ptr().cast(),
        };
        Ok(Self {
            start,
            len,
            _export: export,
        })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// All of it.
    pub fn memory(&self) -> RawBytes<'_> {
        // SAFETY: the export keeps `len` bytes at `start` valid as long as this lives.
        unsafe { RawBytes::new(self.start.cast_const().cast(), self.len) }
    }

    /// Lets `fill` write to a range; it runs detached if there is much to write, or always.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn fill<T: Send>(
        &mut self,
        py: Python<'_>,
        range: Range<usize>,
        always_detached: bool,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> T + Send,
    ) -> T {
        // SAFETY: the export keeps `len` writable bytes at `start` valid. They are only
        // written here; who else uses them meanwhile gets a mix of old and new bytes:
        // see the policy in `memory`.
        let memory = unsafe { slice::from_raw_parts_mut(self.start, self.len) };
        let memory = &mut memory[range];
        detached(py, memory.len(), always_detached, || fill(memory))
    }
}
