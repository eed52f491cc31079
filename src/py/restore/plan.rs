//! The plan of a tree by the record of its structure: what the walk over a record makes, and `Assembly`
//! makes nodes of.

use std::iter;
use std::rc::Rc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::failure::{Failure, Walked};
use super::super::memory::{dict_next, new_dict};
use super::keys::Name;
use super::nodes::damaged;
use crate::{Result, grow};

/// Options of restoring by a record; see `assemble` in `_core.pyi`.
#[allow(clippy::struct_excessive_bools)] // as in Python
pub struct How<'py> {
    pub convert: Option<Bound<'py, PyAny>>,
    /// Whether to convert all arrays.
    pub everywhere: bool,
    pub unknown_as_dict: bool,
    /// Whether containers become dicts and lists.
    pub plain: bool,
    /// Whether the arrays are placeholders.
    pub placeholders: bool,
    /// Fills the holes of static data.
    pub fillings: Option<Bound<'py, PyAny>>,
    /// Stands in a state for parts that were not read, if there may be some.
    pub absent: Option<Bound<'py, PyAny>>,
}

impl How<'_> {
    /// Whether arrays are converted that were not of jax.
    pub fn converts_everywhere(&self) -> bool {
        self.everywhere && self.convert.is_some()
    }
}

/// How a part of the tree is put together.
pub enum Plan<'py> {
    /// A part that is there.
    Ready(Bound<'py, PyAny>),
    /// The open leaf with this number.
    Open(usize),
    /// Nothing that was to be loaded.
    Absent,
    Node(Box<PlannedNode<'py>>),
}

/// A container, and the plans for its children.
pub struct PlannedNode<'py> {
    /// The number of its node in the record.
    pub number: usize,
    pub names: Names<'py>,
    pub parts: Parts<'py>,
}

/// Plans for children; those of most large containers are ready.
pub enum Parts<'py> {
    Ready(Vec<Bound<'py, PyAny>>),
    Plans(Vec<Plan<'py>>),
}

impl<'py> Parts<'py> {
    pub fn with_room(count: usize) -> Result<Self> {
        Ok(Self::Ready(grow::with_room(count)?))
    }

    /// Adds a child that is ready.
    #[inline]
    pub fn push_ready(&mut self, part: Bound<'py, PyAny>) -> Result<()> {
        match self {
            Self::Ready(parts) => grow::push(parts, part),
            Self::Plans(plans) => grow::push(plans, Plan::Ready(part)),
        }
    }

    /// Adds a plan for a child.
    pub fn push_plan(&mut self, plan: Plan<'py>) -> Result<()> {
        if let Self::Ready(ready) = self {
            let mut plans = grow::with_room(ready.len() + 1)?;
            plans.extend(ready.drain(..).map(Plan::Ready));
            *self = Self::Plans(plans);
        }
        match self {
            Self::Plans(plans) => grow::push(plans, plan),
            Self::Ready(_) => unreachable!("these are plans now"),
        }
    }
}

/// The keys of a container.
pub enum Names<'py> {
    /// Those of a dict of the state, which takes the children in their places.
    State(Bound<'py, PyDict>),
    Keys(Vec<Name<'py>>),
    /// Those of all nodes of a type.
    Shared(Rc<Vec<Name<'py>>>),
    /// Those of so many elements.
    Indices,
}

impl<'py> Names<'py> {
    /// The name of each child, in order.
    pub fn names(&self) -> impl Iterator<Item = Name<'py>> {
        let (mut position, mut index) = (0, 0);
        iter::from_fn(move || {
            index += 1;
            match self {
                Self::State(dict) => {
                    let (key, _) = dict_next(dict, &mut position)?;
                    Some(Name::of(key))
                }
                Self::Keys(names) => names.get(index - 1).cloned(),
                Self::Shared(names) => names.get(index - 1).cloned(),
                Self::Indices => Some(Name::Index(index - 1)),
            }
        })
    }

    /// Puts a child in the place of its state, which frees that: what Python's garbage collector goes
    /// through does not grow.
    pub fn replace(&self, name: &Name<'py>, child: &Bound<'py, PyAny>) -> PyResult<()> {
        match self {
            Self::State(dict) => dict.set_item(name.object(dict.py())?, child),
            _ => Ok(()),
        }
    }

    /// A dict of children with these keys.
    pub fn dict(
        self,
        py: Python<'py>,
        children: Vec<Bound<'py, PyAny>>,
    ) -> Walked<Bound<'py, PyDict>> {
        let count = children.len();
        let dict = match self {
            Self::State(dict) => {
                let mut position = 0;
                for child in children {
                    // The dict is fresh, and stays as large.
                    if let Some((key, state)) = dict_next(&dict, &mut position)
                        && !child.is(&state)
                    {
                        dict.set_item(key, child)?;
                    }
                }
                return Ok(dict);
            }
            names => {
                let dict = new_dict(py)?;
                for (name, child) in names.names().zip(children) {
                    dict.set_item(name.object(py)?, child)?;
                }
                dict
            }
        };
        if dict.len() == count {
            Ok(dict)
        } else {
            damaged("a key occurs twice")
        }
    }
}

/// Adds the name of a child to the path of a failure.
#[allow(clippy::unnecessary_box_returns)] // see `Walked`
pub fn below(failure: Box<Failure>, name: &Name<'_>) -> Box<Failure> {
    failure.below(name.text().unwrap_or_default())
}
