//! Patches from one encoding to another.

use std::num::NonZero;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::catalog::Catalog;
use super::content::Content;
use super::gzip::{check_size, limit};
use super::layout::Layout;
use super::memory::{Borrowed, Writable, copied, keep_reserve, list_of, row};
use super::options::{self, Int};
use super::walk::LeafPayload;
use super::watch::Watcher;
use crate::base::pages::Pages;
use crate::base::raw::RawBytes;
use crate::base::source::{Source, bytes_of, read_to};
use crate::codec::gzip::{BLOCK_BYTES, Stream};
use crate::foreign::sniff::{Sample, explain};
use crate::format::footer::Footer;
use crate::format::layout as core_layout;
use crate::patches::{self, Base, Headers, Join, Patch};
use crate::{Result, base::grow, base::parallel};

/// Fewer bytes are compared faster by one thread.
const MIN_PARALLEL_BYTES: usize = 4 << 20;

fn threads_for(requested: Option<Int>, bytes: usize) -> Result<NonZero<usize>> {
    keep_reserve()?;
    options::threads(requested, bytes, MIN_PARALLEL_BYTES)
}

/// Works with a base detached from Python: the layout of a tree, or encoded bytes; with `salvage`,
/// perhaps damaged ones.
fn with_base<T: Send>(
    base: &Bound<'_, PyAny>,
    salvage: bool,
    watcher: &Watcher,
    work: impl FnOnce(&Base<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let py = base.py();
    let done = if let Ok(layout) = base.cast::<Layout>() {
        let layout = &layout.get().output;
        py.detach(|| work(&Base::open(&Headers::of(layout)?, layout, false, watcher)?))
    } else {
        let content = match base.cast::<Catalog>() {
            Ok(catalog) => catalog.get().content.get(),
            Err(_) => base.cast::<Content>()?.get(),
        };
        let source = content.source();
        let done = py.detach(|| work(&Base::open(source, source, salvage, watcher)?));
        content.unless_changed(done)
    };
    watcher.raise(done)
}

/// The layout of a patch from the base to a layout.
pub fn patch_of(
    layout: core_layout::Layout<LeafPayload>,
    base: &Bound<'_, PyAny>,
    name: &str,
    threads: Option<Int>,
) -> PyResult<core_layout::Layout<LeafPayload>> {
    let threads = threads_for(threads, layout.len())?;
    let watcher = Watcher::signals();
    with_base(base, false, &watcher, |base| {
        patches::make(layout, base, name, threads, &watcher)
    })
}

/// Calls a function with all bytes of a source, which are copied unless they cannot change; with
/// `salvage`, zeros stand for compressed blocks that are damaged.
fn with_bytes<T>(
    source: &dyn Source,
    salvage: bool,
    work: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<T> {
    if let Some(bytes) = source.stable() {
        return work(bytes);
    }
    if !salvage {
        return work(&bytes_of(source, 0..source.len())?);
    }
    let mut bytes = Vec::new();
    for block in parallel::blocks(0..source.len(), BLOCK_BYTES) {
        match read_to(source, block.clone(), &mut bytes) {
            Err(error) if error.is_no_damage() => return Err(error),
            Err(_) => {
                bytes.truncate(block.start);
                grow::resize(&mut bytes, block.end, 0)?;
            }
            Ok(()) => {}
        }
    }
    work(&bytes)
}

/// See `_core.pyi`.
#[pyfunction]
pub fn is_patch(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    if let Ok(content) = data.cast::<Content>() {
        let source = content.get().source();
        return Ok(data.py().detach(|| patches::is_patch(source))?);
    }
    Ok(patches::is_patch(&Borrowed::buffer(data)?)?)
}

/// See `_core.pyi`.
#[pyfunction]
pub fn is_wrapped(data: &Bound<'_, PyAny>) -> PyResult<bool> {
    let data = Borrowed::buffer(data)?;
    Ok(Stream(&data).is_compressed()? || patches::is_patch(&data)?)
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (patch, *, salvage=false))]
pub fn patch_parts<'py>(
    patch: &Bound<'py, Content>,
    salvage: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let source = patch.get().source();
    let parts = |bytes: &[u8]| {
        let (patch_record, tree) = patches::record_of(bytes, salvage)?;
        let tree = &bytes[tree];
        let whole = Footer::find(tree).and_then(|footer| footer.whole());
        let start = whole.and_then(|whole| tree.len().checked_sub(whole));
        let record = start.map(|start| grow::to_vec(&tree[start..]));
        Ok((patch_record.base, record.transpose()?))
    };
    let py = patch.py();
    let (base, record) = py.detach(|| with_bytes(source, salvage, parts))?;
    let record = record.map(|record| copied(py, &record)).transpose()?;
    row!(py, base, record)
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (patch, base, *, max_size, threads, salvage=false))]
pub fn join(
    patch: &Bound<'_, Content>,
    base: &Bound<'_, PyAny>,
    max_size: Option<Int>,
    threads: Option<Int>,
    salvage: bool,
) -> PyResult<(Content, Py<PyList>, Option<String>)> {
    let source = patch.get().source();
    let watcher = Watcher::signals();
    let threads = threads_for(threads, usize::MAX)?;
    let joined = |patch: &Patch<'_>, base: &Base<'_>, salvage| {
        let join = Join::new(patch, base, salvage, &watcher)?;
        check_size(join.len(), limit(max_size))?;
        let threads = parallel::worth(threads, join.len(), MIN_PARALLEL_BYTES);
        let mut pages = Pages::with_room(join.len())?;
        pages.fill(join.len(), |memory| {
            join.fill(base.bytes, memory, threads, &watcher)
        })?;
        Ok((pages, join.unchanged()?))
    };
    let (pages, unchanged, damage) = with_base(base, salvage, &watcher, |base| {
        let done = with_bytes(source, false, |bytes| {
            joined(&Patch::read(bytes, &watcher)?, base, false)
        });
        match done {
            Err(error) if salvage && !error.is_no_damage() && !error.is_newer() => {
                let (pages, unchanged) = with_bytes(source, true, |bytes| {
                    joined(&Patch::salvage(bytes, &watcher)?, base, true)
                })?;
                Ok((pages, unchanged, Some(error.reason())))
            }
            done => done.map(|(pages, unchanged)| (pages, unchanged, base.damage())),
        }
    })?;
    let py = patch.py();
    let unchanged = list_of(py, unchanged)?.unbind();
    let content = match damage {
        None => Content::checked(pages),
        Some(_) => Content::unchecked(Arc::new(pages)),
    };
    Ok((content, unchanged, damage))
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (patch, buffer, *, offset, threads))]
pub fn apply_delta(
    patch: &Bound<'_, PyAny>,
    buffer: &Bound<'_, PyAny>,
    offset: Int,
    threads: Option<Int>,
) -> PyResult<usize> {
    let py = patch.py();
    let patch = Borrowed::buffer(patch)?;
    let mut buffer = Writable::get(buffer)?;
    let len = buffer.len();
    let start = buffer.position(offset.0)?;
    let threads = threads_for(threads, len - start)?;
    let watcher = Watcher::signals();
    // Copied before the buffer is lent, which may have it.
    let copy = match patch.as_stable() {
        Some(_) => Vec::new(),
        None => py.detach(|| bytes_of(&patch, 0..patch.len()))?,
    };
    let bytes = patch.as_stable().unwrap_or(&copy);
    let done = buffer.edit(py, start..len, |memory| {
        let patch = Patch::read(bytes, &watcher)?;
        let done = patches::apply(&patch, memory, threads, &watcher);
        let buffer = RawBytes::from(&*memory);
        done.map_err(|error| match Sample::of(&buffer) {
            Ok(sample) if sample.is_foreign() => explain(error, &buffer),
            _ => error,
        })
    });
    watcher.raise(done)
}
