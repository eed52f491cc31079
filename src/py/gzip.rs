//! Compressing and decompressing.

use std::num::NonZero;
use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::errors;
use super::memory::{Borrowed, copied, new_bytes, new_bytes_at_most};
use super::progress::Progress;
use crate::gzip::{self, Indexed};
use crate::layout::{Layout, LayoutBuilder, Payload};
use crate::{Error, Result, parallel};

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
    let made = new_bytes_at_most(py, gzip::bound(layout.len()), |memory| {
        let mut member = gzip::Place::new(memory);
        gzip::compress(layout, method, threads, &mut member, |done| {
            progress.at(done)
        })?;
        Ok(member.filled())
    })?;
    made.map_err(|stopped| progress.explain(stopped, error))
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
    let indexed = Indexed::open(data);
    let threads = self::threads(py, threads, indexed.as_ref().map_or(0, Indexed::len))?;
    let mut progress = progress;
    if let Some(indexed) = indexed {
        if let Some(max_size) = max_size
            && indexed.len() > max_size
        {
            return Err(error(Error::OutputLimit { max_size }));
        }
        // It is not told of a second attempt, which would begin at nothing again.
        let told = Progress::new(progress.take(), indexed.len());
        if let Some(bytes) = inflate_indexed(py, &indexed, threads, told, release)? {
            return Ok(bytes);
        }
    }
    let in_steps = progress.is_some();
    // How much will come out nobody knows, so what is told is how much has been read.
    let mut progress = Progress::new(progress, data.len());
    let size = gzip::claimed_size(data);
    let single = if size == 0 || max_size.is_some_and(|max_size| size > max_size) {
        Ok(None)
    } else if in_steps {
        inflate_in_steps(py, data, size, &mut progress)
    } else {
        Ok(inflate_at_once(py, data, size))
    };
    let inflated = match single {
        // Several members, or something that is wrong, which is found out here.
        Ok(None) => py
            .detach(|| gzip::decompress(data, max_size, |done| progress.at(done)))
            .map(|content| copied(py, &content)),
        Ok(Some(bytes)) => Ok(Ok(bytes)),
        Err(stopped) => Err(stopped),
    };
    let told = inflated.and_then(|bytes| progress.at(data.len()).map(|()| bytes));
    told.map_err(|stopped| progress.explain(stopped, error))?
}

/// What a member with an index contains, inflated in parallel; `None` if it is damaged.
fn inflate_indexed<'py>(
    py: Python<'py>,
    indexed: &Indexed<'_>,
    threads: NonZero<usize>,
    mut progress: Progress,
    release: impl Fn(Range<usize>) + Sync,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let (bytes, whole) = new_bytes(py, indexed.len(), |out| {
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
        Ok(whole) => Ok(whole.then_some(bytes)),
        Err(stopped) => Err(progress.explain(stopped, |error| errors::to_py(py, error, None))),
    }
}

/// What a stream of one member of so many bytes contains; `None` if it is anything else, or
/// damaged.
fn inflate_at_once<'py>(py: Python<'py>, data: &[u8], size: usize) -> Option<Bound<'py, PyBytes>> {
    let (bytes, whole) = new_bytes(py, size, |out| gzip::inflate_at_once(data, out)).ok()?;
    whole.then_some(bytes)
}

/// The same, with progress.
fn inflate_in_steps<'py>(
    py: Python<'py>,
    data: &[u8],
    size: usize,
    progress: &mut Progress,
) -> Result<Option<Bound<'py, PyBytes>>> {
    let made = new_bytes(py, size, |out| {
        gzip::inflate_single(data, out, |done| progress.at(done))
    });
    let Ok((bytes, checksum)) = made else {
        return Ok(None); // there is no memory of the size that is claimed
    };
    let checksum = checksum?;
    let content = bytes.as_bytes();
    let sound = checksum.is_some_and(|sum| py.detach(|| crc32fast::hash(content)) == sum);
    Ok(sound.then_some(bytes))
}
