//! Writes to a caller's buffer.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

use super::borrowed::exported_by;
use super::detached::detached;
use crate::base::raw::{RawBytes, Uninit};

pub struct Writable {
    /// Keeps the memory in place.
    _export: PyUntypedBuffer,
    start: *mut MaybeUninit<u8>,
    len: usize,
}

impl Writable {
    pub fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let export = exported_by(object)?;
        if export.readonly() || !export.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer must be writable and contiguous, such as a bytearray: the tree comes \
                 first, then the buffer",
            ));
        }
        let len = export.len_bytes();
        // The address of an empty buffer may be null.
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

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn position(&self, offset: i64) -> PyResult<usize> {
        let position = usize::try_from(offset).ok();
        position.filter(|at| *at <= self.len).ok_or_else(|| {
            PyValueError::new_err(format!(
                "offset must be from 0 to the length of the buffer, {}, got {offset}",
                self.len
            ))
        })
    }

    pub fn memory(&self) -> RawBytes<'_> {
        // SAFETY: the export keeps `len` bytes at `start` valid as long as this lives.
        unsafe { RawBytes::new(self.start.cast_const().cast(), self.len) }
    }

    /// Lets `fill` write to a range; runs it detached if `always_detached`, or if the range is
    /// large.
    pub fn fill<T: Send>(
        &mut self,
        py: Python<'_>,
        range: Range<usize>,
        always_detached: bool,
        fill: impl FnOnce(&mut Uninit) -> T + Send,
    ) -> T {
        // SAFETY: the export keeps `len` writable bytes at `start` valid. They are only written
        // here; other code that uses them now gets a mix of old and new bytes (see the policy in
        // `memory`).
        let memory = unsafe { slice::from_raw_parts_mut(self.start, self.len) };
        let memory = &mut memory[range];
        detached(py, memory.len(), always_detached, || fill(memory))
    }

    /// Lets `edit` read and write a range; runs it detached if the range is large.
    pub fn edit<T: Send>(
        &mut self,
        py: Python<'_>,
        range: Range<usize>,
        edit: impl FnOnce(&mut [u8]) -> T + Send,
    ) -> T {
        self.fill(py, range, false, |memory| {
            // SAFETY: all bytes of a Python buffer are initialised. The caller keeps others from
            // writing to them now (see the policy in `memory`).
            edit(unsafe { memory.assume_init_mut() })
        })
    }
}
