//! Reads leaves, and states of containers.

use pyo3::prelude::*;
use smallvec::SmallVec;

use super::super::content::Content;
use super::super::dtypes::Dtype;
use super::super::hooks::Hooks;
use super::super::memory::{new_dict, new_list, new_string, new_tuple};
use super::super::objects::{CopyMode, Objects};
use super::super::options::Int;
use super::super::watch::Signals;
use super::file::Catalog;
use crate::array::MAX_NDIM;
use crate::events::no_dtype;
use crate::structure::LeafKind;
use crate::wire::PRNG_MARKER;
use crate::{Error, catalog, source};

#[derive(Clone, Copy)]
pub(super) struct Selection<'a, 'py> {
    /// The selected leaves; `None` for all.
    pub(super) marks: Option<&'a catalog::Marks>,
    /// Takes the place of other leaves.
    pub(super) absent: Option<&'a Bound<'py, PyAny>>,
    /// Read only shapes and dtypes.
    pub(super) is_abstract: bool,
    pub(super) signals: &'a Signals<'py>,
}

impl Catalog {
    pub fn objects<'a, 'py>(
        &'a self,
        py: Python<'py>,
        value: usize,
        copy: CopyMode,
        threads: Option<Int>,
    ) -> PyResult<Objects<'a, 'py>> {
        let content = self.content.bind(py);
        let (_, nbytes) = self.catalog.totals(value);
        let (source, memory) = (content.get().source(), Content::owned(content));
        Objects::new(py, source, 0..0, nbytes, memory, copy, threads)
    }

    pub fn read_leaf<'py>(
        &self,
        value: usize,
        leaf: usize,
        objects: &mut Objects<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, place) = (objects.py, self.catalog.place(leaf));
        let content = self.content.get();
        if content
            .with_gaps()
            .is_some_and(|it| !it.is_whole(place.start..place.end))
        {
            // Before memory is allocated for a missing payload.
            return Err(self.at(py, source::missing(place.start).into(), value));
        }
        self.catalog.check_leaf(content.source(), value)?;
        let read = objects.read(place.start..place.end);
        read.map_err(|error| self.at(py, error, value))
    }

    fn abstract_leaf<'py>(
        &self,
        py: Python<'py>,
        value: usize,
        leaf: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((name, dims)) = self.catalog.dtype_and_shape(leaf) else {
            return Ok(None);
        };
        let damaged = |error| Error::at(self.catalog.path_of(value), error);
        let start = self.catalog.place(leaf).start;
        let Some(dtype) = Dtype::named(py, name.as_bytes())? else {
            return Err(damaged(no_dtype(name.as_bytes(), start)).into());
        };
        let mut shape: SmallVec<[usize; 6]> = SmallVec::new();
        for dim in dims {
            let dim = usize::try_from(*dim).ok();
            let Some(dim) =
                dim.filter(|dim| isize::try_from(*dim).is_ok() && shape.len() < MAX_NDIM)
            else {
                let reason = "the index of the file has an array with more or larger dimensions \
                              than NumPy allows: the file is damaged";
                return Err(damaged(Error::malformed(start, reason)).into());
            };
            shape.push(dim);
        }
        let hooks = Hooks::get(py)?;
        let shape = new_tuple(py, &shape)?;
        let array = hooks
            .abstract_array
            .bind(py)
            .call1((shape, &dtype.object))?;
        let LeafKind::PrngKey(name, _) = self.catalog.kind(leaf) else {
            return Ok(Some(array));
        };
        let name = new_string(py, name.as_bytes())?;
        let key = hooks.wrap_key.bind(py).call1((&name, &array))?;
        if !key.is_none() {
            return Ok(Some(key));
        }
        // The PRNG implementation is unknown.
        let dict = new_dict(py)?;
        dict.set_item(PRNG_MARKER, name)?;
        dict.set_item("data", array)?;
        Ok(Some(dict.into_any()))
    }

    pub(super) fn value<'py>(
        &self,
        value: usize,
        selection: Selection<'_, 'py>,
        objects: &mut Objects<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (catalog, py) = (&self.catalog, objects.py);
        selection.signals.check(py)?;
        if let Some(marks) = selection.marks
            && marks.count(value..catalog.after(value)) == 0
        {
            let absent = selection.absent.cloned();
            return Ok(absent.unwrap_or_else(|| py.None().into_bound(py)));
        }
        if let Some(leaf) = catalog.leaf(value) {
            if selection.is_abstract
                && let Some(found) = self.abstract_leaf(py, value, leaf)?
            {
                return Ok(found);
            }
            return self.read_leaf(value, leaf, objects);
        }
        if catalog.is_end(value) {
            catalog.check_place(self.content.get().source(), value)?;
        }
        if catalog.is_list(value) {
            // A list without some elements would be another list.
            let whole = Selection {
                marks: None,
                ..selection
            };
            let list = new_list(py)?;
            for child in catalog.children(value) {
                list.append(self.value(child, whole, objects)?)?;
            }
            return Ok(list.into_any());
        }
        let dict = new_dict(py)?;
        for child in catalog.children(value) {
            let key = new_string(py, catalog.key(child).as_bytes())?;
            dict.set_item(key, self.value(child, selection, objects)?)?;
        }
        Ok(dict.into_any())
    }
}
