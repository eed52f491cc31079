//! Containers whose children and static data are attributes with fixed names.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use numpy::PyArrayDescr;
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCFunction, PyDict, PyFloat, PyInt, PyString, PyTuple, PyType};
use serde_bytes::ByteBuf;

use super::classes::{ByType, by_type};
use super::hooks::Hooks;
use super::memory::new_tuple_of;
use super::value;
use crate::base::grow;
use crate::format::structure::NodeType;

/// See `fixed_fields.FixedFields`.
#[derive(FromPyObject)]
pub struct Fields<'py> {
    pub names: Vec<Bound<'py, PyString>>,
    pub make: Bound<'py, PyAny>,
    exactly: Option<usize>,
    /// Whether its content becomes a state dict, even in a handler's state.
    pub pytree: bool,
    /// Whether children may be functions, which are not state.
    code: bool,
    /// Static data: those that all have, and the attributes that follow.
    head: Vec<Bound<'py, PyAny>>,
    r#static: Option<Vec<Bound<'py, PyString>>>,
    #[pyo3(attribute("type"))]
    pub record: Option<TypeRecord<'py>>,
}

impl<'py> Fields<'py> {
    /// Returns the children; `None` if the container is unusual or fails, which Python explains.
    fn children(&self, node: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        match self.values(node, &self.names) {
            Err(error) if error.is_instance_of::<PyException>(node.py()) => Ok(None),
            values => values,
        }
    }

    fn values(
        &self,
        node: &Bound<'py, PyAny>,
        names: &[Bound<'py, PyString>],
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let Some(exactly) = self.exactly else {
            let values = names.iter().map(|name| node.getattr(name));
            return values.collect::<PyResult<_>>().map(Some);
        };
        // The attributes of the object, without its class.
        let attributes = node.getattr(intern!(node.py(), "__dict__"))?;
        let attributes = attributes.cast_into::<PyDict>()?;
        if attributes.len() != exactly {
            return Ok(None);
        }
        names.iter().map(|name| attributes.get_item(name)).collect()
    }

    /// Returns the encoded static data, if the type's record is known.
    pub fn data(&self, node: &Bound<'py, PyAny>) -> PyResult<Option<ByteBuf>> {
        let (Some(record), Some(names)) = (&self.record, &self.r#static) else {
            return Ok(None);
        };
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
        let parts = self.head.iter().chain(&values);
        let parts = grow::collect(parts.cloned())?;
        let parts = new_tuple_of(node.py(), parts)?;
        let data = ByteBuf::from(value::encode(parts.as_any())?);
        *record.last.borrow_mut() = Some((values, data.clone()));
        Ok(Some(data))
    }
}

pub type Attributes<'py> = (Rc<Fields<'py>>, Vec<Bound<'py, PyAny>>);

/// A `NodeType` of Python, in a record.
pub struct TypeRecord<'py> {
    pub node_type: NodeType,
    /// The index in the record, once assigned.
    pub number: OnceCell<u32>,
    /// The last encoded static data: many containers have the same.
    last: RefCell<Option<(Vec<Bound<'py, PyAny>>, ByteBuf)>>,
}

impl<'py> FromPyObject<'_, 'py> for TypeRecord<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        Ok(Self {
            node_type: NodeType {
                name: object.getattr(intern!(py, "name"))?.extract()?,
                fields: object.getattr(intern!(py, "fields"))?.extract()?,
                version: object.getattr(intern!(py, "version"))?.extract()?,
            },
            number: OnceCell::new(),
            last: RefCell::default(),
        })
    }
}

/// Returns whether two values certainly have the same encoding: equal and immutable.
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

#[derive(Default)]
pub struct FieldsByType<'py>(ByType<'py, Option<Rc<Fields<'py>>>>);

impl<'py> FieldsByType<'py> {
    pub fn of(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Option<Rc<Fields<'py>>>> {
        by_type(&mut self.0, node, || {
            let fixed_fields = Hooks::get(node.py())?.fixed_fields.bind(node.py());
            let answer: Option<Fields<'py>> = fixed_fields.call1((node,))?.extract()?;
            Ok(answer.map(Rc::new))
        })
    }

    /// `None` if `is_state` rejects a child.
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
