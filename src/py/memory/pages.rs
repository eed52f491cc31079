//! Pages that many arrays share; each array returns its own.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use memmap2::MmapRaw;
use pyo3::ffi;
use pyo3::prelude::*;

use super::create::raised;
#[cfg(unix)]
use crate::base::pages::GIVE_BACK;
use crate::base::pages::fresh_pages;
use crate::base::raw::Uninit;

/// The size from which huge pages pay.
#[cfg(target_os = "linux")]
const HUGE_MIN_BYTES: usize = 4 << 20;

/// Requests huge pages for fresh memory: page faults are most of the cost of filling it.
#[cfg(target_os = "linux")]
pub fn advise_huge(memory: &mut Uninit) {
    const HUGE: usize = 2 << 20;
    if memory.len() < HUGE_MIN_BYTES {
        return;
    }
    let before = memory.as_ptr().align_offset(HUGE);
    let Some(interior) = memory.get_mut(before..) else {
        return;
    };
    let len = interior.len() / HUGE * HUGE;
    // SAFETY: the range is inside our own allocation. The advice changes the pages, never their
    // content. A refusal is harmless.
    let _ = unsafe {
        rustix::mm::madvise(
            interior.as_mut_ptr().cast(),
            len,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

#[cfg(not(target_os = "linux"))]
pub fn advise_huge(_memory: &mut Uninit) {}

/// Fresh memory for large arrays of a large tree, in a shared mapping of huge pages. NumPy's arrays
/// begin and end in small pages, whose faults cost more than the copy.
pub struct FreshPages {
    tree_bytes: usize,
    mapping: Option<Arc<MmapRaw>>,
    used: usize,
}

impl FreshPages {
    /// For smaller trees, memory that the allocator reuses is faster.
    const TREE_MIN_BYTES: usize = 32 << 20;

    /// Smaller arrays would waste much of their last page.
    const ARRAY_MIN_BYTES: usize = 256 << 10;

    pub fn new(tree_bytes: usize) -> Self {
        Self {
            tree_bytes,
            mapping: None,
            used: 0,
        }
    }

    /// Returns pages for `nbytes`, if worthwhile and available; `later` bounds the bytes of all
    /// arrays after it.
    pub fn take(&mut self, nbytes: usize, later: usize) -> Option<OwnPages> {
        if nbytes < Self::ARRAY_MIN_BYTES || self.tree_bytes < Self::TREE_MIN_BYTES {
            return None;
        }
        let len = nbytes.checked_next_multiple_of(page_size())?;
        let room = self.mapping.as_ref().map_or(0, |mapping| mapping.len());
        if room - self.used < len {
            let mapping = fresh_pages(len.checked_add(later)?).ok()?;
            self.mapping = Some(Arc::new(mapping.into()));
            self.used = 0;
        }
        let start = self.used;
        self.used += len;
        Some(OwnPages {
            mapping: self.mapping.clone()?,
            range: start..start + len,
        })
    }
}

#[cfg(unix)]
fn page_size() -> usize {
    rustix::param::page_size()
}

#[cfg(not(unix))]
fn page_size() -> usize {
    64 << 10
}

/// The pages of one array, returned to the system when dropped, even if others in the mapping live
/// on. NumPy learns from the buffer whether they are writable.
#[pyclass(frozen, module = "treepack._core")]
pub struct OwnPages {
    mapping: Arc<MmapRaw>,
    range: Range<usize>,
}

impl OwnPages {
    pub fn len(&self) -> usize {
        self.range.len()
    }

    pub fn start(&self) -> *mut u8 {
        // SAFETY: `FreshPages::take` chose a range inside the mapping.
        unsafe { self.mapping.as_mut_ptr().add(self.range.start) }
    }
}

#[pymethods]
impl OwnPages {
    unsafe fn __getbuffer__(
        this: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let pages = this.get();
        let len = ffi::Py_ssize_t::try_from(pages.range.len())?;
        // SAFETY: Python passes a buffer to fill in, which takes a reference to `this`, which keeps
        // the pages.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, this.as_ptr(), pages.start().cast(), len, 0, flags)
        };
        match status {
            0 => Ok(()),
            _ => Err(raised(this.py())),
        }
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: the pages belong to one array. It and all its views hold this object, so no
        // pointer to them is left.
        let _ = unsafe {
            let Range { start, end } = self.range;
            (self.mapping).unchecked_advise_range(GIVE_BACK, start, end - start)
        };
    }
}
