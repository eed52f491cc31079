//! Reads leaves, and states of containers.

use pyo3::intern;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::super::content::Content;
use super::super::dtypes::Dtype;
use super::super::hooks::Hooks;
use super::super::memory::{new_dict, new_list, new_string, new_tuple};
use super::super::objects::{CopyMode, Objects};
use super::super::options::Int;
use super::file::Catalog;
use crate::format::array::MAX_NDIM;
use crate::format::dtypes::no_dtype;
use crate::format::index::LeafKind;
use crate::{Error, base::source, catalog};

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
        let (source, memory) = (content.get().source(), Content::memory_of(content));
        Objects::new(py, source, 0..0, nbytes, memory, copy, threads)
    }

    pub fn read_leaf<'py>(
        &self,
        value: usize,
        leaf: usize,
        objects: &mut Objects<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, place) = (objects.py, self.catalog.place(leaf));
        if let Some(given) = &objects.given
            && let Some(leaf) = given.get_item(value)?
        {
            return Ok(leaf);
        }
        let source = self.content.get().source();
        if source.present(place.start..place.end) < place.end - place.start {
            // Before memory is allocated for a missing payload.
            return Err(self.at(py, source::missing(place.start).into(), value));
        }
        let read = objects.read(place.start..place.end, |events, first| {
            self.catalog.check_kind(source, leaf, events, first)
        });
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
        let name = new_string(py, name)?;
        let key = hooks.key.bind(py).call1((&name, &array))?;
        key.call_method0(intern!(py, "restored")).map(Some)
    }

    /// `marks` are the selected leaves, or `None` for all; `absent` takes the place of others.
    pub(super) fn value<'py>(
        &self,
        value: usize,
        marks: Option<&catalog::Marks>,
        absent: Option<&Bound<'py, PyAny>>,
        objects: &mut Objects<'_, 'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (catalog, py) = (&self.catalog, objects.py);
        objects.signals.check(py)?;
        if let Some(marks) = marks
            && marks.count(value..catalog.after(value)) == 0
        {
            return Ok(absent.cloned().unwrap_or_else(|| py.None().into_bound(py)));
        }
        if let Some(leaf) = catalog.leaf(value) {
            if objects.copy == CopyMode::Abstract
                && let Some(leaf) = self.abstract_leaf(py, value, leaf)?
            {
                return Ok(leaf);
            }
            return self.read_leaf(value, leaf, objects);
        }
        if catalog.is_list(value) {
            let list = new_list(py)?;
            for child in catalog.children(value) {
                // A list without some elements would be another list.
                list.append(self.value(child, None, None, objects)?)?;
            }
            return Ok(list.into_any());
        }
        let dict = new_dict(py)?;
        for child in catalog.children(value) {
            let key = new_string(py, catalog.key(child))?;
            dict.set_item(key, self.value(child, marks, absent, objects)?)?;
        }
        Ok(dict.into_any())
    }
}
