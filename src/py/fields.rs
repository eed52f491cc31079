//! Containers whose children are attributes with the same names for all of their type.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::hooks::Hooks;

/// What containers of one type consist of.
pub struct Fields<'py> {
    /// The names of the children.
    pub names: Vec<Bound<'py, PyString>>,
    /// Takes a template and new children, returns a new container.
    pub make: Bound<'py, PyAny>,
}

/// What was asked of types, each once. They are held, so that no other one gets the address of
/// one that was met.
#[derive(Default)]
pub struct FieldsByType<'py>(Vec<(Bound<'py, PyType>, Option<Fields<'py>>)>);

impl<'py> FieldsByType<'py> {
    /// What containers like this one consist of, if they all consist of the same.
    pub fn of(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Option<&Fields<'py>>> {
        let class = node.get_type();
        let known = self.0.iter().position(|(known, _)| known.is(&class));
        let index = if let Some(known) = known {
            known
        } else {
            let fixed_fields = Hooks::get(node.py())?.fixed_fields.bind(node.py());
            let answer: Option<(Vec<Bound<'py, PyString>>, Bound<'py, PyAny>)> =
                fixed_fields.call1((node,))?.extract()?;
            let fields = answer.map(|(names, make)| Fields { names, make });
            self.0.push((class, fields));
            self.0.len() - 1
        };
        Ok(self.0[index].1.as_ref())
    }
}
