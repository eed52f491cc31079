//! `bytes` objects that are filled after they were made, without a zeroing pass.

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
use crate::array::HEADERS_MAX_BYTES;
use crate::raw::{Buffer, Filling, Lender, Loan};
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
    let (bytes, start) = fresh(py, len)?;
    // SAFETY: the object is fresh, so nobody else reads or writes its `len` bytes.
    let content = unsafe { slice::from_raw_parts_mut(start.as_ptr(), len) };
    let told = detached(py, len, always_detached, || fill(content));
    Ok((bytes, told))
}

/// A new `bytes` object whose content has not been written yet, and where that begins.
fn fresh(py: Python<'_>, len: usize) -> PyResult<(Bound<'_, PyBytes>, NonNull<MaybeUninit<u8>>)> {
    let size = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: a null pointer asks for an object with uninitialised content. It
    // is owned by us alone, and an error comes back as a null pointer. Its content is nowhere else.
    let (bytes, start) = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let bytes = created(py, object)?.cast_into_unchecked::<PyBytes>();
        let start = NonNull::new_unchecked(ffi::PyBytes_AsString(bytes.as_ptr()).cast());
        advise_huge(slice::from_raw_parts_mut(start.as_ptr(), len));
        (bytes, start)
    };
    Ok((bytes, start))
}

/// Lends the memory of a `bytes` object of the size that the last output had: programs write trees of
/// one size again and again. What is written there needs not be copied.
pub struct BytesLender;

/// The size that the next output may have.
static LAST_BYTES: AtomicUsize = AtomicUsize::new(0);

/// More than so many bytes are not asked for before they are known to be needed.
const MAX_LENT_BYTES: usize = 1 << 30;

impl Lender for BytesLender {
    fn lend(&mut self, least: usize) -> Option<Loan> {
        let size = LAST_BYTES.load(Relaxed);
        if !(least..=MAX_LENT_BYTES).contains(&size) {
            return None;
        }
        // Without memory for it, it is written as the first one was.
        Python::attach(|py| {
            let (bytes, start) = fresh(py, size).ok()?;
            // SAFETY: the object is fresh; it lives as long as this reference to it, and is given
            // to nobody before all that it then has is written (`lent_bytes`).
            Some(unsafe { Loan::new(start.cast(), size, Box::new(bytes.unbind())) })
        })
    }
}

/// Takes note of the size of an output that could be written to memory of `BytesLender`.
pub fn remember_size(len: usize) {
    if len > Buffer::SMALL {
        // The next one may have a few bytes more, as for a count of steps; and there has to be
        // room for the largest headers until they are known.
        LAST_BYTES.store(len + len / 64 + HEADERS_MAX_BYTES, Relaxed);
    }
}

/// The object of `BytesLender` that has `len` bytes of output from its start on, and which has them
/// alone from now on. `None` if it has much room beside them, so that they should be copied.
///
/// # Panics
/// If it has less room.
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
    // SAFETY: nobody but us has seen the object yet, unless it has this size already; see `shorten`.
    unsafe { shorten(bytes, len) };
    Some(bytes.clone())
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
    // SAFETY: `fill` has written so many bytes, of an object that is ours alone.
    unsafe { shorten(&bytes, len) };
    assert_eq!(bytes.as_bytes().len(), len);
    Ok(Ok(bytes))
}

/// Lets an object have only its first `len` bytes.
///
/// # Safety
/// They have been written, and nobody else has seen the size or hash of the object, unless it has this size.
unsafe fn shorten(bytes: &Bound<'_, PyBytes>, len: usize) {
    let object = bytes.as_ptr();
    // SAFETY: the memory belongs to the object whole, whatever its size says; it is freed by its
    // address. A variable-size object tells its size in the header that the stable ABI defines, and
    // that `Py_SET_SIZE` sets. The content of `bytes` ends with a zero, for which there is room.
    // (`_PyBytes_Resize` does the same and gives back the rest, but is not in the stable ABI.)
    unsafe {
        if (*object.cast::<ffi::PyVarObject>()).ob_size != len.cast_signed() {
            ffi::PyBytes_AsString(object).add(len).write(0);
            (*object.cast::<ffi::PyVarObject>()).ob_size = len.cast_signed();
        }
    }
}
