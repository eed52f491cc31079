//! Writes nodes: values of types that a handler, a registration or Python takes apart.

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use serde_bytes::ByteBuf;

use super::super::errors;
use super::super::failure::{Failure, Walked};
use super::super::fields::{Attributes, Fields};
use super::state::{Position, Walk};
use crate::base::grow;
use crate::format::structure::{Kind, NodeType};

type Reduced<'py> = (Bound<'py, PyDict>, bool, Kind);

impl<'py> Walk<'py> {
    #[inline(never)]
    pub(super) fn node(&mut self, value: &Bound<'py, PyAny>, place: Position) -> Walked {
        if let Some((fields, children)) = self.attributes(value)?
            && (place.state || !fields.pytree)
        {
            self.children(&fields.names, &children, place.below()?)?;
            return self.end(Kind::Dict);
        }
        let (state, fixed) = self.expand(value)?;
        let place = Position {
            state: !fixed,
            ..place
        };
        match state.cast_exact::<PyDict>() {
            // The state itself, even if dict has a handler.
            Ok(state) => self.dict(state, place),
            // A level of the recursion, not of the output.
            Err(_) => self.value(&state, place.below()?),
        }
    }

    #[inline(never)]
    fn attributes(&mut self, value: &Bound<'py, PyAny>) -> Walked<Option<Attributes<'py>>> {
        let classes = &mut self.classes;
        let found = self
            .fields
            .attributes(value, |child| classes.is_state(child));
        Ok(found?)
    }

    fn children(
        &mut self,
        names: &[Bound<'py, PyString>],
        children: &[Bound<'py, PyAny>],
        below: Position,
    ) -> Walked {
        self.out.map(children.len())?;
        for (name, child) in names.iter().zip(children) {
            self.pair(name.as_any(), child, below)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn record(&mut self, fields: &Fields<'py>, value: &Bound<'py, PyAny>) -> Walked<Option<Kind>> {
        let Some(record) = &fields.record else {
            return Ok(None);
        };
        let data = match fields.data(value) {
            Ok(Some(data)) => data,
            Ok(None) => return Ok(None),
            // Python leaves out or explains values that cannot be encoded.
            Err(error) if error.is_instance_of::<PyException>(self.py) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let number = if let Some(known) = record.number.get() {
            *known
        } else {
            let number = self.out.node_type(record.node_type.clone())?;
            *record.number.get_or_init(|| number)
        };
        Ok(Some(Kind::Typed(number, data)))
    }

    #[inline(never)]
    fn expand(&self, value: &Bound<'py, PyAny>) -> Walked<(Bound<'py, PyAny>, bool)> {
        let answer = self.hooks.expand.bind(self.py).call1((value,))?;
        let (state, fixed): (Bound<'py, PyAny>, bool) = answer.extract()?;
        if state.is(value) {
            return Err(Failure::leaf(format!(
                "the handler of {} returns the object itself",
                errors::type_name(&value.get_type())
            )));
        }
        Ok((state, fixed))
    }

    #[inline(never)]
    pub(super) fn typed_node(&mut self, value: &Bound<'py, PyAny>, place: Position) -> Walked {
        if let Some((fields, children)) = self.attributes(value)?
            && let Some(kind) = self.record(&fields, value)?
        {
            let place = Position {
                state: true,
                ..place
            };
            self.children(&fields.names, &children, place.below()?)?;
            return self.end(kind);
        }
        self.reduced(value, place)
    }

    /// Takes a container apart in Python, except a jax array with a handler.
    #[inline(never)]
    pub(super) fn reduced(&mut self, value: &Bound<'py, PyAny>, place: Position) -> Walked {
        let Some((children, is_state, kind)) = self.reduce(value)? else {
            return self.jax_array(value);
        };
        let place = Position {
            state: !is_state,
            ..place
        };
        self.pairs(&children, place.below()?)?;
        self.end(kind)
    }

    /// Returns the children, whether a handler made them (lists stay lists), and the kind.
    #[inline(never)]
    fn reduce(&mut self, value: &Bound<'py, PyAny>) -> Walked<Option<Reduced<'py>>> {
        let Some(recorder) = &self.options.left_out else {
            return Err(Failure::leaf("nodes are described only with left_out="));
        };
        let answer = recorder.call_method1(intern!(self.py, "flatten"), (value,));
        let answer = answer.map_err(|error| self.unsupported(error))?;
        if answer.is_none() {
            return Ok(None);
        }
        let (name, fields, version, data, children, is_state) = answer.extract()?;
        let data: Bound<'py, PyBytes> = data;
        let class = self.out.node_type(NodeType {
            name,
            fields,
            version,
        })?;
        let data = ByteBuf::from(grow::to_vec(data.as_bytes())?);
        Ok(Some((children, is_state, Kind::Typed(class, data))))
    }

    pub(super) fn unsupported(&self, error: PyErr) -> Box<Failure> {
        if error.is_instance_of::<PyTypeError>(self.py) {
            Failure::leaf(error.value(self.py).to_string())
        } else {
            error.into()
        }
    }
}
