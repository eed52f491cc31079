//! What was saved, in one of its forms: what the walks that restore trees read.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::failure::Walked;
use super::keys::Name;

/// Encoded bytes, the catalog of a file, or a state dict, read from the root on.
pub trait Cursor<'py> {
    /// The place of a value.
    type Place;
    /// A container.
    type Node;

    /// Reads a leaf, or enters a container, unless `as_leaf` returns that it is read as a whole.
    fn enter(
        &mut self,
        place: Self::Place,
        as_leaf: impl FnOnce() -> PyResult<bool>,
    ) -> Walked<Found<'py, Self::Node>>;

    /// Returns whether a container has no children.
    fn is_empty(&self, node: &Self::Node) -> bool;

    /// Leaves a container after its last child; returns false if it has more.
    fn leave(&mut self, node: &Self::Node) -> Walked<bool>;

    /// Returns the state dict of a container that was entered, if that is possible.
    fn state(&mut self, node: Self::Node) -> Walked<Option<Bound<'py, PyAny>>>;

    /// Copies the bytes of the arrays that have been read.
    fn copy(&mut self) -> PyResult<()>;
}

/// Looks up the children of containers by the names of a template's.
pub trait Named<'py>: Cursor<'py> {
    /// Looks up the children of a container of the template; returns false if they are not there, or
    /// others are.
    fn pair(
        &mut self,
        node: &mut Self::Node,
        children: &[TemplateChild<'py>],
        is_dict: bool,
    ) -> Walked<bool>;

    /// Returns the place of the child with this index, in order.
    fn child(
        &mut self,
        node: &mut Self::Node,
        index: usize,
        name: &Name<'py>,
    ) -> Walked<Child<Self::Place>>;
}

/// Takes the children of containers in the order in which they were saved.
pub trait Ordered<'py>: Cursor<'py> {
    /// Returns whether the arrays that were read have their bytes.
    fn is_copied(&self) -> bool;

    /// Returns the dict that a container is, if it is one of a state.
    fn dict(&self, node: &Self::Node) -> Option<Bound<'py, PyDict>>;

    /// Returns the number of children of a container.
    fn count(&self, node: &Self::Node) -> usize;

    /// Returns name and place of the next child; `None` if there is none, or its key cannot be a name.
    fn next(&mut self, node: &mut Self::Node) -> Walked<Option<(Name<'py>, Self::Place)>>;

    /// Returns the place of the next child, if it has this name.
    fn next_is(&mut self, node: &mut Self::Node, name: &Name<'py>) -> Walked<Option<Self::Place>>;
}

/// What is at a place.
pub enum Found<'py, N> {
    Leaf(Bound<'py, PyAny>),
    Node(N),
    /// The state of what only Python restores.
    State(Bound<'py, PyAny>),
    /// Nothing that is to be loaded: a template's part stays.
    Kept,
    /// What stands for nothing that is to be loaded.
    Absent,
}

/// A child of a container of the template, and its name.
pub type TemplateChild<'py> = (Name<'py>, Bound<'py, PyAny>);

/// Where a child of the template is.
pub enum Child<P> {
    At(P),
    /// Nowhere, and the template's stays.
    Kept,
    /// Not where this form needs it.
    Elsewhere,
}
