//! NumPy arrays: their parts, views of existing memory, and fresh arrays.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

use numpy::npyffi::{self, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyList;
use pyo3::{PyClass, PyTypeInfo, ffi};
use smallvec::SmallVec;

use super::create::{created, list_of_results, raised};
use super::keep_reserve;
use super::pages::{FreshPages, OwnPages};
use crate::base::raw::{Fill, Filling, RawBytes, Uninit};

pub struct FreshArray<'py> {
    array: Bound<'py, PyAny>,
    start: *mut MaybeUninit<u8>,
    len: usize,
}

impl<'py> FreshArray<'py> {
    pub fn new(
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[usize],
        writable: bool,
    ) -> PyResult<Self> {
        let len = nbytes(dtype, shape)?;
        let array = new_array(dtype, shape, std::ptr::null_mut(), writable)?;
        // SAFETY: a live array has valid fields, and no other code has seen this one.
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
            len,
        })
    }

    /// Makes an array on these pages, which must be large enough.
    pub fn over(
        pages: OwnPages,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[usize],
        writable: bool,
    ) -> PyResult<Self> {
        let len = nbytes(dtype, shape)?;
        assert!(len <= pages.len());
        let start = pages.start();
        let array = new_array(dtype, shape, start.cast(), writable)?;
        set_base(&array, Bound::new(dtype.py(), pages)?.into_any())?;
        Ok(Self {
            array,
            start: start.cast(),
            len,
        })
    }

    /// Returns the array, which must not be used before it is filled.
    pub fn object(&self) -> &Bound<'py, PyAny> {
        &self.array
    }

    pub fn memory(&mut self) -> &mut Uninit {
        self.part(0..self.len)
    }

    fn part(&mut self, range: Range<usize>) -> &mut Uninit {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: `len` bytes at `start` belong to `self.array`, which lives as long as `self`:
        // NumPy allocated them, or its base object holds their pages. No other code uses this part:
        // until the whole tree is returned, Python has only seen other parts (`SmallCopies`).
        unsafe { slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// Makes arrays of bytes; `None` where the allocator has better memory.
#[pyfunction]
pub fn fresh_memory(py: Python<'_>, sizes: Vec<usize>) -> PyResult<Bound<'_, PyList>> {
    keep_reserve()?;
    let mut later = sizes
        .iter()
        .fold(0, |sum: usize, &size| sum.saturating_add(size));
    let mut pages = FreshPages::new(later);
    let dtype = numpy::dtype::<u8>(py);
    let mut array = |nbytes| {
        later = later.saturating_sub(nbytes);
        let Some(pages) = pages.take(nbytes, later) else {
            return Ok(py.None().into_bound(py));
        };
        let array = FreshArray::over(pages, &dtype, &[nbytes], true)?;
        Ok(array.object().clone())
    };
    list_of_results(py, sizes.into_iter().map(&mut array))
}

/// Read-only copies of small payloads, in shared blocks: a view costs half of an array that owns
/// its memory.
#[derive(Default)]
pub struct SmallCopies<'py> {
    block: Option<FreshArray<'py>>,
    used: usize,
}

impl<'py> SmallCopies<'py> {
    pub const MAX_BYTES: usize = 1 << 10;

    /// Blocks double in size, so that a few arrays do not keep much memory.
    const FIRST_BLOCK: usize = 256;
    const LAST_BLOCK: usize = 64 << 10;

    /// The alignment of NumPy's largest element, a complex of long doubles.
    const ALIGN: usize = 16;

    /// Makes an array on the bytes that `fill` writes and returns, at most `MAX_BYTES`. It keeps
    /// its block alive.
    pub fn array(
        &mut self,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[usize],
        fill: impl Fill,
    ) -> PyResult<Bound<'py, PyAny>> {
        let len = nbytes(dtype, shape)?;
        assert!(len <= Self::MAX_BYTES);
        let block = match &mut self.block {
            Some(block) if self.used + len <= block.len => block,
            block => {
                let byte = numpy::dtype::<u8>(dtype.py());
                let before = block.as_ref().map_or(0, |block| block.len);
                let room = (2 * before).clamp(Self::FIRST_BLOCK, Self::LAST_BLOCK);
                let room = room.max(len + Self::ALIGN);
                let fresh = FreshArray::new(&byte, &[room], false)?;
                self.used = fresh.start.align_offset(Self::ALIGN);
                block.insert(fresh)
            }
        };
        let place = block.part(self.used..self.used + len);
        Filling::new(place).fill(len, fill)?;
        let start = place.as_mut_ptr();
        self.used += len.next_multiple_of(Self::ALIGN);
        over(dtype, shape, start.cast(), &block.array)
    }
}

/// Memory and the Python object that keeps it, for views.
#[derive(Clone, Copy)]
pub struct Owned<'a, 'py> {
    memory: RawBytes<'a>,
    owner: &'a Bound<'py, PyAny>,
}

impl<'a, 'py> Owned<'a, 'py> {
    /// `memory` must be valid as long as `owner` lives.
    pub(super) fn new(memory: RawBytes<'a>, owner: &'a Bound<'py, PyAny>) -> Self {
        Self { memory, owner }
    }

    /// Wraps memory that `owner` keeps as long as it lives.
    pub fn of<T: PyClass<Frozen = True> + Sync>(
        owner: &'a Bound<'py, T>,
        memory: impl for<'b> FnOnce(&'b T) -> Option<RawBytes<'b>>,
    ) -> Option<Self> {
        let memory = memory(owner.get())?;
        Some(Self::new(memory, owner.as_any()))
    }

    pub fn memory(self) -> RawBytes<'a> {
        self.memory
    }
}

/// Makes a read-only array over the bytes from `start` on. NumPy checks alignment itself: an
/// unaligned array is slow but sound.
pub fn view<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    of: Owned<'_, 'py>,
    start: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let memory = of.memory.slice(start..start + nbytes(dtype, shape)?);
    over(dtype, shape, memory.as_ptr().cast_mut(), of.owner)
}

fn over<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    start: *mut u8,
    base: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = new_array(dtype, shape, start.cast(), false)?;
    set_base(&array, base.clone())?;
    Ok(array)
}

#[inline]
fn nbytes(dtype: &Bound<'_, PyArrayDescr>, shape: &[usize]) -> PyResult<usize> {
    let mut shape = shape.iter();
    let nbytes = shape.try_fold(dtype.itemsize(), |sum, &dim| sum.checked_mul(dim));
    nbytes.ok_or_else(|| PyMemoryError::new_err("an array larger than any memory"))
}

pub struct Alike {
    pub dtype: Py<PyArrayDescr>,
    pub shape: SmallVec<[usize; 4]>,
    pub nbytes: usize,
}

impl Alike {
    /// Returns the elements of an array, if it is alike and C-contiguous.
    #[inline]
    pub fn memory<'a>(&self, array: &'a Bound<'_, PyUntypedArray>) -> Option<RawBytes<'a>> {
        // SAFETY: the array is alive as long as it is borrowed.
        with_critical_section(array, || unsafe { self.memory_of(array.as_array_ptr()) })
    }

    #[inline]
    pub(super) unsafe fn is_of(&self, array: *mut npyffi::PyArrayObject) -> bool {
        // SAFETY: a live array has valid fields, and `nd` dimensions; no other code runs in
        // between.
        unsafe {
            let fields = npyffi::_PyArray_GET_ITEM_DATA(array);
            let shape = &self.shape[..];
            (*fields).descr.cast() == self.dtype.as_ptr()
                && usize::try_from((*fields).nd) == Ok(shape.len())
                && (shape.is_empty()
                    || slice::from_raw_parts((*fields).dimensions.cast::<usize>(), shape.len())
                        == shape)
        }
    }

    /// As `memory`, for a raw pointer.
    ///
    /// # Safety
    /// The array is alive. While its memory is used, no Python code runs, or a reference to the
    /// array is held.
    #[inline]
    pub(super) unsafe fn memory_of<'a>(
        &self,
        array: *mut npyffi::PyArrayObject,
    ) -> Option<RawBytes<'a>> {
        // SAFETY: a live array has valid fields. For its memory see `ArrayParts::memory`.
        unsafe {
            let fields = npyffi::_PyArray_GET_ITEM_DATA(array);
            let is_like =
                self.is_of(array) && (*fields).flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0;
            is_like.then(|| RawBytes::new((*fields).data.cast_const().cast(), self.nbytes))
        }
    }
}

/// A snapshot of an array's fields, taken without calling Python.
///
/// Without the GIL, the lock excludes only code that locks the array, too: not NumPy, which forbids
/// changing an array in place that another thread uses.
pub struct ArrayParts<'a> {
    shape: SmallVec<[usize; 4]>,
    array: PhantomData<&'a PyUntypedArray>,
    data: *const u8,
    nbytes: usize,
    dtype: *mut ffi::PyObject,
    is_contiguous: bool,
}

impl<'a> ArrayParts<'a> {
    #[inline]
    pub fn of(array: &'a Bound<'_, PyUntypedArray>) -> Self {
        // SAFETY: a live array has valid fields; its dimensions are not negative, and are copied
        // before other code runs. The itemsize comes from its own dtype.
        with_critical_section(array, || unsafe {
            let fields = npyffi::_PyArray_GET_ITEM_DATA(array.as_array_ptr());
            let ndim = usize::try_from((*fields).nd).unwrap_or(0);
            let mut shape = SmallVec::new();
            if ndim > 0 {
                let dimensions = (*fields).dimensions.cast::<usize>();
                shape.extend_from_slice(slice::from_raw_parts(dimensions, ndim));
            }
            let descr = (*fields).descr;
            let itemsize = npyffi::PyDataType_ELSIZE(array.py(), descr);
            let itemsize = usize::try_from(itemsize).unwrap_or(0);
            Self {
                data: (*fields).data.cast_const().cast(),
                nbytes: shape.iter().product::<usize>() * itemsize,
                shape,
                array: PhantomData,
                dtype: descr.cast(),
                is_contiguous: (*fields).flags & npyffi::NPY_ARRAY_C_CONTIGUOUS != 0,
            }
        })
    }

    #[inline]
    pub fn dtype_of(array: &Bound<'_, PyUntypedArray>) -> *mut ffi::PyObject {
        // SAFETY: a live array has valid fields.
        unsafe {
            (*npyffi::_PyArray_GET_ITEM_DATA(array.as_array_ptr()))
                .descr
                .cast()
        }
    }

    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    #[inline]
    pub fn dtype(&self) -> *mut ffi::PyObject {
        self.dtype
    }

    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous
    }

    #[inline]
    pub fn memory(&self) -> RawBytes<'a> {
        assert!(self.is_contiguous);
        // SAFETY: NumPy keeps the `nbytes` bytes of a contiguous array at `data`, and refuses to
        // resize an array to which others hold a reference (unless the program passes
        // refcheck=False, which NumPy documents as unsafe for any holder).
        unsafe { RawBytes::new(self.data, self.nbytes) }
    }
}

/// Lets a fresh array keep the owner of its memory.
fn set_base(array: &Bound<'_, PyAny>, base: Bound<'_, PyAny>) -> PyResult<()> {
    let py = array.py();
    let array = array.as_ptr().cast();
    // SAFETY: `array` is fresh and has no base; the call takes over the reference to `base`.
    let status = unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, array, base.into_ptr()) };
    match status {
        0 => Ok(()),
        _ => Err(raised(py)),
    }
}

/// Makes an array over `data`; if null, with its own memory, which is writable.
fn new_array<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[usize],
    data: *mut c_void,
    writable: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = dtype.py();
    let ndim = c_int::try_from(shape.len())?;
    // Without data, any flag means Fortran order. NumPy checks the alignment itself.
    let flags = if writable && !data.is_null() {
        npyffi::NPY_ARRAY_WRITEABLE
    } else {
        0
    };
    // SAFETY: the call takes over one reference to the dtype, and reads `ndim` dimensions. `Dims`
    // has checked that there are at most MAX_NDIM, and `resolve` that they and their product fit,
    // even beside a zero. Without strides the call assumes C order. Errors come back as null.
    unsafe {
        let object = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            PyUntypedArray::type_object_raw(py),
            dtype.clone().into_dtype_ptr(),
            ndim,
            shape.as_ptr().cast_mut().cast::<npy_intp>(), // as large as a usize, and only read
            std::ptr::null_mut(),
            data,
            flags,
            std::ptr::null_mut(),
        );
        created(py, object)
    }
}
