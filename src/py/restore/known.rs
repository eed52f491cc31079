//! What is known of a type of nodes, and the making of nodes by its class itself.

use std::cell::RefCell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::super::memory::{dict_next, new_tuple_of};

/// What of a type makes nodes, unless they are abstract.
pub(super) const UNFLATTEN: &str = "unflatten";

/// What is known of a type; see `NodeType` in `registry/types.py`.
pub(super) struct Known<'py> {
    pub(super) class: Bound<'py, PyAny>,
    pub(super) decode: Bound<'py, PyAny>,
    /// What makes nodes of it.
    pub(super) make: Bound<'py, PyAny>,
    /// How the class itself makes nodes, if it does.
    arguments: Option<Arguments<'py>>,
}

/// The arguments of a class that makes nodes of them; see `NodeType` in `registry/types.py`.
struct Arguments<'py> {
    /// The names of the children, as the objects that were met last: the keys of most nodes of a
    /// type are the same objects.
    children: RefCell<Vec<Bound<'py, PyAny>>>,
    /// How much static data there is.
    fields: usize,
    /// The numbers of these, children first, in the order of the arguments.
    order: Vec<usize>,
}

impl<'py> Known<'py> {
    /// A type, and the name of what makes nodes of it.
    pub(super) fn of(found: &Bound<'py, PyAny>, make: &str) -> PyResult<Self> {
        let py = found.py();
        let order = found.getattr(intern!(py, "order"))?;
        let arguments = if order.is_none() || make != UNFLATTEN {
            None
        } else {
            let fields = found.getattr(intern!(py, "fields"))?;
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
            class: found.getattr(intern!(py, "ty"))?,
            decode: found.getattr(intern!(py, "decode"))?,
            make: found.getattr(make)?,
            arguments,
        })
    }

    /// A node of these children, whose names are in the dict, and static data, if the class itself
    /// makes it.
    pub(super) fn made(
        &self,
        dict: &Bound<'py, PyDict>,
        built: &[Bound<'py, PyAny>],
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(arguments) = &self.arguments else {
            return Ok(None);
        };
        let Ok(data) = data.cast_exact::<PyTuple>() else {
            return Ok(None);
        };
        if data.len() != arguments.fields || !has_keys(dict, &mut arguments.children.borrow_mut())?
        {
            return Ok(None);
        }
        // `Known::of` has looked at the numbers, and both lengths are as they were then.
        let given = arguments.order.iter().map(|&number| {
            let in_data = |at| data.get_item(at).expect("a field of static data");
            let child = built.get(number).cloned();
            child.unwrap_or_else(|| in_data(number - built.len()))
        });
        self.class.call1(new_tuple_of(dict.py(), given)?).map(Some)
    }
}

/// Whether a dict has these keys, in order; those that it has take their places.
fn has_keys<'py>(dict: &Bound<'py, PyDict>, keys: &mut [Bound<'py, PyAny>]) -> PyResult<bool> {
    if dict.len() != keys.len() {
        return Ok(false);
    }
    let mut position = 0;
    for key in keys {
        match dict_next(dict, &mut position) {
            Some((found, _)) if found.is(&*key) => {}
            Some((found, _)) if found.eq(&*key)? => *key = found,
            _ => return Ok(false),
        }
    }
    Ok(true)
}
