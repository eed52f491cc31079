//! Compressing and decompressing.

use std::num::NonZero;
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors;
use super::memory::{Borrowed, new_bytes};
use super::progress::Progress;
use crate::gzip::{self, Indexed};
use crate::layout::{Layout, LayoutBuilder, Payload};
use crate::{Error, parallel};

/// How many threads should compress or inflate `bytes`.
pub fn threads(py: Python<'_>, requested: Option<i64>, bytes: usize) -> PyResult<NonZero<usize>> {
    parallel::threads(requested, bytes, gzip::MIN_PARALLEL_BYTES)
        .map_err(|error| errors::to_py(py, error, None))
}

/// A layout as gzip, in a new `bytes` object.
pub fn to_bytes<'py>(
    py: Python<'py>,
    layout: &Layout<impl Payload + Sync>,
    level: Option<i64>,
    threads: Option<i64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let error = |error| errors::to_py(py, error, None);
    let method = gzip::method(level).map_err(error)?;
    let threads = self::threads(py, threads, layout.len())?;
    let mut progress = Progress::new(progress, layout.len());
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let done = py.detach(|| {
        gzip::compress(layout, method, threads, &mut pieces, |done| {
            progress.at(done)
        })
    });
    if let Err(stopped) = done {
        return Err(progress.explain(stopped, error));
    }
    let len = pieces.iter().map(Vec::len).sum();
    let (bytes, ()) = new_bytes(py, len, |mut rest| {
        let mut copies = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(piece.len());
            copies.push((&piece[..], now));
            rest = later;
        }
        parallel::copy_all(copies, threads);
        drop(pieces);
    })?;
    Ok(bytes)
}

/// Compresses any bytes-like object; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, level, *, threads, progress))]
pub fn compress<'py>(
    data: &Bound<'py, PyAny>,
    level: Option<i64>,
    threads: Option<i64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let content = Borrowed::buffer(data)?;
    let mut builder = LayoutBuilder::default();
    builder.push(content);
    to_bytes(data.py(), &builder.finish(), level, threads, progress)
}

/// Decompresses any bytes-like object; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, *, max_size, threads, progress))]
pub fn decompress<'py>(
    data: &Bound<'py, PyAny>,
    max_size: Option<usize>,
    threads: Option<i64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let source = Borrowed::buffer(data)?;
    inflate(
        data.py(),
        source.as_ref(),
        max_size,
        threads,
        progress,
        |_| (),
    )
}

/// After how many bytes of a stream the part that has been read is released.
const RELEASE_BYTES: usize = 4 << 20;

/// What a gzip stream contains. `release` is told which range of it has been read for good.
pub fn inflate<'py>(
    py: Python<'py>,
    data: &[u8],
    max_size: Option<usize>,
    threads: Option<i64>,
    progress: Option<Py<PyAny>>,
    release: impl Fn(Range<usize>) + Sync,
) -> PyResult<Bound<'py, PyBytes>> {
    let error = |error| errors::to_py(py, error, None);
    let callback = || progress.as_ref().map(|callback| callback.clone_ref(py));
    if let Some(indexed) = Indexed::open(data) {
        let len = indexed.len();
        let threads = self::threads(py, threads, len)?;
        if let Some(max_size) = max_size
            && len > max_size
        {
            return Err(error(Error::OutputLimit { max_size }));
        }
        let mut progress = Progress::new(callback(), len);
        let (bytes, whole) = new_bytes(py, len, |out| {
            let mut released = 0;
            indexed.inflate(out, threads, |done| {
                let read = indexed.read_for(done);
                if read - released > RELEASE_BYTES {
                    release(released..read);
                    released = read;
                }
                progress.at(done)
            })
        })?;
        match whole {
            Ok(true) => return Ok(bytes),
            Ok(false) => {} // what is wrong is found out below
            Err(stopped) => return Err(progress.explain(stopped, error)),
        }
    } else {
        self::threads(py, threads, 0)?; // checks the number
        let size = gzip::claimed_size(data);
        if size > 0 && max_size.is_none_or(|max_size| size <= max_size) {
            let (bytes, checksum) = new_bytes(py, size, |out| gzip::inflate_single(data, out))?;
            if let Some(checksum) = checksum {
                let content = bytes.as_bytes();
                if py.detach(|| crc32fast::hash(content)) == checksum {
                    return told(py, bytes, callback());
                }
            }
        }
    }
    let content = py
        .detach(|| gzip::decompress(data, max_size))
        .map_err(error)?;
    told(py, copied(py, &content)?, callback())
}

/// The bytes, after the callable has been told that all are there.
fn told<'py>(
    py: Python<'_>,
    bytes: Bound<'py, PyBytes>,
    callback: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let len = bytes.as_bytes().len();
    let mut progress = Progress::new(callback, len);
    match progress.at(len) {
        Ok(()) => Ok(bytes),
        Err(stopped) => Err(progress.explain(stopped, |error| errors::to_py(py, error, None))),
    }
}

fn copied<'py>(py: Python<'py>, content: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, ()) = new_bytes(py, content.len(), |target| {
        target.write_copy_of_slice(content);
    })?;
    Ok(bytes)
}
