//! Leaves, and the state of containers.

use pyo3::prelude::*;

use super::super::content::Content;
use super::super::memory::{new_dict, new_list, new_string};
use super::super::objects::Parts;
use super::super::watch::Signals;
use super::file::Catalog;
use crate::{catalog, source};

/// How a tree is put together of some of its leaves.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a, 'py> {
    /// Which of them; nothing if all are wanted.
    pub(super) marks: Option<&'a catalog::Marks>,
    /// What takes the place of the others.
    pub(super) absent: Option<&'a Bound<'py, PyAny>>,
    pub(super) signals: &'a Signals,
}

impl Catalog {
    /// What reads parts of the data, of all that a value has.
    pub fn parts<'a, 'py>(
        &'a self,
        py: Python<'py>,
        value: usize,
        copy: Option<bool>,
        threads: Option<i64>,
    ) -> PyResult<Parts<'a, 'py>> {
        let content = self.content.bind(py);
        Parts::new(
            py,
            content.get().source(),
            self.catalog.totals(value).1,
            Content::owned(content),
            copy.into(),
            threads,
        )
    }

    /// Reads a leaf.
    pub fn read_leaf<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        leaf: usize,
        parts: &mut Parts<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let place = self.catalog.place(leaf);
        let content = self.content.get();
        if content
            .holes()
            .is_some_and(|it| !it.is_whole(place.start..place.end))
        {
            // Before there is memory for what is not there.
            return Err(self.at(py, source::missing(place.start).into(), value));
        }
        self.catalog.check_leaf(content.source(), value)?;
        let read = parts.read(place.start..place.end);
        read.map_err(|error| self.at(py, error, value))
    }

    /// A value with all that is wanted below it.
    pub(super) fn value<'py>(
        &self,
        value: usize,
        selection: Selection<'_, 'py>,
        parts: &mut Parts<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (catalog, py) = (&self.catalog, parts.py());
        selection.signals.check(py)?;
        if let Some(marks) = selection.marks
            && marks.count(value..catalog.after(value)) == 0
        {
            let absent = selection.absent.cloned();
            return Ok(absent.unwrap_or_else(|| py.None().into_bound(py)));
        }
        if let Some(leaf) = catalog.leaf(value) {
            return self.read_leaf(py, value, leaf, parts);
        }
        if catalog.is_end(value) {
            catalog.check_place(self.content.get().source(), value)?;
        }
        if catalog.is_list(value) {
            // A list with gaps would be another one.
            let whole = Selection {
                marks: None,
                ..selection
            };
            let list = new_list(py)?;
            for child in catalog.children(value) {
                list.append(self.value(child, whole, parts)?)?;
            }
            return Ok(list.into_any());
        }
        let dict = new_dict(py)?;
        for child in catalog.children(value) {
            let key = new_string(py, catalog.key(child).as_bytes())?;
            dict.set_item(key, self.value(child, selection, parts)?)?;
        }
        Ok(dict.into_any())
    }
}
