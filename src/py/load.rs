//! The verbs that load: bytes in, a tree out.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;

use super::build::Matching;
use super::content::Content;
use super::integer_or_none;
use super::memory::{Borrowed, Owned};
use super::objects::{CopyMode, build, build_like, explain};
use super::watch::Watcher;
use crate::catalog::stream_items as items;
use crate::source::Source;

/// The tree that a bytes-like object or a [`Content`] encodes; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, copy, threads, *, abstract_arrays=false, part=None))]
pub fn restore<'py>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
    abstract_arrays: bool,
    part: Option<(usize, usize)>,
) -> PyResult<Bound<'py, PyAny>> {
    let copy = if abstract_arrays {
        CopyMode::Abstract
    } else {
        copy.into()
    };
    if let Ok(content) = data.cast_exact::<Content>() {
        let source = content.get().source();
        let memory = Content::owned(content);
        let (start, end) = part.unwrap_or((0, source.len()));
        if start > end || end > source.len() {
            return Err(PyIndexError::new_err("there are fewer bytes"));
        }
        let tree = build(data.py(), source, start..end, memory, copy, threads);
        content.get().release();
        return tree;
    }
    let borrowed = Borrowed::buffer(data)?;
    let memory = Some(Owned::borrowed(data.py(), &borrowed));
    let whole = 0..borrowed.len();
    build(data.py(), &borrowed, whole, memory, copy, threads)
}

/// The same in a template, if all of it plainly fits; see `_core.pyi`.
#[pyfunction]
pub fn restore_like<'py>(
    data: &Bound<'py, PyAny>,
    template: &Bound<'py, PyAny>,
    strict: &Bound<'py, PyAny>,
    converts: bool,
    copy: Option<bool>,
    #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let matching = Matching::new(data.py(), strict.is_truthy()?, converts);
    if let Ok(content) = data.cast_exact::<Content>() {
        let source = content.get().source();
        let memory = Content::owned(content);
        let tree = build_like(template, &matching, source, memory, copy.into(), threads);
        if !matches!(tree, Ok(None)) {
            content.get().release();
        }
        return tree;
    }
    let borrowed = Borrowed::buffer(data)?;
    let memory = Some(Owned::borrowed(data.py(), &borrowed));
    build_like(template, &matching, &borrowed, memory, copy.into(), threads)
}

/// Where the leaves of a stream are; see `_core.pyi`.
#[pyfunction]
pub fn stream_items(content: &Bound<'_, Content>) -> PyResult<Vec<(Vec<String>, usize, usize)>> {
    let watcher = Watcher::signals();
    let source = content.get().source();
    let found = content.py().detach(|| items(source, &watcher));
    let found =
        found.map_err(|error| watcher.explain(error, |error| explain(error, source).into()))?;
    let item = |(key, span): (_, std::ops::Range<usize>)| (key, span.start, span.end);
    Ok(found.into_iter().map(item).collect())
}
