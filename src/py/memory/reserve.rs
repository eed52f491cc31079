//! A reserve of memory for errors.
//!
//! Large allocations can fail, with a `MemoryError`. Small ones abort the process, but errors need
//! them. So a reserve is kept, and freed when an allocation fails. Walks check for each value that
//! it exists, and fail without it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{Error, Result};

/// Enough for an error and its way out.
const RESERVE: Layout = match Layout::from_size_align(256 << 10, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// Larger allocations may fail.
const SMALL_BYTES: usize = 16 << 10;

static KEPT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// The system's allocator, with a reserve.
struct Reserved;

#[global_allocator]
static ALLOCATOR: Reserved = Reserved;

// SAFETY: all memory comes from the system's allocator and goes back to it, by the same calls.
unsafe impl GlobalAlloc for Reserved {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller guarantees.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() && layout.size() <= SMALL_BYTES && give_up() {
            // SAFETY: as above.
            return unsafe { System.alloc(layout) };
        }
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(memory, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller guarantees.
        let new = unsafe { System.realloc(memory, layout, size) };
        if new.is_null() && size <= SMALL_BYTES && give_up() {
            // SAFETY: as above; a failed call leaves the memory as it was.
            return unsafe { System.realloc(memory, layout, size) };
        }
        new
    }
}

#[cold]
fn give_up() -> bool {
    let kept = KEPT.swap(ptr::null_mut(), Ordering::AcqRel);
    if kept.is_null() {
        return false;
    }
    // SAFETY: `fill` has allocated it with this layout, and no other code has it now.
    unsafe { System.dealloc(kept, RESERVE) };
    true
}

#[inline]
pub fn keep() -> Result<()> {
    if exists() { Ok(()) } else { fill() }
}

#[inline]
pub fn exists() -> bool {
    !KEPT.load(Ordering::Relaxed).is_null()
}

#[cold]
fn fill() -> Result<()> {
    // SAFETY: the layout has a size.
    let memory = unsafe { System.alloc(RESERVE) };
    if memory.is_null() {
        return Err(Error::OutOfMemory);
    }
    let put = KEPT.compare_exchange(ptr::null_mut(), memory, Ordering::AcqRel, Ordering::Relaxed);
    if put.is_err() {
        // SAFETY: allocated above with this layout, and not kept.
        unsafe { System.dealloc(memory, RESERVE) };
    }
    Ok(())
}
