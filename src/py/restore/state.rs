//! State dicts as a cursor.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3::{ffi, intern};

use super::super::failure::{Built, Walked};
use super::super::hooks::Hooks;
use super::super::memory::dict_next;
use super::cursor::{Container, Cursor, Found, Named, Ordered, TemplateChild};
use super::keys::Name;
use super::nodes::damaged;
use super::template::{Session, Walk};
use crate::base::grow;

#[pyfunction]
pub fn restore_state<'py>(
    target: &Bound<'py, PyAny>,
    state: Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    restore: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let session = Session::new(restore, name, false)?;
    let matching = session.matching()?;
    let py = target.py();
    let strict = restore.getattr(intern!(py, "strict"))?;
    let absent = session.absent()?;
    let kinds: Option<Bound<'py, PyDict>> = restore.getattr(intern!(py, "kinds"))?.extract()?;
    let cursor = State {
        exact: absent.is_some() || strict.is_instance_of::<PyString>(),
        absent,
        kinds,
    };
    let made = Walk::new(py, cursor, matching, session).restore(state, target);
    made.map_err(|failure| failure.into_py(py, "restoring"))
}

pub(super) struct State<'py> {
    /// Whether dicts with more keys than the template's are rejected.
    pub exact: bool,
    /// Stands for parts that were not selected.
    pub absent: Option<Bound<'py, PyAny>>,
    /// The kinds of saved containers, for comparison; see `mark_older`.
    pub kinds: Option<Bound<'py, PyDict>>,
}

/// A dict, its values in the template's order, and the position of the iteration.
pub(super) struct Node<'py>(Bound<'py, PyDict>, Vec<Bound<'py, PyAny>>, ffi::Py_ssize_t);

impl<'py> Cursor<'py> for State<'py> {
    type Place = Bound<'py, PyAny>;
    type Node = Node<'py>;

    fn enter(
        &mut self,
        place: Self::Place,
        as_leaf: impl FnOnce() -> PyResult<bool>,
    ) -> Walked<Found<'py, Node<'py>>> {
        if self.absent.as_ref().is_some_and(|absent| place.is(absent)) {
            return Ok(Found::Absent(place));
        }
        match place.cast_into_exact::<PyDict>() {
            Ok(dict) if !as_leaf()? => Ok(Found::Node(Node(dict, Vec::new(), 0))),
            Ok(dict) => Ok(Found::Leaf(dict.into_any())),
            Err(error) => Ok(Found::Leaf(error.into_inner())),
        }
    }

    fn copy(&mut self) -> PyResult<()> {
        Ok(())
    }
}

impl<'py> Named<'py> for State<'py> {
    #[inline(never)]
    fn pair(
        &mut self,
        Node(dict, values, _): &mut Node<'py>,
        children: &[TemplateChild<'py>],
        container: &Container<'py>,
    ) -> Walked<bool> {
        let is_dict = matches!(container, Container::Dict);
        if dict.len() != children.len() && (self.exact || !is_dict) {
            return Ok(false);
        }
        if let Some(kinds) = &self.kinds
            && let Some(found) = kinds.get_item(dict.as_ptr().addr())?
            && !is_kind(container, found.cast()?)?
        {
            return Ok(false);
        }
        values
            .try_reserve(children.len())
            .map_err(crate::Error::from)?;
        for (name, _) in children {
            match dict.get_item(name.object(dict.py())?)? {
                Some(value) => grow::push(values, value)?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn child(&self, node: &Node<'py>, index: usize) -> Option<Self::Place> {
        Some(node.1[index].clone())
    }

    fn is_empty(&self, node: &Node<'py>) -> bool {
        node.0.is_empty()
    }

    fn state(&mut self, node: Node<'py>) -> Built<'py> {
        Ok(node.0.into_any())
    }
}

fn is_kind(container: &Container<'_>, found: &Bound<'_, PyString>) -> PyResult<bool> {
    Ok(match container {
        Container::Dict => found == "dict",
        Container::List => found == "list",
        Container::Tuple => found == "tuple",
        Container::Node(node, _) => {
            let other_name = intern!(found.py(), "other_name");
            let lookups = Hooks::get(found.py())?.lookups.bind(found.py());
            lookups
                .call_method1(other_name, (node.get_type(), found))?
                .is_none()
        }
    })
}

impl<'py> Ordered<'py> for State<'py> {
    const IS_STRICT: bool = false;

    fn is_copied(&self) -> bool {
        true
    }

    fn count(&self, node: &Node<'py>) -> usize {
        node.0.len()
    }

    fn next(
        &mut self,
        Node(dict, _, position): &mut Node<'py>,
    ) -> Walked<Option<(Name<'py>, Self::Place)>> {
        Ok(dict_next(dict, position).map(|(key, value)| (Name::of(key), value)))
    }

    fn next_is(&mut self, node: &mut Node<'py>, name: &Name<'py>) -> Walked<Option<Self::Place>> {
        let Some((found, value)) = self.next(node)? else {
            return Ok(None);
        };
        if found.text().is_some_and(|key| name.is(&key)) {
            return Ok(Some(value));
        }
        let key = found.object(value.py())?;
        damaged(format!("an element of a list has the key {key}"))
    }

    fn leave(&mut self, _: &Node<'py>) -> Walked<bool> {
        Ok(true)
    }
}
