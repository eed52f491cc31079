//! Functions that load: bytes in, a tree out.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use super::content::{Content, Memory};
use super::memory::{Borrowed, Item, keep_reserve, list_of, list_of_results, row};
use super::objects::{Like, Objects, build_like, build_recorded};
use super::options::Int;
use super::restore::{Matching, Options, Session};
use super::watch::{Signals, Watcher};
use crate::base::source::Source;
use crate::catalog::stream_items as items;
use crate::foreign::sniff::{Sample, explain};

/// Decodes the tree of a bytes-like object or a [`Content`].
#[pyfunction]
#[pyo3(signature = (data, copy, threads, *, part=None))]
pub fn restore<'py>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    threads: Option<Int>,
    part: Option<(usize, usize)>,
) -> PyResult<Bound<'py, PyAny>> {
    let tree = with_source(data, copy, threads, part, |mut objects| {
        let tree = objects.whole()?;
        objects.copy_all().map(|()| Some(tree))
    })?;
    Ok(tree.expect("the data are a tree"))
}

/// `None` if only a state dict will do.
#[pyfunction]
pub fn restore_encoded<'py>(
    data: &Bound<'py, PyAny>,
    target: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    begin: Bound<'py, PyAny>,
    reading: Bound<'py, PyAny>,
    convert: Bound<'py, PyAny>,
    strict: bool,
    everywhere: bool,
    text_keys: bool,
    copy: Option<bool>,
    threads: Option<Int>,
) -> PyResult<Option<Like<'py>>> {
    let matching = Matching::new(data.py(), strict, !convert.is_none(), everywhere);
    let session = Session::later(begin, reading, convert, name);
    with_source(data, copy, threads, None, |objects| {
        build_like(target, session, matching, text_keys, objects)
    })
}

/// `None` unless the data have a record.
#[pyfunction]
#[pyo3(signature = (
    data, copy, threads, *, convert=None, everywhere=false, unknown_as_dict=false, plain=false,
    r#static=None,
))]
pub fn restore_recorded<'py>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    threads: Option<Int>,
    convert: Option<Bound<'py, PyAny>>,
    everywhere: bool,
    unknown_as_dict: bool,
    plain: bool,
    r#static: Option<Bound<'py, PyAny>>,
) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
    let options = Options {
        convert,
        everywhere,
        unknown_as_dict,
        only_plain: plain,
        placeholders: false,
        r#static,
        absent: None,
        parts: Some(PyTuple::empty(data.py()).into_any()),
    };
    let tree = with_source(data, copy, threads, None, |objects| {
        build_recorded(options, objects)
    })?;
    Ok(tree.map(|tree| (tree,)))
}

/// Calls `build` with the objects of a bytes-like object or a [`Content`], or of a part of it.
/// Releases its pages if `build` returns a tree.
fn with_source<'py, T>(
    data: &Bound<'py, PyAny>,
    copy: Option<bool>,
    threads: Option<Int>,
    part: Option<(usize, usize)>,
    build: impl FnOnce(Objects<'_, 'py>) -> PyResult<Option<T>>,
) -> PyResult<Option<T>> {
    let build = |source: &dyn Source, memory: Option<Memory<'_, 'py>>| {
        let (start, end) = part.unwrap_or((0, source.len()));
        if start > end || end > source.len() {
            return Err(PyIndexError::new_err("the range exceeds the data"));
        }
        let (part, nbytes) = (start..end, end - start);
        let (py, copy) = (data.py(), copy.into());
        build(Objects::new(
            py, source, part, nbytes, memory, copy, threads,
        )?)
    };
    let Ok(content) = data.cast_exact::<Content>() else {
        let borrowed = Borrowed::buffer(data)?;
        return build(&borrowed, Some(Memory::Whole(borrowed.owned(data.py()))));
    };
    let tree = build(content.get().source(), Content::memory_of(content))?;
    if tree.is_some() {
        content.get().release();
    }
    Ok(tree)
}

#[pyfunction]
pub fn convertible<'py>(content: &Bound<'py, Content>) -> PyResult<Bound<'py, PyAny>> {
    sampled(content)?.convertible().item(content.py())
}

#[pyfunction]
pub fn described<'py>(content: &Bound<'py, Content>) -> PyResult<Bound<'py, PyAny>> {
    sampled(content)?.describe().item(content.py())
}

fn sampled<'a>(content: &'a Bound<'_, Content>) -> PyResult<Sample<'a>> {
    let source = content.get().source();
    Ok(content.py().detach(|| Sample::of(source))?)
}

#[pyfunction]
pub fn stream_items<'py>(content: &Bound<'py, Content>) -> PyResult<Bound<'py, PyList>> {
    let py = content.py();
    keep_reserve()?;
    let watcher = Watcher::signals();
    let source = content.get().source();
    let items = py.detach(|| items(source, &watcher));
    let items =
        items.map_err(|error| watcher.explain(error, |error| explain(error, source).into()))?;
    let signals = Signals::new(py);
    let items = items.into_iter().map(|(key, span)| {
        signals.check(py)?;
        row!(py, list_of(py, key)?, span.start, span.end)
    });
    list_of_results(py, items)
}
