//! Catalogs as a cursor: restores all leaves of a template, or selected ones.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::super::failure::{Built, Walked};
use super::super::objects::Objects;
use super::super::options::Int;
use super::super::restore::{Container, Cursor, Found, Named, Session, TemplateChild, Walk};
use super::super::select::Marks;
use super::file::Catalog;
use crate::catalog;
use crate::{Error, base::grow};

#[pyfunction]
#[pyo3(signature = (
    file, value, target, name, restore, *, marks, given, copy, threads,
))]
pub fn restore_selected<'py>(
    file: &Bound<'py, Catalog>,
    value: usize,
    target: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    restore: &Bound<'py, PyAny>,
    marks: Option<&Marks>,
    given: Option<Bound<'py, PyDict>>,
    copy: Option<bool>,
    threads: Option<Int>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = target.py();
    let file = file.get();
    file.check(value)?;
    let session = Session::new(restore, name, true)?;
    let matching = session.matching()?;
    let takes_more = match &session.partial {
        Some(partial) => partial.getattr(intern!(py, "takes_more"))?.extract()?,
        None => None,
    };
    let catalog = &*file.catalog;
    let mut objects = file.objects(py, value, copy.into(), threads)?;
    objects.given = given;
    let cursor = Entries {
        file,
        catalog,
        marks: marks.map(|marks| marks.of(catalog)).transpose()?,
        absent: session.absent()?,
        objects,
        depth: catalog.keys_to(value)?.len(),
        partial: session.partial.clone(),
        takes_more,
        notes: session.notes,
    };
    let tree = Walk::new(py, cursor, matching, session).restore(value, target);
    file.content.get().release();
    tree.map_err(|failure| failure.into_py(py, "restoring"))
}

struct Entries<'a, 'py> {
    file: &'a Catalog,
    catalog: &'a catalog::Catalog,
    /// The selected values; `None` for all.
    marks: Option<&'a catalog::Marks>,
    /// Stands in states for values that are not selected.
    absent: Option<Bound<'py, PyAny>>,
    objects: Objects<'a, 'py>,
    /// The depth of the root in the file.
    depth: usize,
    /// Decides whether parts of the template that the file lacks stay.
    partial: Option<Bound<'py, PyAny>>,
    /// Whether the file may have more than the template; `None`: only below dicts.
    takes_more: Option<bool>,
    /// Whether Python notes leaves that the template lacks.
    notes: bool,
}

struct Node {
    value: usize,
    children: Vec<Option<usize>>,
}

impl Entries<'_, '_> {
    fn is_selected(&self, value: usize) -> bool {
        let inside = value..self.catalog.after(value);
        self.marks.is_none_or(|marks| marks.count(inside) > 0)
    }

    /// Returns whether to accept children that only the file has.
    fn takes_others(
        &self,
        value: usize,
        children: &[TemplateChild<'_>],
        is_dict: bool,
    ) -> Result<bool, Error> {
        let mut names = HashSet::new();
        names.try_reserve(children.len())?;
        for (name, _) in children {
            names.insert(name.text().unwrap_or_default().into_owned());
        }
        let mut known = HashSet::new();
        known.try_reserve(names.len())?;
        Ok(self.catalog.children(value).all(|child| {
            let key = self.catalog.key(child);
            if names.contains(key) {
                return known.insert(key); // false for a key that occurs twice: Python decides
            }
            !self.is_selected(child) || (self.takes_more.unwrap_or(is_dict) && !self.notes)
        }))
    }
}

impl<'py> Cursor<'py> for Entries<'_, 'py> {
    type Place = usize;
    type Node = Node;

    #[inline(never)]
    fn enter(
        &mut self,
        value: usize,
        _: impl FnOnce() -> PyResult<bool>,
    ) -> Walked<Found<'py, Node>> {
        let Some(leaf) = self.catalog.leaf(value) else {
            return Ok(if self.catalog.is_list(value) {
                Found::State(self.read(value)?)
            } else {
                let children = Vec::new();
                Found::Node(Node { value, children })
            });
        };
        if !self.is_selected(value) {
            return Ok(Found::Kept(self.read(value)?));
        }
        let read = self.file.read_leaf(value, leaf, &mut self.objects);
        Ok(Found::Leaf(read?))
    }

    fn copy(&mut self) -> PyResult<()> {
        self.objects.copy_all()
    }
}

impl<'py> Named<'py> for Entries<'_, 'py> {
    #[inline(never)]
    fn pair(
        &mut self,
        node: &mut Node,
        children: &[TemplateChild<'py>],
        container: &Container<'py>,
    ) -> Walked<bool> {
        let mut selected = grow::with_room(children.len())?;
        // Most files have the children of the template, in the same order.
        let mut next = self.catalog.children(node.value).peekable();
        for (name, template) in children {
            let Some(key) = name.text() else {
                return Ok(false);
            };
            let child = match next.next_if(|child| self.catalog.key(*child) == key) {
                Some(child) => Some(child),
                None => self.catalog.find(node.value, [&*key], &())?,
            };
            if child.is_none() && !self.keeps(node.value, &key, template)? {
                return Ok(false);
            }
            selected.push(child);
        }
        let common = selected.iter().flatten().count();
        node.children = selected;
        Ok(self.catalog.children(node.value).count() == common
            || self.takes_others(node.value, children, matches!(container, Container::Dict))?)
    }

    fn child(&self, node: &Node, index: usize) -> Option<usize> {
        node.children[index]
    }

    fn is_empty(&self, node: &Node) -> bool {
        self.catalog.children(node.value).next().is_none()
    }

    fn state(&mut self, node: Node) -> Built<'py> {
        Ok(self.read(node.value)?)
    }
}

impl<'py> Entries<'_, 'py> {
    fn keeps(&self, node: usize, key: &str, template: &Bound<'py, PyAny>) -> PyResult<bool> {
        let Some(partial) = &self.partial else {
            return Ok(false);
        };
        let mut path = self.catalog.keys_to(node)?.split_off(self.depth);
        grow::push(&mut path, key)?;
        let keeps = intern!(partial.py(), "keeps");
        partial.call_method1(keeps, (template, path))?.is_truthy()
    }

    fn read(&mut self, value: usize) -> PyResult<Bound<'py, PyAny>> {
        let (absent, objects) = (self.absent.as_ref(), &mut self.objects);
        self.file.value(value, self.marks, absent, objects)
    }
}
