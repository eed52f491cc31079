//! `bytes` objects that are filled after they were made, without a zeroing pass.

use std::mem::MaybeUninit;
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::create::created;
use super::detached::detached;
use super::pages::advise_huge;
use crate::raw::Filling;
use crate::watch::Watch;
use crate::{Error, Result, parallel};

/// Less than this is not fresh memory from the system, but may have been touched before.
const MIN_FRESH_BYTES: usize = 1 << 20;

/// A new `bytes` object of `len` bytes that `fill` writes and returns, or its error. It runs
/// detached if there is much to write, or always.
///
/// # Panics
/// If `fill` returns other bytes.
pub fn new_bytes(
    py: Python<'_>,
    len: usize,
    always_detached: bool,
    fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]> + Send,
) -> PyResult<Result<Bound<'_, PyBytes>>> {
    let (bytes, filled) = filled(py, len, always_detached, |content| {
        Filling::new(content).fill(len, fill)
    })?;
    Ok(filled.map(|()| bytes))
}

/// A new `bytes` object, and what `fill` tells. It is whole only if `fill` succeeded.
fn filled<T: Send>(
    py: Python<'_>,
    len: usize,
    always_detached: bool,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> T + Send,
) -> PyResult<(Bound<'_, PyBytes>, T)> {
    let size = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: a null pointer asks for an object with uninitialised content. It
    // is owned by us alone, and an error comes back as a null pointer.
    let bytes = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        created(py, object)?.cast_into_unchecked::<PyBytes>()
    };
    // SAFETY: the object is fresh, so nobody else reads or writes its `len` bytes.
    let content = unsafe {
        let start = ffi::PyBytes_AsString(bytes.as_ptr());
        slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len)
    };
    advise_huge(content);
    let told = detached(py, len, always_detached, || fill(content));
    Ok((bytes, told))
}

/// A new `bytes` object of `len` bytes that `fill` writes in another thread and returns, or nothing.
/// If `watch` says so, nobody waits for it any more, and the object goes when it is done.
///
/// # Panics
/// If `fill` returns other bytes.
pub fn new_bytes_elsewhere<'py>(
    py: Python<'py>,
    len: usize,
    watch: &dyn Watch,
    fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Option<&'t mut [u8]> + Send + 'static,
) -> PyResult<Result<Option<Bound<'py, PyBytes>>>> {
    let (bytes, start) = filled(py, len, false, |content| Start(content.as_mut_ptr()))?;
    let content = (bytes.clone().unbind(), start);
    let work = move || {
        let (_owner, start) = content;
        let start: Start = start;
        // SAFETY: the object, which `_owner` keeps, is fresh, and nobody else reads or writes its
        // `len` bytes before this is done.
        let memory = unsafe { slice::from_raw_parts_mut(start.0, len) };
        let filled = Filling::new(memory).fill(len, |it| fill(it).ok_or(Error::Stopped));
        filled.is_ok()
    };
    let whole = py.detach(|| parallel::elsewhere(work, watch));
    Ok(whole.map(|whole| whole.then_some(bytes)))
}

/// Where the content of an object begins.
struct Start(*mut MaybeUninit<u8>);

// SAFETY: it is only an address here.
unsafe impl Send for Start {}

/// A new `bytes` object of this content, or a `MemoryError`.
pub fn copied<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, ()) = filled(py, content.len(), false, |target| {
        target.write_copy_of_slice(content);
    })?;
    Ok(bytes)
}

/// A new `bytes` object of at most so many bytes: as many as `fill` has written from the
/// start, and returns, or nothing but its error. It runs detached if there may be much to write.
///
/// # Panics
/// If `fill` returns other bytes.
pub fn new_bytes_at_most(
    py: Python<'_>,
    most: usize,
    always_detached: bool,
    fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]> + Send,
) -> PyResult<Result<Bound<'_, PyBytes>>> {
    let (bytes, filled) = filled(py, most, always_detached, |content| {
        Filling::new(content).fill_some(fill)
    })?;
    let len = match filled {
        Ok(len) => len,
        Err(error) => return Ok(Err(error)),
    };
    if most < MIN_FRESH_BYTES || most - len > len / 2 {
        // So little that a copy costs less than the memory that would be kept.
        // SAFETY: `fill` has written so many bytes, of an object that is ours alone.
        let content = unsafe {
            slice::from_raw_parts(ffi::PyBytes_AsString(bytes.as_ptr()).cast::<u8>(), len)
        };
        return copied(py, content).map(Ok);
    }
    // SAFETY: the object is fresh, so nobody else has seen its size or hash, and its
    // memory belongs to it whole, whatever its size says; it is freed by its address. A
    // variable-size object tells its size in the header that the stable ABI defines, and that
    // `Py_SET_SIZE` sets. The content of `bytes` ends with a zero, for which there is room.
    // (`_PyBytes_Resize` does the same and gives back the rest, but is not in the stable ABI.)
    unsafe {
        let object = bytes.as_ptr();
        ffi::PyBytes_AsString(object).add(len).write(0);
        (*object.cast::<ffi::PyVarObject>()).ob_size = len.cast_signed();
    }
    assert_eq!(bytes.as_bytes().len(), len);
    Ok(Ok(bytes))
}
