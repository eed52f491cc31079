//! Containers whose children and static data are attributes of the same names for all of their type.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use numpy::PyArrayDescr;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCFunction, PyDict, PyFloat, PyInt, PyString, PyTuple, PyType};
use serde_bytes::ByteBuf;

use super::hooks::Hooks;
use super::memory::new_tuple_of;
use super::value;
use crate::grow;
use crate::structure::NodeType;

/// What containers of one type consist of; see `fixed_fields.FixedFields`.
#[derive(FromPyObject)]
pub struct Fields<'py> {
    /// The names of the children.
    pub names: Vec<Bound<'py, PyString>>,
    /// Takes a template and new children, returns a new container.
    pub make: Bound<'py, PyAny>,
    /// How many attributes it has, if that matters.
    exactly: Option<usize>,
    /// Whether what is inside becomes a state dict, even in the state that a handler has made.
    pub pytree: bool,
    /// Whether functions among the children are no state.
    code: bool,
    /// What is recorded of it, if that is known.
    pub record: Option<TypeRecord<'py>>,
}

impl<'py> Fields<'py> {
    /// The children of a container of the type; `None` if it is not like others, or cannot be
    /// asked: then Python finds out what is the matter.
    fn children(&self, node: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        match self.values(node, &self.names) {
            Err(error) if error.is_instance_of::<PyException>(node.py()) => Ok(None),
            values => values,
        }
    }

    /// Attributes of a container; `None` if it is not like others.
    fn values(
        &self,
        node: &Bound<'py, PyAny>,
        names: &[Bound<'py, PyString>],
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let Some(exactly) = self.exactly else {
            let values = names.iter().map(|name| node.getattr(name));
            return values.collect::<PyResult<_>>().map(Some);
        };
        // What it has by itself, and not what its class has in the place of that or makes of it.
        let attributes = node.getattr(intern!(node.py(), "__dict__"))?;
        let attributes = attributes.cast_into::<PyDict>()?;
        if attributes.len() != exactly {
            return Ok(None);
        }
        names.iter().map(|name| attributes.get_item(name)).collect()
    }

    /// Static data of a container as bytes, if it is known what is recorded of it.
    pub fn data(&self, node: &Bound<'py, PyAny>) -> PyResult<Option<ByteBuf>> {
        let Some(record) = &self.record else {
            return Ok(None);
        };
        let names = &record.told.r#static;
        let values = if names.is_empty() {
            Vec::new()
        } else if let Some(values) = self.values(node, names)? {
            values
        } else {
            return Ok(None);
        };
        if let Some((last, data)) = &*record.last.borrow()
            && last.iter().zip(&values).all(|(a, b)| are_same(a, b))
        {
            return Ok(Some(data.clone()));
        }
        let parts = record.told.head.iter().chain(&values);
        let parts = grow::collect(parts.cloned())?;
        let parts = new_tuple_of(node.py(), parts)?;
        let data = ByteBuf::from(value::encode(parts.as_any())?);
        *record.last.borrow_mut() = Some((values, data.clone()));
        Ok(Some(data))
    }
}

/// The fields of a type, and the children of one container of it.
pub type Attributes<'py> = (Rc<Fields<'py>>, Vec<Bound<'py, PyAny>>);

/// What is recorded of all containers of a type.
pub struct TypeRecord<'py> {
    told: Told<'py>,
    /// The number of the type, once it has one.
    pub number: OnceCell<u32>,
    /// The static data that were encoded last: many containers have the same.
    last: RefCell<Option<(Vec<Bound<'py, PyAny>>, ByteBuf)>>,
}

/// See `fixed_fields.TypeRecord`.
#[derive(FromPyObject)]
struct Told<'py> {
    name: String,
    fields: Option<(Vec<String>, Vec<String>)>,
    version: u32,
    head: Vec<Bound<'py, PyAny>>,
    r#static: Vec<Bound<'py, PyString>>,
}

impl<'py> FromPyObject<'_, 'py> for TypeRecord<'py> {
    type Error = PyErr;

    fn extract(record: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            told: record.extract()?,
            number: OnceCell::new(),
            last: RefCell::default(),
        })
    }
}

impl TypeRecord<'_> {
    /// The type.
    pub fn node_type(&self) -> NodeType {
        NodeType {
            name: self.told.name.clone(),
            fields: self.told.fields.clone(),
            version: self.told.version,
        }
    }
}

/// Whether two values surely are encoded as the same bytes: they are equal, and of a type whose
/// values do not change.
fn are_same(a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> bool {
    if let (Ok(a), Ok(b)) = (a.cast_exact::<PyInt>(), b.cast_exact::<PyInt>()) {
        return a.as_any().eq(b).unwrap_or(false);
    }
    let same = a.is(b)
        && (a.is_none()
            || a.is_exact_instance_of::<PyBool>()
            || a.is_exact_instance_of::<PyString>()
            || a.is_exact_instance_of::<PyFloat>()
            || a.is_exact_instance_of::<PyCFunction>()
            || a.is_instance_of::<PyType>()
            || a.is_instance_of::<PyArrayDescr>());
    let parts = |value| Bound::cast_exact::<PyTuple>(value).ok();
    same || parts(a).zip(parts(b)).is_some_and(|(a, b)| {
        a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| are_same(&a, &b))
    })
}

/// What was asked of types, each once. They are held, so that no other one gets the address of
/// one that was met.
#[derive(Default)]
pub struct FieldsByType<'py>(Vec<(Bound<'py, PyType>, Option<Rc<Fields<'py>>>)>);

impl<'py> FieldsByType<'py> {
    /// What containers like this one consist of, if they all consist of the same.
    pub fn of(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Option<Rc<Fields<'py>>>> {
        let class = node.get_type();
        if let Some((_, known)) = self.0.iter().find(|(known, _)| known.is(&class)) {
            return Ok(known.clone());
        }
        let fixed_fields = Hooks::get(node.py())?.fixed_fields.bind(node.py());
        let answer: Option<Fields<'py>> = fixed_fields.call1((node,))?.extract()?;
        let fields = answer.map(Rc::new);
        self.0.push((class, fields.clone()));
        Ok(fields)
    }

    /// The same with its children, unless one may be code: `is_state` tells what is none.
    pub fn attributes(
        &mut self,
        node: &Bound<'py, PyAny>,
        mut is_state: impl FnMut(&Bound<'py, PyAny>) -> PyResult<bool>,
    ) -> PyResult<Option<Attributes<'py>>> {
        let Some(fields) = self.of(node)? else {
            return Ok(None);
        };
        let Some(children) = fields.children(node)? else {
            return Ok(None);
        };
        if fields.code {
            for child in &children {
                if !is_state(child)? {
                    return Ok(None);
                }
            }
        }
        Ok(Some((fields, children)))
    }
}
