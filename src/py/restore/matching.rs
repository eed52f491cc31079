//! Compares leaves with a template, as far as that calls no Python.

use std::cell::RefCell;
use std::ptr;

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyComplex, PyDict, PyList, PyTuple};
use pyo3::{PyTypeInfo, ffi, intern};

use super::super::classes::{ByType, Class, Classes, by_type, is_plain};
use super::super::fields::{Attributes, FieldsByType};
use super::super::hooks::Hooks;

pub struct Matching<'py> {
    strict: bool,
    /// Whether Python converts arrays unless they match exactly.
    converts: bool,
    /// NumPy's array type; null if Python converts NumPy arrays, too.
    array: *mut ffi::PyTypeObject,
    abstract_arrays: RefCell<ByType<'py, bool>>,
    fields: RefCell<FieldsByType<'py>>,
    classes: RefCell<Classes<'py>>,
}

impl<'py> Matching<'py> {
    /// `everywhere` leaves all arrays to Python.
    pub fn new(py: Python<'py>, strict: bool, converts: bool, everywhere: bool) -> Self {
        let array = PyUntypedArray::type_object_raw(py);
        Self {
            strict,
            converts,
            array: if everywhere { ptr::null_mut() } else { array },
            abstract_arrays: RefCell::new(Vec::new()),
            fields: RefCell::default(),
            classes: RefCell::default(),
        }
    }

    #[inline(never)]
    pub fn leaf(&self, target: &Bound<'py, PyAny>, state: &Bound<'py, PyAny>) -> PyResult<bool> {
        let is_array = target.get_type_ptr() == self.array;
        if !is_array {
            let same = target.get_type_ptr() == state.get_type_ptr();
            if is_plain(target) {
                return Ok(same || !self.strict);
            }
            // Numbers of one type have one dtype.
            if same && self.is_number(target)? {
                return Ok(true);
            }
            if !self.is_abstract_array(target)? {
                return Ok(false);
            }
            if same {
                return Ok(!self.converts && (!self.strict || are_alike(target, state)?));
            }
        }
        if state.get_type_ptr() != self.array || (self.converts && !is_array) {
            return Ok(false);
        }
        if !self.strict && !self.converts {
            return Ok(true);
        }
        if is_array {
            let target = target.cast::<PyUntypedArray>()?;
            let state = state.cast::<PyUntypedArray>()?;
            return Ok(target.shape() == state.shape() && target.dtype().is(state.dtype()));
        }
        are_alike(target, state)
    }

    #[inline(never)]
    pub fn fields(&self, target: &Bound<'py, PyAny>) -> PyResult<Option<Attributes<'py>>> {
        let mut classes = self.classes.borrow_mut();
        self.fields.borrow_mut().attributes(target, |child| {
            Ok(self.is_abstract_array(child)? || classes.is_state(child)?)
        })
    }

    pub fn is_array(&self, target: &Bound<'py, PyAny>) -> PyResult<bool> {
        Ok(target.get_type_ptr() == self.array || self.is_abstract_array(target)?)
    }

    #[inline(never)]
    pub fn is_leaf(&self, target: &Bound<'py, PyAny>) -> PyResult<bool> {
        let is_plain = is_plain(target)
            || target.is_exact_instance_of::<PyBytes>()
            || target.is_exact_instance_of::<PyComplex>();
        if is_plain || self.is_array(target)? {
            return Ok(true);
        }
        Ok(matches!(
            self.classes.borrow_mut().of(target)?,
            Class::Array | Class::Scalar | Class::JaxArray | Class::PrngKey | Class::BytesLike
        ))
    }

    #[inline(never)]
    pub fn is_code(&self, target: &Bound<'py, PyAny>) -> PyResult<bool> {
        Ok(self.classes.borrow_mut().of(target)? == Class::Code)
    }

    fn is_number(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        if self.classes.borrow_mut().of(value)? != Class::Scalar {
            return Ok(false);
        }
        let kind: char = value
            .getattr(intern!(value.py(), "dtype"))?
            .getattr(intern!(value.py(), "kind"))?
            .extract()?;
        Ok("biufc".contains(kind))
    }

    fn is_abstract_array(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        // Most values. A call into Python costs as much as two arrays.
        if is_plain(value)
            || value.is_exact_instance_of::<PyUntypedArray>()
            || value.is_exact_instance_of::<PyDict>()
            || value.is_exact_instance_of::<PyList>()
            || value.is_exact_instance_of::<PyTuple>()
        {
            return Ok(false);
        }
        by_type(&mut self.abstract_arrays.borrow_mut(), value, || {
            let is_abstract = Hooks::get(value.py())?.is_abstract_array.bind(value.py());
            is_abstract.call1((value,))?.is_truthy()
        })
    }
}

/// Returns whether two arrays certainly have the same shape and dtype.
fn are_alike(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = a.py();
    let same_dtype = a
        .getattr(intern!(py, "dtype"))?
        .is(b.getattr(intern!(py, "dtype"))?);
    let shape = intern!(py, "shape");
    Ok(same_dtype && a.getattr(shape)?.eq(b.getattr(shape)?)?)
}
