//! What is known of a type of nodes, and the making of nodes by its class itself.

use std::cell::RefCell;
use std::rc::Rc;

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use super::super::failure::Walked;
use super::super::hashes::may_be_key;
use super::super::hooks::Hooks;
use super::super::memory::{dict_next, new_tuple_of};
use crate::structure::NodeType;

/// What of a type makes nodes, unless they are abstract.
pub(super) const UNFLATTEN: &str = "unflatten";

/// What is known of a type; see `NodeType` in `registry/types.py`.
pub struct Known<'py> {
    pub(super) class: Bound<'py, PyAny>,
    pub(super) decode: Bound<'py, PyAny>,
    /// What makes nodes of it.
    pub(super) make: Bound<'py, PyAny>,
    /// Whether that is unknown code of a library.
    pub(super) foreign: bool,
    /// How the class itself makes nodes, if it does.
    arguments: Option<Arguments<'py>>,
}

/// The arguments of a class that makes nodes of them; see `NodeType` in `registry/types.py`.
struct Arguments<'py> {
    /// The names of the children, as the objects that were met last: the keys of most nodes of a
    /// type are the same objects.
    children: RefCell<Vec<Bound<'py, PyAny>>>,
    /// The same, as they were at first.
    names: Vec<String>,
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
            let names = children.iter().map(PyAnyMethods::extract);
            let names = names.collect::<PyResult<_>>()?;
            is_there.then(|| Arguments {
                children: RefCell::new(children),
                names,
                fields: fields.len(),
                order,
            })
        };
        Ok(Self {
            class: found.getattr(intern!(py, "ty"))?,
            decode: found.getattr(intern!(py, "decode"))?,
            make: found.getattr(make)?,
            foreign: found.getattr(intern!(py, "foreign"))?.is_truthy()?,
            arguments,
        })
    }

    /// A type that is called to make nodes; nothing if the program knows none, or it is not.
    pub fn called(py: Python<'py>, class: &NodeType) -> Walked<Option<Rc<Self>>> {
        let find = Hooks::get(py)?.find_node_type.bind(py);
        let no_fillings = py.None();
        let found = find.call1((&class.name, &class.fields, class.version, true, no_fillings))?;
        if found.is_none() {
            return Ok(None);
        }
        let known = Self::of(&found, UNFLATTEN)?;
        Ok(known.arguments.is_some().then(|| Rc::new(known)))
    }

    /// Static data that all nodes with the same bytes can have; nothing for others, and for those
    /// with holes.
    pub fn decoded(&self, data: &Bound<'py, PyBytes>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if has_holes(data.as_bytes()) {
            return Ok(None);
        }
        let data = self.decode.call1((data,))?;
        let fields = self.arguments.as_ref().map(|arguments| arguments.fields);
        match data.cast_into_exact::<PyTuple>() {
            Ok(data) if Some(data.len()) == fields && is_constant(data.as_any())? => Ok(Some(data)),
            _ => Ok(None),
        }
    }

    /// The names of the children.
    pub fn names(&self) -> &[String] {
        let arguments = self.arguments.as_ref();
        arguments.map_or(&[], |arguments| &arguments.names)
    }

    /// A node of these children, as many as there are names, and static data.
    pub fn call(
        &self,
        children: &[Bound<'py, PyAny>],
        data: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = self.arguments.as_ref();
        let order: &[usize] = arguments.map_or(&[], |arguments| &arguments.order);
        let given = order.iter().map(|&number| {
            let in_data = |at| data.get_item(at).expect("a field of static data");
            let child = children.get(number).cloned();
            child.unwrap_or_else(|| in_data(number - children.len()))
        });
        self.class.call1(new_tuple_of(data.py(), given)?)
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
        self.call(built, data).map(Some)
    }
}

/// Whether all nodes with the same static data can share them, since they cannot change.
pub(super) fn is_constant(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !may_be_key(data)? {
        return Ok(false);
    }
    match data.hash() {
        Err(error) if !error.is_instance_of::<PyException>(data.py()) => Err(error),
        hashed => Ok(hashed.is_ok()),
    }
}

/// What encoded static data with a hole contain; see `registry/holes.py`.
const HOLE: &[u8] = b"treepack.hole";

/// Whether encoded static data may have holes.
pub(super) fn has_holes(data: &[u8]) -> bool {
    data.windows(HOLE.len()).any(|window| window == HOLE)
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
