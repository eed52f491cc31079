//! The plan of a tree: the walk over a record makes it, `Assembly` makes nodes from it.

use std::rc::Rc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::failure::{Failure, Walked};
use super::super::memory::new_dict;
use super::keys::Name;
use super::nodes::damaged;
use crate::{Result, base::grow};

/// Options of restoring by a record; see `assemble` in `_core.pyi`.
#[allow(clippy::struct_excessive_bools)] // as in Python
pub struct Options<'py> {
    pub convert: Option<Bound<'py, PyAny>>,
    /// Convert all arrays, not only jax arrays.
    pub everywhere: bool,
    pub unknown_as_dict: bool,
    /// Make dicts and lists only.
    pub only_plain: bool,
    pub placeholders: bool,
    /// Values for placeholders in static data.
    pub r#static: Option<Bound<'py, PyAny>>,
    /// Stands in a state for parts that were not read.
    pub absent: Option<Bound<'py, PyAny>>,
    /// The path of the tree in the file, which its ties need; `None` if they stay untied.
    pub parts: Option<Bound<'py, PyAny>>,
}

pub enum Plan<'py> {
    /// A finished part.
    Ready(Bound<'py, PyAny>),
    /// The open leaf with this number.
    Open(usize),
    Absent,
    Node(Box<PlannedNode<'py>>),
}

/// Plans for children, which are all `Ready` in most large containers.
pub enum Parts<'py> {
    Ready(Vec<Bound<'py, PyAny>>),
    Plans(Vec<Plan<'py>>),
}

impl<'py> Parts<'py> {
    #[inline]
    pub fn push(&mut self, plan: Plan<'py>) -> Result<()> {
        match (&mut *self, plan) {
            (Self::Ready(parts), Plan::Ready(part)) => grow::push(parts, part),
            (Self::Plans(plans), plan) => grow::push(plans, plan),
            (Self::Ready(parts), plan) => {
                let mut plans = grow::with_room(parts.len() + 1)?;
                plans.extend(parts.drain(..).map(Plan::Ready));
                plans.push(plan);
                *self = Self::Plans(plans);
                Ok(())
            }
        }
    }
}

/// The index in the record, and names and plans of the children.
pub type PlannedNode<'py> = (usize, Names<'py>, Parts<'py>);

pub enum Names<'py> {
    Keys(Vec<Name<'py>>),
    /// The same for all nodes of a type.
    Shared(Rc<Vec<Name<'py>>>),
    /// A list or tuple.
    Indices,
}

impl<'py> Names<'py> {
    pub fn names(&self) -> impl Iterator<Item = Name<'py>> {
        (0..).map_while(move |index| match self {
            Self::Keys(names) => names.get(index).cloned(),
            Self::Shared(names) => names.get(index).cloned(),
            Self::Indices => Some(Name::Index(index)),
        })
    }

    pub fn dict(
        &self,
        py: Python<'py>,
        children: impl IntoIterator<Item = Bound<'py, PyAny>, IntoIter: ExactSizeIterator>,
    ) -> Walked<Bound<'py, PyDict>> {
        let children = children.into_iter();
        let count = children.len();
        let dict = new_dict(py)?;
        for (name, child) in self.names().zip(children) {
            dict.set_item(name.object(py)?, child)?;
        }
        if dict.len() == count {
            Ok(dict)
        } else {
            damaged("a key occurs twice")
        }
    }
}

pub fn below(failure: Box<Failure>, name: &Name<'_>) -> Box<Failure> {
    failure.below(name.text().unwrap_or_default())
}
