//! Memory that belongs to Python or NumPy: the only place with `unsafe` for it.
//!
//! **Policy.** Python memory can be changed by any thread that runs Python, and
//! while this crate is detached others do run. Rust's `&[u8]` promises that
//! nobody writes, which no extension module can enforce. What is promised here:
//!
//! 1. Everything borrowed is kept alive by a reference to its owner, and every
//!    buffer by an export that forbids resizing it. Addresses stay valid.
//! 2. While detached, borrowed bytes are only *moved*: copied, written to a file,
//!    fed to a compressor that is memory-safe for any input. Nothing that is
//!    used as a length or an index is read from them.
//! 3. While attached, what is parsed is checked against bounds that do not come
//!    from the memory itself.
//!
//! A program that changes an array while it is being saved therefore gets a mix
//! of old and new bytes in that array's place, as with `arr.tobytes()` in a
//! thread; it never gets a damaged file or a crash.
//!
//! Memory that is *written* here is fresh (no other code has seen the object yet), or
//! is that of a caller of `pack_into`, who has to keep others from using it meanwhile.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use memmap2::MmapRaw;
use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyString};
use pyo3::{PyTypeInfo, ffi};

use crate::layout::Payload;
use crate::mapping::fresh_pages;
use crate::{Result, parallel};

/// Below so many bytes, letting other threads run costs more than the work.
const DETACH_MIN_BYTES: usize = 64 << 10;

/// From so many bytes on, fresh memory is worth asking huge pages for.
const HUGE_MIN_BYTES: usize = 4 << 20;

/// Borrowed bytes, and the Python object that keeps them where they are.
pub struct Borrowed {
    owner: Py<PyAny>,
    start: *const u8,
    len: usize,
}

// SAFETY: the pointer is only read from, and `owner` is a `Py`, which may be sent
// to and dropped in any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start` and `len` describe memory of `owner` that stays valid
        // while `owner` lives (checked where a `Borrowed` is made). Other threads
        // may write to it: see the policy at the top of this file.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl Payload for Borrowed {
    fn len(&self) -> usize {
        self.len
    }

    fn run(&self, offset: usize) -> &[u8] {
        &self.as_ref()[offset..]
    }
}

impl Borrowed {
    /// The elements of a NumPy array that is contiguous in C order.
    ///
    /// # Panics
    /// If the array is not contiguous.
    #[inline]
    pub fn array(array: &Bound<'_, PyUntypedArray>, nbytes: usize) -> Self {
        assert!(array.is_c_contiguous());
        // SAFETY: a live array object has a valid `data` field. NumPy keeps the
        // memory of a contiguous array of `nbytes` bytes there, and refuses to resize
        // an array while somebody else holds a reference to it (unless the program
        // passes refcheck=False, which NumPy documents as unsafe for any holder).
        let data = unsafe { (*npyffi::_PyArray_GET_ITEM_DATA(array.as_array_ptr())).data };
        Self {
            owner: array.clone().into_any().unbind(),
            start: data.cast_const().cast(),
            len: nbytes,
        }
    }

    /// The content of a `bytes` object, which never changes.
    pub fn bytes(bytes: &Bound<'_, PyBytes>) -> Self {
        let content = bytes.as_bytes();
        Self {
            owner: bytes.clone().into_any().unbind(),
            start: content.as_ptr(),
            len: content.len(),
        }
    }

    /// The UTF-8 form of a string, which the string keeps and never changes.
    pub fn string(string: &Bound<'_, PyString>) -> PyResult<Self> {
        let content = string.to_str()?;
        Ok(Self {
            owner: string.clone().into_any().unbind(),
            start: content.as_ptr(),
            len: content.len(),
        })
    }

    /// The bytes of any object with a contiguous buffer.
    pub fn buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast_exact::<PyBytes>() {
            return Ok(Self::bytes(bytes));
        }
        // The memoryview holds the export, and so the memory, for as long as it lives.
        let view = PyMemoryView::from(object)?;
        let view = view.call_method1("cast", ("B",))?;
        let buffer = PyBuffer::<u8>::get(&view)?;
        Ok(Self {
            start: buffer.buf_ptr().cast_const().cast(),
            len: buffer.len_bytes(),
            owner: view.unbind(),
        })
    }

    /// The object that keeps the bytes alive.
    pub fn owner<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.owner.bind(py)
    }

    /// A part of these bytes.
    ///
    /// # Panics
    /// If `range` is not inside them.
    pub fn part(&self, py: Python<'_>, range: Range<usize>) -> Self {
        let part = &self.as_ref()[range];
        Self {
            start: part.as_ptr(),
            len: part.len(),
            owner: self.owner.clone_ref(py),
        }
    }
}

/// Appends a range of the bytes of a contiguous buffer.
///
/// # Panics
/// If the buffer is not contiguous, or the range is not inside it.
pub fn append(buffer: &PyUntypedBuffer, range: Range<usize>, to: &mut Vec<u8>) {
    assert!(buffer.is_c_contiguous());
    // SAFETY: a contiguous buffer has `len_bytes` bytes at `buf_ptr`, which the
    // exporter keeps valid until it is released.
    let content =
        unsafe { slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    to.extend_from_slice(&content[range]);
}

/// A new `bytes` object of `len` bytes that `fill` writes, without a zeroing pass.
///
/// `fill` must write every byte, or tell by what it returns that the object must not be
/// used. It runs detached if there is much to write.
pub fn new_bytes<T: Send>(
    py: Python<'_>,
    len: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> T + Send,
) -> PyResult<(Bound<'_, PyBytes>, T)> {
    let size = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: a null pointer asks for an object with uninitialised content. It
    // is owned by us alone, and an error comes back as a null pointer.
    let bytes = unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
    };
    // SAFETY: the object is fresh, so nobody else reads or writes its `len` bytes.
    let content = unsafe {
        let start = ffi::PyBytes_AsString(bytes.as_ptr());
        slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len)
    };
    advise_huge(content);
    let told = detached(py, len, || fill(content));
    Ok((bytes, told))
}

/// A new `bytes` object of this content.
pub fn copied<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, ()) = new_bytes(py, content.len(), |target| {
        target.write_copy_of_slice(content);
    })?;
    Ok(bytes)
}

/// Less than this is not fresh memory from the system, but may have been touched before.
const MIN_FRESH_BYTES: usize = 1 << 20;

/// A new `bytes` object of at most so many bytes: as many as `fill` has written from the
/// start, and tells, or nothing but its error. It runs detached if there may be much to write.
///
/// `fill` must have written every byte that it tells.
///
/// # Panics
/// If `fill` tells more than there are.
pub fn new_bytes_at_most(
    py: Python<'_>,
    most: usize,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> Result<usize> + Send,
) -> PyResult<Result<Bound<'_, PyBytes>>> {
    let (bytes, filled) = new_bytes(py, most, fill)?;
    let len = match filled {
        Ok(len) => len,
        Err(error) => return Ok(Err(error)),
    };
    assert!(len <= most);
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
        Ok(Self {
            start: export.buf_ptr().cast(),
            len: export.len_bytes(),
            _export: export,
        })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether some of `memory` is part of this.
    pub fn overlaps(&self, memory: &[u8]) -> bool {
        let (theirs, ours) = (memory.as_ptr_range(), self.start.cast_const().cast::<u8>());
        theirs.start < ours.wrapping_add(self.len) && ours < theirs.end
    }

    /// Lets `fill` write to a range; it runs detached if there is much to write.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn fill(
        &mut self,
        py: Python<'_>,
        range: Range<usize>,
        fill: impl FnOnce(&mut [MaybeUninit<u8>]) + Send,
    ) {
        // SAFETY: the export keeps `len` writable bytes at `start` valid. They are only
        // written here; who else uses them meanwhile gets a mix of old and new bytes:
        // see the policy at the top of this file.
        let memory = unsafe { slice::from_raw_parts_mut(self.start, self.len) };
        let memory = &mut memory[range];
        detached(py, memory.len(), || fill(memory));
    }
}

/// Runs `work` detached from Python if it moves many bytes.
fn detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes < DETACH_MIN_BYTES {
        work()
    } else {
        py.detach(work)
    }
}

/// Asks for huge pages on the interior of fresh memory: one page fault for 2 MiB
/// instead of 512, which is most of the cost of filling it.
#[cfg(target_os = "linux")]
fn advise_huge(memory: &mut [MaybeUninit<u8>]) {
    const HUGE: usize = 2 << 20;
    if memory.len() < HUGE_MIN_BYTES {
        return;
    }
    let before = memory.as_ptr().align_offset(HUGE);
    let Some(interior) = memory.get_mut(before..) else {
        return;
    };
    let len = interior.len() / HUGE * HUGE;
    // SAFETY: the range is inside our own allocation. The advice changes how it
    // is backed by pages, never its content. Where it is refused nothing is lost.
    let _ = unsafe {
        rustix::mm::madvise(
            interior.as_mut_ptr().cast(),
            len,
            rustix::mm::Advice::LinuxHugepage,
        )
    };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_memory: &mut [MaybeUninit<u8>]) {}

/// Fresh memory for the large arrays of a large tree: many lie in one mapping, so that
/// nearly all of it is huge pages. An array that NumPy allocates for itself begins and
/// ends in small ones, whose page faults cost more than the copying.
pub struct FreshPages {
    tree_bytes: usize,
    mapping: Option<Arc<MmapRaw>>,
    used: usize,
}

impl FreshPages {
    /// In a smaller tree the allocator's used memory is faster than fresh pages.
    const TREE_MIN_BYTES: usize = 32 << 20;

    /// A smaller array would leave a good part of its last page unused.
    const ARRAY_MIN_BYTES: usize = 256 << 10;

    /// For a tree of so many bytes.
    pub fn new(tree_bytes: usize) -> Self {
        Self {
            tree_bytes,
            mapping: None,
            used: 0,
        }
    }

    /// Pages for an array of `nbytes` bytes, if they are worth it and can be had; all
    /// arrays after it have `later` bytes at most. (What is lost by rounding to pages may
    /// take another mapping at the end.)
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

/// The pages of one array, which are given back when it goes, whatever becomes of the
/// others in the mapping. NumPy asks for the buffer to learn whether they may be written.
#[pyclass(frozen, module = "treepack._core")]
pub struct OwnPages {
    mapping: Arc<MmapRaw>,
    range: Range<usize>,
}

impl OwnPages {
    fn start(&self) -> *mut u8 {
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
        // SAFETY: Python passes a buffer to be filled in, which takes a reference to
        // `this`, and `this` keeps the pages.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, this.as_ptr(), pages.start().cast(), len, 0, flags)
        };
        match status {
            0 => Ok(()),
            _ => Err(PyErr::fetch(this.py())),
        }
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: the pages belong to one array alone. It and every view of it hold this
        // object, so nobody has a pointer to them any more.
        let _ = unsafe {
            self.mapping.unchecked_advise_range(
                memmap2::UncheckedAdvice::DontNeed,
                self.range.start,
                self.range.len(),
            )
        };
    }
}

/// A new array whose elements have not been written yet.
pub struct FreshArray<'py> {
    array: Bound<'py, PyAny>,
    start: *mut MaybeUninit<u8>,
    len: usize,
}

impl<'py> FreshArray<'py> {
    /// An array of `nbytes` bytes in C order.
    pub fn new(
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[isize],
        nbytes: usize,
        writable: bool,
    ) -> PyResult<Self> {
        let array = new_array(dtype, shape, std::ptr::null_mut(), writable)?;
        // SAFETY: a live array object has valid fields, and nobody else has seen this one.
        let data = unsafe {
            let fields = npyffi::_PyArray_GET_ITEM_DATA(array.as_ptr().cast());
            if !writable {
                (*fields).flags &= !npyffi::NPY_ARRAY_WRITEABLE;
            }
            (*fields).data
        };
        Ok(Self {
            array,
            start: data.cast(),
            len: nbytes,
        })
    }

    /// An array of `nbytes` bytes in C order, which has these pages for itself.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn over(
        pages: OwnPages,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[isize],
        nbytes: usize,
        writable: bool,
    ) -> PyResult<Self> {
        assert!(nbytes <= pages.range.len());
        let start = pages.start();
        let array = new_array(dtype, shape, start.cast(), writable)?;
        set_base(&array, Bound::new(dtype.py(), pages)?.into_any())?;
        Ok(Self {
            array,
            start: start.cast(),
            len: nbytes,
        })
    }

    /// The array, filled from `source` at once.
    ///
    /// # Panics
    /// If the source has another length.
    pub fn fill(mut self, source: &[u8]) -> Bound<'py, PyAny> {
        self.memory().write_copy_of_slice(source);
        self.array
    }

    fn memory(&mut self) -> &mut [MaybeUninit<u8>] {
        self.part(0..self.len)
    }

    /// A part that has not been written yet.
    ///
    /// # Panics
    /// If it is not inside the array.
    fn part(&mut self, range: Range<usize>) -> &mut [MaybeUninit<u8>] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: `len` bytes at `start` belong to `self.array`, which lives as long as
        // `self`: NumPy allocated them, or they are pages that its base object holds. No
        // other code uses this part: what Python has seen before the whole tree is
        // returned are other parts (`SmallCopies`).
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Read-only copies of small payloads, many in one block of memory: an array over
/// memory that is there costs half of an array with memory of its own.
#[derive(Default)]
pub struct SmallCopies<'py> {
    block: Option<FreshArray<'py>>,
    used: usize,
}

impl<'py> SmallCopies<'py> {
    /// The largest payload.
    pub const MAX_BYTES: usize = 1 << 10;

    /// Blocks double in size, so that a few arrays do not hold on to much.
    const FIRST_BLOCK: usize = 256;
    const LAST_BLOCK: usize = 64 << 10;

    /// What NumPy asks for its largest element, a complex of long doubles.
    const ALIGN: usize = 16;

    /// An array with a copy of `payload`, which keeps its block alive.
    ///
    /// # Panics
    /// If the payload is larger than `MAX_BYTES`.
    pub fn array(
        &mut self,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[isize],
        payload: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        assert!(payload.len() <= Self::MAX_BYTES);
        let block = match &mut self.block {
            Some(block) if self.used + payload.len() <= block.len => block,
            block => {
                let byte = numpy::dtype::<u8>(dtype.py());
                let before = block.as_ref().map_or(0, |block| block.len);
                let len = (2 * before).clamp(Self::FIRST_BLOCK, Self::LAST_BLOCK);
                let len = len.max(payload.len() + Self::ALIGN);
                let fresh = FreshArray::new(&byte, &[len.cast_signed()], len, false)?;
                self.used = fresh.start.align_offset(Self::ALIGN);
                block.insert(fresh)
            }
        };
        let base = block.array.clone();
        let place = block.part(self.used..self.used + payload.len());
        self.used += payload.len().next_multiple_of(Self::ALIGN);
        view(dtype, shape, place.write_copy_of_slice(payload), &base)
    }
}

/// Fresh arrays that are to be filled together, in parallel and detached.
#[derive(Default)]
pub struct Copies<'py, 'a>(Vec<(FreshArray<'py>, Vec<&'a [u8]>)>);

impl<'py, 'a> Copies<'py, 'a> {
    /// How many arrays are planned.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets all arrays but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Plans to fill `array` with `sources`, one after the other.
    pub fn push(&mut self, array: FreshArray<'py>, sources: Vec<&'a [u8]>) -> Bound<'py, PyAny> {
        let object = array.array.clone();
        self.0.push((array, sources));
        object
    }

    /// Fills all planned arrays.
    ///
    /// # Panics
    /// If the sources of an array have not exactly its bytes.
    pub fn run(mut self, py: Python<'_>, threads: Option<i64>) -> Result<()> {
        let mut copies = Vec::with_capacity(self.0.len());
        let mut bytes = 0;
        for (array, sources) in &mut self.0 {
            let mut rest = array.memory();
            bytes += rest.len();
            for source in sources {
                let (now, later) = rest.split_at_mut(source.len());
                copies.push((*source, now));
                rest = later;
            }
            assert!(rest.is_empty(), "the sources cover the array");
        }
        let threads = parallel::threads(threads, bytes, parallel::MIN_COPY_BYTES)?;
        detached(py, bytes, || parallel::copy_all(copies, threads));
        Ok(())
    }
}

/// A read-only array over `payload`, which must be memory of `base`.
///
/// NumPy takes note if it is not aligned for `dtype`, and such an array is slow but sound.
pub fn view<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[isize],
    payload: &[u8],
    base: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = new_array(dtype, shape, payload.as_ptr().cast_mut().cast(), false)?;
    set_base(&array, base.clone())?;
    Ok(array)
}

/// Lets a fresh array keep alive the object whose memory it is over.
fn set_base(array: &Bound<'_, PyAny>, base: Bound<'_, PyAny>) -> PyResult<()> {
    let py = array.py();
    // SAFETY: `array` is a fresh array object without a base; the call takes over the
    // reference to `base`.
    let status =
        unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base.into_ptr()) };
    match status {
        0 => Ok(()),
        _ => Err(PyErr::fetch(py)),
    }
}

/// An array over `data`, or with memory of its own, which is writable, if `data` is null.
fn new_array<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[isize],
    data: *mut c_void,
    writable: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = dtype.py();
    let ndim = c_int::try_from(shape.len())?;
    // Without data, any flag would ask for Fortran order. Whether the array is aligned
    // NumPy sees for itself.
    let flags = if writable && !data.is_null() {
        npyffi::NPY_ARRAY_WRITEABLE
    } else {
        0
    };
    // SAFETY: the call takes over one reference to the dtype, reads as many
    // dimensions as it is told (at most MAX_NDIM, checked by `Dims`), and without
    // strides assumes C order. Errors come back as a null pointer.
    unsafe {
        let object = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            PyUntypedArray::type_object_raw(py),
            dtype.clone().into_dtype_ptr(),
            ndim,
            shape.as_ptr().cast_mut().cast::<npy_intp>(), // which is an isize, and not written
            std::ptr::null_mut(),
            data,
            flags,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, object)
    }
}

/// The entry of `dict` at `position`, which is moved on.
///
/// Unlike an iterator this allows for code in between that changes the dict.
#[inline]
pub fn dict_next<'py>(
    dict: &Bound<'py, PyDict>,
    position: &mut ffi::Py_ssize_t,
) -> Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let mut key = std::ptr::null_mut();
    let mut value = std::ptr::null_mut();
    // SAFETY: the call checks the position against the dict as it is now, and
    // lends references, which are made our own before anything else can run.
    unsafe {
        if ffi::PyDict_Next(dict.as_ptr(), position, &raw mut key, &raw mut value) == 0 {
            return None;
        }
        let py = dict.py();
        Some((
            Bound::from_borrowed_ptr(py, key),
            Bound::from_borrowed_ptr(py, value),
        ))
    }
}
