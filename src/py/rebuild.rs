//! The restoring of a template's containers around leaves that were loaded.
//!
//! This is the fast path of `_state_dict.from_state_dict`: exact dicts, lists and
//! tuples whose state has what they need, and leaves that plainly match. Anything
//! else, and everything that is wrong, is left to `_state_dict.restore_child`,
//! which knows all containers and words all errors.

use std::cell::RefCell;

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use pyo3::{PyTypeInfo, ffi, intern};

use super::fields::FieldsByType;
use super::hooks::Hooks;
use super::memory::dict_next;
use crate::wire::MAX_DEPTH;

/// Restores one child of a template, natively where that is possible; see `_core.pyi`.
#[pyfunction]
pub fn rebuild<'py>(
    target: &Bound<'py, PyAny>,
    state: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    restore: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = target.py();
    let rebuild = Rebuild {
        hooks: Hooks::get(py)?,
        restore,
        strict: restore.getattr(intern!(py, "strict"))?.is_truthy()?,
        path: restore.getattr(intern!(py, "path"))?.cast_into()?,
        array: PyUntypedArray::type_object_raw(py),
        abstract_arrays: RefCell::new(Vec::new()),
        fields: RefCell::default(),
    };
    rebuild.child(target, state, name)
}

struct Rebuild<'a, 'py> {
    hooks: &'static Hooks,
    /// The `_context.Restore` that this is part of.
    restore: &'a Bound<'py, PyAny>,
    strict: bool,
    /// The list that `_context.current_path` joins.
    path: Bound<'py, PyList>,
    array: *mut ffi::PyTypeObject,
    /// Types that were met, and whether they are arrays with a shape and a dtype.
    abstract_arrays: RefCell<Vec<(Bound<'py, PyType>, bool)>>,
    fields: RefCell<FieldsByType<'py>>,
}

/// A child of the template, its state and its name.
type Child<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyString>);

impl<'py> Rebuild<'_, 'py> {
    fn child(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = target.py();
        if self.is_matching_leaf(target, state)? {
            return Ok(state.clone());
        }
        if let Ok(state) = state.cast_exact::<PyDict>() {
            if let Ok(target) = target.cast_exact::<PyDict>() {
                if let Some(children) = pair_items(target, state)? {
                    let values = self.children(&children, name)?;
                    let built = PyDict::new(py);
                    for ((_, _, key), value) in children.iter().zip(values) {
                        built.set_item(key, value)?;
                    }
                    return Ok(built.into_any());
                }
            } else if let Ok(target) = target.cast_exact::<PyList>() {
                if let Some(children) = pair_elements(target.iter(), state)? {
                    let values = self.children(&children, name)?;
                    return Ok(PyList::new(py, values)?.into_any());
                }
            } else if let Ok(target) = target.cast_exact::<PyTuple>()
                && let Some(children) = pair_elements(target.iter(), state)?
            {
                let values = self.children(&children, name)?;
                return Ok(PyTuple::new(py, values)?.into_any());
            } else if let Some((children, make)) = self.pair_fields(target, state)? {
                let values = self.children(&children, name)?;
                return make.call1((target, values));
            }
        }
        let restore_child = self.hooks.restore_child.bind(py);
        restore_child.call1((target, state, name, self.restore))
    }

    /// The restored children, with `name` on the path meanwhile.
    fn children(
        &self,
        children: &[Child<'py>],
        name: &Bound<'py, PyString>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let depth = self.path.len();
        if depth >= MAX_DEPTH {
            return Err(PyValueError::new_err(format!(
                "the tree is nested more than {MAX_DEPTH} levels deep, or contains itself"
            )));
        }
        self.path.append(name)?;
        let restored = children
            .iter()
            .map(|(target, state, name)| self.child(target, state, name))
            .collect();
        self.path.del_slice(depth, self.path.len())?;
        restored
    }

    /// The children of a container whose fields are fixed, with their state, and what makes
    /// such a container; unless the state has other children.
    #[inline(never)]
    fn pair_fields(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyDict>,
    ) -> PyResult<Option<(Vec<Child<'py>>, Bound<'py, PyAny>)>> {
        let mut known = self.fields.borrow_mut();
        let Some(fields) = known.of(target)? else {
            return Ok(None);
        };
        if fields.names.len() != state.len() {
            return Ok(None);
        }
        let mut children = Vec::with_capacity(fields.names.len());
        for name in &fields.names {
            let Some(state) = state.get_item(name)? else {
                return Ok(None);
            };
            children.push((target.getattr(name)?, state, name.clone()));
        }
        Ok(Some((children, fields.make.clone())))
    }

    /// Whether `target` is a leaf that takes `state` without further question.
    #[inline(never)] // which keeps the recursion small
    fn is_matching_leaf(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let is_array = target.get_type_ptr() == self.array;
        if !is_array && !self.is_abstract_array(target)? {
            return Ok(target.is_none()
                || target.is_exact_instance_of::<PyInt>()
                || target.is_exact_instance_of::<PyFloat>()
                || target.is_exact_instance_of::<PyBool>()
                || target.is_exact_instance_of::<PyString>());
        }
        if state.get_type_ptr() != self.array {
            return Ok(false);
        }
        if !self.strict {
            return Ok(true);
        }
        let py = target.py();
        let state = state.cast::<PyUntypedArray>()?;
        if is_array {
            let target = target.cast::<PyUntypedArray>()?;
            return Ok(target.shape() == state.shape() && target.dtype().is(state.dtype()));
        }
        if !target.getattr(intern!(py, "dtype"))?.is(state.dtype()) {
            return Ok(false);
        }
        let shape = target.getattr(intern!(py, "shape"))?;
        let shape: Vec<usize> = shape.extract()?;
        Ok(shape == state.shape())
    }

    /// Whether `value` is a jax array, or stands for one.
    fn is_abstract_array(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        let class = value.get_type();
        let mut known = self.abstract_arrays.borrow_mut();
        if let Some((_, answer)) = known.iter().find(|(known, _)| known.is(&class)) {
            return Ok(*answer);
        }
        let answer = value.is_instance(self.hooks.abstract_arrays.bind(value.py()))?;
        known.push((class, answer));
        Ok(answer)
    }
}

/// The children of a dict with their state, unless a key is missing or no string.
#[inline(never)]
fn pair_items<'py>(
    target: &Bound<'py, PyDict>,
    state: &Bound<'py, PyDict>,
) -> PyResult<Option<Vec<Child<'py>>>> {
    let mut children = Vec::with_capacity(target.len());
    let mut position = 0;
    while let Some((key, child)) = dict_next(target, &mut position) {
        let Ok(key) = key.cast_into_exact::<PyString>() else {
            return Ok(None);
        };
        let Some(state) = state.get_item(&key)? else {
            return Ok(None);
        };
        children.push((child, state, key));
    }
    Ok(Some(children))
}

/// The elements of a sequence with their state, unless there are more or fewer of them.
#[inline(never)]
fn pair_elements<'py>(
    targets: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    state: &Bound<'py, PyDict>,
) -> PyResult<Option<Vec<Child<'py>>>> {
    if state.len() != targets.len() {
        return Ok(None);
    }
    let mut children = Vec::with_capacity(targets.len());
    for (index, target) in targets.enumerate() {
        let key = PyString::new(target.py(), &index.to_string());
        let Some(state) = state.get_item(&key)? else {
            return Ok(None);
        };
        children.push((target, state, key));
    }
    Ok(Some(children))
}
