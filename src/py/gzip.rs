//! Gzip compression and decompression.

use std::num::NonZero;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::memory::{Borrowed, new_bytes, new_bytes_elsewhere};
use super::options::{self, Int};
use super::watch::Watcher;
use crate::base::pages::Pages;
use crate::base::raw::Filling;
use crate::base::source::{Source, read_to};
use crate::base::watch::Watch;
use crate::codec::gzip::{Indexed, Method, Stream};
use crate::{Error, Result, base::parallel};

/// Fewer bytes are compressed faster by one thread.
const MIN_PARALLEL_BYTES: usize = 1 << 20;

pub fn threads(requested: Option<Int>, bytes: usize) -> Result<NonZero<usize>> {
    super::memory::keep_reserve()?;
    options::threads(requested, bytes, MIN_PARALLEL_BYTES)
}

pub fn method(level: Option<Int>, numbers: bool) -> Result<Method> {
    if numbers {
        return Ok(Method::Numbers);
    }
    Method::of_level(level.map(|level| level.0))
}

#[pyfunction]
#[pyo3(signature = (data, *, max_size, threads, progress))]
pub fn decompress<'py>(
    data: &Bound<'py, PyAny>,
    max_size: Option<Int>,
    threads: Option<Int>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = data.py();
    let max_size = limit(max_size);
    self::threads(threads, 0)?;
    let source = Borrowed::buffer(data)?;
    let indexed = Indexed::open(&source)?;
    let mut progress = progress;
    if let Some(indexed) = indexed {
        check_size(indexed.len(), max_size)?;
        let threads = self::threads(threads, indexed.len())?;
        let watcher = Watcher::new(progress.take(), indexed.len());
        let inflated = new_bytes(py, indexed.len(), false, |out| {
            let whole = indexed.inflate(out, threads, &watcher)?;
            whole.ok_or(Error::GzipTruncated)
        })?;
        if !matches!(inflated, Err(Error::GzipTruncated)) {
            return watcher.raise(inflated);
        }
        // The next decoder explains the damage, and reports no progress.
    }
    let size = Stream(&source).claimed_size()?;
    if progress.is_none() && size > 0 && max_size.is_none_or(|max_size| size <= max_size) {
        let len = Source::len(&source);
        if let Some(bytes) = inflate_at_once(py, source.part(py, 0..len), size)? {
            return Ok(bytes);
        }
    }
    inflate_in_steps(py, &source, max_size, progress)
}

/// Converts a limit in bytes, which Python has checked to be non-negative.
pub fn limit(max_size: Option<Int>) -> Option<usize> {
    max_size.map(|max_size| usize::try_from(max_size.0).unwrap_or(0))
}

pub fn check_size(size: usize, max_size: Option<usize>) -> Result<()> {
    match max_size {
        Some(max_size) if size > max_size => Err(Error::OutputLimit { max_size }),
        _ => Ok(()),
    }
}

fn inflate_in_steps<'py>(
    py: Python<'py>,
    source: &Borrowed,
    max_size: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    // The size of the output is unknown, so progress counts the input.
    let watcher = Watcher::new(progress, Source::len(source));
    let mut pages = watcher.detached(py, |watch| Stream(source).inflate(0, max_size, watch))?;
    let len = pages.len();
    let copied = new_bytes(py, len, false, |target| {
        // Frees pages while copying, so that the content is never in memory twice.
        const PART: usize = 16 << 20;
        let mut filling = Filling::new(target);
        for part in parallel::blocks(0..len, PART) {
            filling.write(&pages.as_slice()[part.clone()]);
            pages.forget(part.end);
            watcher.check()?;
        }
        Ok(filling.finish())
    })?;
    watcher.raise(copied)
}

/// Output up to this size needs no progress.
const SHORT_BYTES: usize = 16 << 20;

/// Decompresses one gzip member of `size` bytes. Returns `None` for other streams, for damaged or
/// changing ones, and if allocation fails.
fn inflate_at_once(
    py: Python<'_>,
    source: Borrowed,
    size: usize,
) -> PyResult<Option<Bound<'_, PyBytes>>> {
    if size <= SHORT_BYTES {
        let inflated = new_bytes(py, size, false, |out| {
            Stream(&source).inflate_at_once(out).ok_or(Error::Stopped)
        });
        return Ok(inflated.ok().and_then(Result::ok));
    }
    let watcher = Watcher::signals();
    let inflated = new_bytes_elsewhere(py, size, &watcher, move |out| {
        Stream(&source).inflate_at_once(out).ok_or(Error::Stopped)
    });
    match inflated {
        Ok(inflated) => watcher.raise(inflated),
        Err(_) => Ok(None),
    }
}

pub fn inflate_to_pages(
    py: Python<'_>,
    source: &dyn Source,
    max_size: Option<Int>,
    threads: Option<Int>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Pages> {
    let max_size = limit(max_size);
    self::threads(threads, 0)?;
    let mut progress = progress;
    if let Some(indexed) = Indexed::open(source)? {
        check_size(indexed.len(), max_size)?;
        let threads = self::threads(threads, indexed.len())?;
        let watcher = Watcher::new(progress.take(), indexed.len());
        let inflated = py.detach(|| {
            let mut pages = Pages::with_room(indexed.len())?;
            pages.fill(indexed.len(), |out| {
                let whole = indexed.inflate(out, threads, &watcher)?;
                whole.ok_or(Error::GzipTruncated)
            })?;
            Ok(pages)
        });
        if !matches!(inflated, Err(Error::GzipTruncated)) {
            return watcher.raise(inflated);
        }
    }
    let at_once = progress.is_none();
    Watcher::new(progress, source.len()).detached(py, |watch| {
        let size = Stream(source).claimed_size()?;
        if at_once
            && size > 0
            && max_size.is_none_or(|max_size| size <= max_size)
            && let Some(pages) = pages_at_once(source, size, watch)?
        {
            return Ok(pages);
        }
        let room = max_size.map_or(size, |max_size| size.min(max_size));
        Stream(source).inflate(room, max_size, watch)
    })
}

fn pages_at_once(source: &dyn Source, size: usize, watch: &dyn Watch) -> Result<Option<Pages>> {
    // A copy that does not change.
    let mut stream = Vec::new();
    let Ok(mut pages) = Pages::with_room(size) else {
        return Ok(None);
    };
    if stream.try_reserve_exact(source.len()).is_err() {
        return Ok(None);
    }
    for block in parallel::blocks(0..source.len(), parallel::BLOCK) {
        read_to(source, block, &mut stream)?;
        watch.check()?;
    }
    let inflate = move || {
        let filled = pages.fill(size, |out| {
            Stream(&stream).inflate_at_once(out).ok_or(Error::Stopped)
        });
        filled.is_ok().then_some(pages)
    };
    if size <= SHORT_BYTES {
        return Ok(inflate());
    }
    parallel::elsewhere(inflate, watch)
}
