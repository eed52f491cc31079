//! Registered types, and nodes that their classes make.

use std::cell::RefCell;

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::hashes::may_be_key;
use super::super::memory::new_tuple_of;
use super::keys::Name;

/// A registered type; see `NodeType` in `registry/types.py`.
pub struct Known<'py> {
    pub(super) class: Bound<'py, PyAny>,
    pub(super) decode: Bound<'py, PyAny>,
    pub(super) make: Bound<'py, PyAny>,
    /// Whether `make` is code of a library.
    pub(super) foreign: bool,
    arguments: Option<Arguments<'py>>,
}

/// The arguments of a class whose call makes a node; see `NodeType.order`.
struct Arguments<'py> {
    /// The names of the children, as the latest objects: most nodes of a type share key objects.
    children: RefCell<Vec<Bound<'py, PyAny>>>,
    fields: usize,
    /// The index of each argument in children and static values, joined.
    order: Vec<usize>,
}

impl<'py> Known<'py> {
    pub(super) fn of(entry: &Bound<'py, PyAny>, is_abstract: bool) -> PyResult<Self> {
        let py = entry.py();
        let order = entry.getattr(intern!(py, "order"))?;
        let arguments = if order.is_none() || is_abstract {
            None
        } else {
            let fields = entry.getattr(intern!(py, "fields"))?;
            let (children, fields): (Vec<_>, Vec<Bound<'_, PyAny>>) = fields.extract()?;
            let order: Vec<usize> = order.extract()?;
            let count = children.len() + fields.len();
            let is_there = order.iter().all(|number| *number < count);
            is_there.then(|| Arguments {
                children: RefCell::new(children),
                fields: fields.len(),
                order,
            })
        };
        Ok(Self {
            class: entry.getattr(intern!(py, "ty"))?,
            decode: entry.getattr(intern!(py, "decode"))?,
            make: entry.getattr(if is_abstract {
                "unflatten_abstract"
            } else {
                "unflatten"
            })?,
            foreign: entry.getattr(intern!(py, "foreign"))?.is_truthy()?,
            arguments,
        })
    }

    pub(super) fn made(
        &self,
        names: impl Iterator<Item = Name<'py>>,
        built: &[Bound<'py, PyAny>],
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(arguments) = &self.arguments else {
            return Ok(None);
        };
        let Ok(data) = data.cast_exact::<PyTuple>() else {
            return Ok(None);
        };
        let known = &mut arguments.children.borrow_mut();
        if data.len() != arguments.fields
            || built.len() != known.len()
            || !are_keys(data.py(), names, known)?
        {
            return Ok(None);
        }
        // `Known::of` has checked the indices against these lengths.
        let given = arguments.order.iter().map(|&number| {
            let in_data = |at| data.get_item(at).expect("a field of static data");
            let child = built.get(number).cloned();
            child.unwrap_or_else(|| in_data(number - built.len()))
        });
        let given = new_tuple_of(data.py(), given)?;
        self.class.call1(given).map(Some)
    }
}

/// Returns whether nodes can share static data, since they cannot change.
pub(super) fn is_constant(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !may_be_key(data)? {
        return Ok(false);
    }
    match data.hash() {
        Err(error) if !error.is_instance_of::<PyException>(data.py()) => Err(error),
        hashed => Ok(hashed.is_ok()),
    }
}

/// Compares names with keys, in order; equal names become the keys.
fn are_keys<'py>(
    py: Python<'py>,
    names: impl Iterator<Item = Name<'py>>,
    keys: &mut [Bound<'py, PyAny>],
) -> PyResult<bool> {
    for (name, key) in names.zip(keys) {
        let text = name.object(py)?;
        if text.is(&*key) {
            continue;
        }
        if !text.eq(&*key)? {
            return Ok(false);
        }
        *key = text;
    }
    Ok(true)
}
