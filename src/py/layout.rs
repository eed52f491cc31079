//! The verbs that save: a tree in, bytes or a file out.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyType};

use super::intake::{Options, Source};
use super::memory::{Writable, new_bytes, view};
use super::{errors, gzip};
use crate::array::{Alignment, ChunkLimit, Framing};
use crate::sink::{Durability, Target, pour, write_file, write_layout};
use crate::{Result, layout, parallel};

/// Below so many bytes, headers and payloads are joined in `buffers`: to send a piece by
/// itself costs more than to copy it.
const JOIN_MAX_BYTES: usize = 4 << 10;

/// A tree that is ready to be written: small headers, and borrowed array memory.
#[pyclass(frozen, module = "treepack._core")]
pub struct Layout(layout::Layout<Source>);

/// Walks a tree; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (tree, *, state_dict, sort_keys, align, max_chunk_size, overridden))]
pub fn intake(
    tree: &Bound<'_, PyAny>,
    state_dict: bool,
    sort_keys: bool,
    align: i64,
    max_chunk_size: f64,
    overridden: Vec<Bound<'_, PyType>>,
) -> PyResult<Layout> {
    let framing = Framing {
        align: Alignment::new(align).map_err(|error| errors::to_py(tree.py(), error, None))?,
        chunks: ChunkLimit::new(max_chunk_size),
        may_box: true,
    };
    let options = Options {
        state_dict,
        sort_keys,
        framing,
        overridden,
    };
    Ok(Layout(super::intake::intake(tree, &options)?))
}

#[pymethods]
impl Layout {
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.len()
    }

    #[pyo3(signature = (*, threads))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        threads: Option<i64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let threads = self.threads(py, threads)?;
        new_bytes(py, self.0.len(), |memory| {
            pour(&self.0, memory, Target::Fresh, threads);
        })
    }

    /// Fills a range of a writable buffer.
    #[pyo3(signature = (buffer, *, offset, threads))]
    fn pack_into(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: i64,
        threads: Option<i64>,
    ) -> PyResult<usize> {
        let py = buffer.py();
        let wanted = threads;
        let threads = self.threads(py, wanted)?;
        let mut buffer = Writable::get(buffer)?;
        let (room, needed) = (buffer.len(), self.0.len());
        let start = usize::try_from(offset).ok().filter(|&start| start <= room);
        let Some(start) = start else {
            return Err(PyValueError::new_err(format!(
                "offset must be from 0 to the length of the buffer, {room}, got {offset}"
            )));
        };
        if room - start < needed {
            return Err(PyValueError::new_err(format!(
                "the buffer is too small: {needed} bytes are needed after offset {start}, and it \
                 has {} there; see packed_size",
                room - start
            )));
        }
        let range = start..start + needed;
        if self.0.slices(0..needed).any(|slice| buffer.overlaps(slice)) {
            // Some arrays lie where they would be overwritten before they are read.
            let copy = self.to_bytes(py, wanted)?;
            let copy = copy.as_bytes();
            buffer.fill(py, range, |memory| {
                parallel::copy_all(vec![(copy, memory)], threads);
            });
        } else {
            buffer.fill(py, range, |memory| {
                pour(&self.0, memory, Target::Used, threads);
            });
        }
        Ok(needed)
    }

    /// The encoding as memoryviews, with array memory as it is.
    fn buffers<'py>(slf: &Bound<'py, Self>) -> PyResult<Vec<Bound<'py, PyMemoryView>>> {
        let py = slf.py();
        let byte = numpy::dtype::<u8>(py);
        let mut views = Vec::new();
        let mut small = Vec::new();
        let flush = |small: &mut Vec<u8>, views: &mut Vec<_>| {
            if !small.is_empty() {
                views.push(PyMemoryView::from(PyBytes::new(py, small).as_any())?);
                small.clear();
            }
            PyResult::Ok(())
        };
        let layout = &slf.get().0;
        for slice in layout.slices(0..layout.len()) {
            if slice.len() < JOIN_MAX_BYTES {
                small.extend_from_slice(slice);
                continue;
            }
            flush(&mut small, &mut views)?;
            let len = slice.len().cast_signed();
            let array = view(&byte, &[len], slice, slf.as_any())?;
            views.push(PyMemoryView::from(&array)?);
        }
        flush(&mut small, &mut views)?;
        Ok(views)
    }

    fn to_gzip<'py>(&self, py: Python<'py>, level: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        gzip::to_bytes(py, &self.0, level)
    }

    #[pyo3(signature = (path, *, durable))]
    fn save(&self, py: Python<'_>, path: PathBuf, durable: bool) -> PyResult<()> {
        let layout = &self.0;
        save(py, &path, durable, layout.len(), |file| {
            write_layout(layout, file)
        })
    }

    #[pyo3(signature = (path, level, *, durable))]
    fn save_gzip(
        &self,
        py: Python<'_>,
        path: PathBuf,
        level: Option<i64>,
        durable: bool,
    ) -> PyResult<()> {
        let level = gzip::level(py, level)?;
        // The size is not known before; zero reserves nothing.
        save(py, &path, durable, 0, |file| {
            let file = std::io::BufWriter::with_capacity(1 << 20, file);
            crate::gzip::compress(&self.0, level, file)
        })
    }
}

impl Layout {
    fn threads(&self, py: Python<'_>, requested: Option<i64>) -> PyResult<NonZero<usize>> {
        parallel::threads(requested, self.0.len()).map_err(|error| errors::to_py(py, error, None))
    }
}

/// Writes a file whole or not at all, detached.
fn save(
    py: Python<'_>,
    path: &Path,
    durable: bool,
    size: usize,
    write: impl FnOnce(&mut std::fs::File) -> Result<()> + Send,
) -> PyResult<()> {
    let durability = if durable {
        Durability::Synced
    } else {
        Durability::Cached
    };
    py.detach(|| write_file(path, durability, size, write))
        .map_err(|error| errors::file_error(py, error, path))
}
