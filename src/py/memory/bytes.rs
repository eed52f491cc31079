//! Creates `bytes` objects and fills them later, without zeroing them first.
//!
//! Functions panic if `fill` returns other bytes than it got.

use std::any::Any;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::create::created;
use super::detached::detached;
use super::pages::advise_huge;
use crate::base::raw::{Buffer, Fill, Filling, Loan, Uninit};
use crate::base::watch::Watch;
use crate::format::array::HEADERS_MAX_BYTES;
use crate::{Result, base::parallel};

/// Smaller allocations may reuse memory, instead of fresh memory from the system.
const MIN_FRESH_BYTES: usize = 1 << 20;

/// Makes a `bytes` object of `len` bytes that `fill` writes and returns, or returns its error. Runs
/// `fill` detached if `always_detached`, or if `len` is large.
pub fn new_bytes(
    py: Python<'_>,
    len: usize,
    always_detached: bool,
    fill: impl Fill + Send,
) -> PyResult<Result<Bound<'_, PyBytes>>> {
    let (bytes, filled) = filled(py, len, always_detached, |content| {
        Filling::new(content).fill(len, fill)
    })?;
    Ok(filled.map(|()| bytes))
}

/// Makes a `bytes` object, which is complete only if `fill` succeeded; returns both.
fn filled<T: Send>(
    py: Python<'_>,
    len: usize,
    always_detached: bool,
    fill: impl FnOnce(&mut Uninit) -> T + Send,
) -> PyResult<(Bound<'_, PyBytes>, T)> {
    let (bytes, start) = fresh(py, len)?;
    // SAFETY: the object is fresh, so no other code reads or writes its `len` bytes.
    let content = unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) };
    let result = detached(py, len, always_detached, || fill(content));
    Ok((bytes, result))
}

fn fresh(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyBytes>, NonNull<MaybeUninit<u8>>)> {
    let size = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: with null as content, the call returns an object with uninitialised content, which
    // only we own, or null and an error.
    let (bytes, start) = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let bytes = created(py, object)?.cast_into_unchecked::<PyBytes>();
        let start = NonNull::new_unchecked(ffi::PyBytes_AsString(bytes.as_ptr()).cast());
        advise_huge(slice::from_raw_parts_mut(start.as_ptr(), len));
        (bytes, start)
    };
    Ok((bytes, start))
}

static LAST_BYTES: AtomicUsize = AtomicUsize::new(0);

const MAX_LENT_BYTES: usize = 1 << 30;

/// Lends a `bytes` object of the size of the last output, since programs repeat sizes. Output
/// written there needs no copy.
pub fn lend_bytes(least: usize) -> Option<Loan> {
    let size = LAST_BYTES.load(Relaxed);
    if !(least..=MAX_LENT_BYTES).contains(&size) {
        return None;
    }
    // Out of memory nothing is lent: the output is written elsewhere, and copied.
    Python::attach(|py| {
        let (bytes, start) = fresh(py, size).ok()?;
        // SAFETY: the object is fresh. It lives as long as this reference, and no other code
        // gets it before its final content is written (`lent_bytes`).
        Some(unsafe { Loan::new(start.cast(), size, Box::new(bytes.unbind())) })
    })
}

pub fn remember_size(len: usize) {
    if len > Buffer::SMALL {
        // Room for a few bytes more, such as a digit of a step count, and for the largest headers.
        LAST_BYTES.store(len + len / 64 + HEADERS_MAX_BYTES, Relaxed);
    }
}

/// Shortens the object of `lend_bytes` to `output` at its start; `None` if a copy would save much
/// memory.
pub fn lent_bytes<'py>(
    py: Python<'py>,
    owner: &(dyn Any + Send + Sync),
    output: &[u8],
) -> Option<Bound<'py, PyBytes>> {
    let bytes = owner.downcast_ref::<Py<PyBytes>>()?.bind(py);
    let (room, len) = (bytes.as_bytes().len(), output.len());
    assert!(bytes.as_bytes().as_ptr() == output.as_ptr() && len <= room);
    if room - len > len / 8 {
        return None;
    }
    // SAFETY: no other code has seen the object, unless it already has this size; see `shorten`.
    unsafe { shorten(bytes, len) };
    Some(bytes.clone())
}

/// Makes a `bytes` object of `len` bytes that `fill` writes in another thread and returns; `None`
/// if `fill` fails. If `watch` stops the wait, the object is dropped after `fill` returns.
pub fn new_bytes_elsewhere<'py>(
    py: Python<'py>,
    len: usize,
    watch: &dyn Watch,
    fill: impl Fill + Send + 'static,
) -> PyResult<Result<Option<Bound<'py, PyBytes>>>> {
    let (bytes, start) = filled(py, len, false, |content| Start(content.as_mut_ptr()))?;
    let content = (bytes.clone().unbind(), start);
    let work = move || {
        let (_owner, start) = content;
        let start: Start = start;
        // SAFETY: `_owner` keeps the object, which is fresh. No other code reads or writes its
        // `len` bytes before `fill` returns.
        let memory = unsafe { slice::from_raw_parts_mut(start.0, len) };
        Filling::new(memory).fill(len, fill).is_ok()
    };
    let whole = py.detach(|| parallel::elsewhere(work, watch));
    Ok(whole.map(|whole| whole.then_some(bytes)))
}

struct Start(*mut MaybeUninit<u8>);

// SAFETY: it is only an address.
unsafe impl Send for Start {}

pub fn copied<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, ()) = filled(py, content.len(), false, |target| {
        target.write_copy_of_slice(content);
    })?;
    Ok(bytes)
}

/// Makes a `bytes` object of at most `most` bytes that `fill` writes from the start and returns.
/// Runs `fill` detached if `always_detached`, or if `most` is large.
pub fn new_bytes_at_most(
    py: Python<'_>,
    most: usize,
    always_detached: bool,
    fill: impl Fill + Send,
) -> PyResult<Result<Bound<'_, PyBytes>>> {
    let (bytes, filled) = filled(py, most, always_detached, |content| {
        Filling::new(content).fill_some(fill)
    })?;
    let len = match filled {
        Ok(len) => len,
        Err(error) => return Ok(Err(error)),
    };
    if most < MIN_FRESH_BYTES || most - len > len / 2 {
        // A copy costs less than keeping the memory. SAFETY: `fill` has written `len` bytes of an
        // object that only we own.
        let content = unsafe {
            slice::from_raw_parts(ffi::PyBytes_AsString(bytes.as_ptr()).cast::<u8>(), len)
        };
        return copied(py, content).map(Ok);
    }
    // SAFETY: `fill` has written `len` bytes of an object that only we own.
    unsafe { shorten(&bytes, len) };
    assert_eq!(bytes.as_bytes().len(), len);
    Ok(Ok(bytes))
}

/// Shortens an object to its first `len` bytes.
///
/// # Safety
/// They are written. No other code has seen the object's size or hash, unless its size is `len`.
unsafe fn shorten(bytes: &Bound<'_, PyBytes>, len: usize) {
    let object = bytes.as_ptr();
    // SAFETY: the memory belongs to the object whatever its size says, and is freed by its address.
    // The size is a field of the header that the stable ABI defines, and that `Py_SET_SIZE` sets.
    // The content of `bytes` ends with a zero, for which there is room. (`_PyBytes_Resize` does the
    // same and returns the rest, but is not in the stable ABI.)
    unsafe {
        if (*object.cast::<ffi::PyVarObject>()).ob_size != len.cast_signed() {
            ffi::PyBytes_AsString(object).add(len).write(0);
            (*object.cast::<ffi::PyVarObject>()).ob_size = len.cast_signed();
        }
    }
}
