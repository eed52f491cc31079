//! Creates Python objects. Where pyo3 panics out of memory, these return a `MemoryError`.

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use pyo3::types::{PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// Takes the raised exception; a call that failed without one was out of memory.
pub(super) fn raised(py: Python<'_>) -> PyErr {
    PyErr::take(py).unwrap_or_else(|| PyMemoryError::new_err(()))
}

/// Takes the new object that a call returned, or the exception that it raised.
///
/// # Safety
/// As for `Bound::from_owned_ptr_or_opt`.
pub(super) unsafe fn created(
    py: Python<'_>,
    object: *mut ffi::PyObject,
) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: as the caller guarantees.
    let object = unsafe { Bound::from_owned_ptr_or_opt(py, object) };
    object.ok_or_else(|| raised(py))
}

macro_rules! create {
    ($($(#[$doc:meta])? $name:ident($($argument:ident: $kind:ty),*) -> $class:ty = $call:expr;)*) => {$(
        $(#[$doc])?
        #[inline]
        #[allow(clippy::elidable_lifetime_names)] // without, they are ambiguous
        pub fn $name<'py>(py: Python<'py>, $($argument: $kind),*) -> PyResult<Bound<'py, $class>> {
            // SAFETY: the call returns a new object of this class, or null and an error. Its
            // arguments are valid for their length.
            unsafe {
                let object = created(py, $call)?;
                Ok(object.cast_into_unchecked())
            }
        }
    )*};
}

create! {
    new_dict() -> PyDict = ffi::PyDict_New();
    new_list() -> PyList = ffi::PyList_New(0);
    new_string(text: &str) -> PyString =
        ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len().cast_signed());
    /// Errors like Python if `text` is not UTF-8.
    decoded(text: &[u8]) -> PyString =
        ffi::PyUnicode_FromStringAndSize(text.as_ptr().cast(), text.len().cast_signed());
    new_int(value: i64) -> PyInt = ffi::PyLong_FromLongLong(value);
    new_uint(value: u64) -> PyInt = ffi::PyLong_FromUnsignedLongLong(value);
    new_float(value: f64) -> PyFloat = ffi::PyFloat_FromDouble(value);
    new_complex(real: f64, imaginary: f64) -> PyComplex =
        ffi::PyComplex_FromDoubles(real, imaginary);
}

macro_rules! create_of {
    ($($name:ident -> $class:ty = $new:path, $set:path;)*) => {$(
        pub fn $name<'py, I>(py: Python<'py>, items: I) -> PyResult<Bound<'py, $class>>
        where
            I: IntoIterator<Item = Bound<'py, PyAny>, IntoIter: ExactSizeIterator>,
        {
            let mut items = items.into_iter();
            let len = items.len();
            // SAFETY: the call returns a new object of this class, or null and an error. No other
            // code uses it before each of its `len` slots is set once, to an item that it owns from
            // then on.
            unsafe {
                let object = created(py, $new(len.cast_signed()))?;
                for index in 0..len {
                    let item = items.next().expect("as many as they say");
                    if $set(object.as_ptr(), index.cast_signed(), item.into_ptr()) != 0 {
                        return Err(raised(py));
                    }
                }
                Ok(object.cast_into_unchecked())
            }
        }
    )*};
}

pub fn list_of_results<'py, T>(
    py: Python<'py>,
    items: impl IntoIterator<Item = PyResult<Bound<'py, T>>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = new_list(py)?;
    for item in items {
        list.append(item?.into_any())?;
    }
    Ok(list)
}

/// Makes a list of texts, numbers or rows.
pub fn list_of<'py>(
    py: Python<'py>,
    items: impl IntoIterator<Item = impl Item<'py>>,
) -> PyResult<Bound<'py, PyList>> {
    list_of_results(py, items.into_iter().map(|item| item.item(py)))
}

/// An item of a list or tuple.
pub trait Item<'py> {
    fn item(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;
}

macro_rules! item {
    ($($kind:ty: $self:ident => $new:ident($value:expr);)*) => {$(
        impl<'py> Item<'py> for $kind {
            #[inline]
            fn item(&$self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                Ok($new(py, $value)?.into_any())
            }
        }
    )*};
}

item! {
    str: self => new_string(self);
    String: self => new_string(self);
    usize: self => new_uint(*self as u64);
    u32: self => new_uint((*self).into());
    u64: self => new_uint(*self);
}

impl<'py, T: Item<'py>> Item<'py> for Option<T> {
    fn item(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let item = self.as_ref().map(|item| item.item(py));
        item.unwrap_or_else(|| Ok(py.None().into_bound(py)))
    }
}

impl<'py, T> Item<'py> for Bound<'py, T> {
    fn item(&self, _: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.as_any().clone())
    }
}

impl<'py, T: Item<'py>, const N: usize> Item<'py> for [T; N] {
    fn item(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(new_tuple(py, self)?.into_any())
    }
}

impl<'py, T: Item<'py> + ?Sized> Item<'py> for &T {
    fn item(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (**self).item(py)
    }
}

macro_rules! row {
    ($py:expr, $($item:expr),+) => {{
        use $crate::py::memory::{Item, new_tuple_of};
        new_tuple_of($py, [$(Item::item(&$item, $py)?),+])
    }};
}
pub(crate) use row;

#[inline]
pub fn new_tuple<'py>(py: Python<'py>, items: &[impl Item<'py>]) -> PyResult<Bound<'py, PyTuple>> {
    let mut objects: SmallVec<[_; 6]> = SmallVec::new();
    for item in items {
        objects.push(item.item(py)?);
    }
    new_tuple_of(py, objects)
}

create_of! {
    new_list_of -> PyList = ffi::PyList_New, ffi::PyList_SetItem;
    new_tuple_of -> PyTuple = ffi::PyTuple_New, ffi::PyTuple_SetItem;
}
