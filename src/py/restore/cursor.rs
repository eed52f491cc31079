//! The traits through which the walks read saved data.

use std::rc::Rc;

use pyo3::prelude::*;

use super::super::failure::{Built, Walked};
use super::super::fields::Fields;
use super::keys::Name;

/// Reads encoded bytes, the catalog of a file, or a state dict, from the root on.
pub trait Cursor<'py> {
    type Place;
    type Node;

    /// Reads a leaf, or enters a container unless `as_leaf` returns true.
    fn enter(
        &mut self,
        place: Self::Place,
        as_leaf: impl FnOnce() -> PyResult<bool>,
    ) -> Walked<Found<'py, Self::Node>>;

    /// Copies the bytes of arrays read so far.
    fn copy(&mut self) -> PyResult<()>;
}

/// Finds children by name.
pub trait Named<'py>: Cursor<'py> {
    /// Finds the template's children; returns false if the saved container has others, or is of
    /// another kind where that matters.
    fn pair(
        &mut self,
        node: &mut Self::Node,
        children: &[TemplateChild<'py>],
        container: &Container<'py>,
    ) -> Walked<bool>;

    /// Returns where a child of the template was saved; `None` if the template's child stays.
    fn child(&self, node: &Self::Node, index: usize) -> Option<Self::Place>;

    fn is_empty(&self, node: &Self::Node) -> bool;

    /// Returns the state dict of an entered container.
    fn state(&mut self, node: Self::Node) -> Built<'py>;
}

/// Reads children in saved order.
pub trait Ordered<'py>: Cursor<'py> {
    /// Returns whether all arrays have their bytes, see `copy`.
    fn is_copied(&self) -> bool;

    /// Whether children of typed nodes must have the record's order.
    const IS_STRICT: bool;

    fn count(&self, node: &Self::Node) -> usize;

    /// Returns name and position of the next child; `None` at the end, or if its key cannot be a
    /// name.
    fn next(&mut self, node: &mut Self::Node) -> Walked<Option<(Name<'py>, Self::Place)>>;

    /// Returns the position of the next child, if its name is `name`.
    fn next_is(&mut self, node: &mut Self::Node, name: &Name<'py>) -> Walked<Option<Self::Place>>;

    /// Leaves a container after its last child; returns false if it has more.
    fn leave(&mut self, node: &Self::Node) -> Walked<bool>;
}

pub enum Found<'py, N> {
    Leaf(Bound<'py, PyAny>),
    Node(N),
    /// A value that only Python restores.
    State(Bound<'py, PyAny>),
    /// The marker for values that were not selected.
    Absent(Bound<'py, PyAny>),
    /// The marker for a leaf that was not selected: a leaf of the template stays.
    Kept(Bound<'py, PyAny>),
}

pub enum Container<'py> {
    Dict,
    List,
    Tuple,
    /// A node like one of the template.
    Node(Bound<'py, PyAny>, Rc<Fields<'py>>),
}

pub type TemplateChild<'py> = (Name<'py>, Bound<'py, PyAny>);
