//! The verbs that save: a tree in, bytes or a file out.

use std::fs::File;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyType};

use super::intake::{Options, Source};
use super::memory::{Writable, new_bytes, view};
use super::progress::Progress;
use super::{errors, gzip};
use crate::array::{Alignment, ChunkLimit, Framing};
use crate::gzip::compress;
use crate::layout::{self, OutputPiece};
use crate::sink::{Durability, Target, pour, pour_range, write_file, write_layout};
use crate::{Result, parallel};

/// Below so many bytes, headers and payloads are joined in `buffers`: to send a piece by
/// itself costs more than to copy it.
const JOIN_MAX_BYTES: usize = 4 << 10;

/// A tree that is ready to be written: small headers, and borrowed array memory.
#[pyclass(frozen, module = "treepack._core")]
pub struct Layout(layout::Layout<Source>);

/// Walks a tree; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (
    tree, *, state_dict, sort_keys, align, max_chunk_size, overridden, structure=false, metadata=None
))]
#[allow(clippy::too_many_arguments)] // they have names in Python
pub fn intake(
    tree: &Bound<'_, PyAny>,
    state_dict: bool,
    sort_keys: bool,
    align: i64,
    max_chunk_size: f64,
    overridden: Vec<Bound<'_, PyType>>,
    structure: bool,
    metadata: Option<Vec<u8>>,
) -> PyResult<Layout> {
    let framing = Framing {
        align: Alignment::new(align).map_err(|error| errors::to_py(tree.py(), error, None))?,
        chunks: ChunkLimit::new(max_chunk_size),
        may_box: true,
    };
    let options = Options {
        state_dict,
        sort_keys,
        structure,
        metadata,
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
        let (bytes, ()) = new_bytes(py, self.0.len(), |memory| {
            pour(&self.0, memory, Target::Fresh, threads);
        })?;
        Ok(bytes)
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
        let blocks = self.0.payloads().flat_map(Source::blocks);
        if blocks.into_iter().any(|block| buffer.overlaps(block)) {
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
        let layout = &slf.get().0;
        let pieces = py.detach(|| layout.pieces(JOIN_MAX_BYTES));
        let views = pieces.into_iter().map(|piece| match piece {
            OutputPiece::Run(run) => {
                let array = view(&byte, &[run.len().cast_signed()], run, slf.as_any())?;
                PyMemoryView::from(&array)
            }
            OutputPiece::Joined(range) => {
                let (bytes, ()) = new_bytes(py, range.len(), |memory| {
                    pour_range(layout, range, memory);
                })?;
                PyMemoryView::from(bytes.as_any())
            }
        });
        views.collect()
    }

    #[pyo3(signature = (level, *, threads, progress))]
    fn to_gzip<'py>(
        &self,
        py: Python<'py>,
        level: Option<i64>,
        threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        gzip::to_bytes(py, &self.0, level, threads, progress)
    }

    #[pyo3(signature = (path, *, durable, progress))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        durable: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let progress = Progress::new(progress, self.0.len());
        save(py, &path, durable, self.0.len(), progress, |file, done| {
            write_layout(&self.0, file, done)
        })
    }

    #[pyo3(signature = (path, level, *, durable, threads, progress))]
    fn save_gzip(
        &self,
        py: Python<'_>,
        path: PathBuf,
        level: Option<i64>,
        durable: bool,
        threads: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let method = crate::gzip::method(level).map_err(|error| errors::to_py(py, error, None))?;
        let threads = gzip::threads(py, threads, self.0.len())?;
        let progress = Progress::new(progress, self.0.len());
        // The size is not known before; zero reserves nothing.
        save(py, &path, durable, 0, progress, |file, done| {
            if file.metadata()?.is_file() {
                return compress(&self.0, method, threads, file, done);
            }
            // A pipe cannot go back to the header.
            let mut member = Vec::new();
            compress(&self.0, method, threads, &mut member, done)?;
            Ok(file.write_all(&member)?)
        })
    }
}

impl Layout {
    fn threads(&self, py: Python<'_>, requested: Option<i64>) -> PyResult<NonZero<usize>> {
        let threads = parallel::threads(requested, self.0.len(), parallel::MIN_COPY_BYTES);
        threads.map_err(|error| errors::to_py(py, error, None))
    }
}

/// Writes a file whole or not at all, detached. `write` tells how far it has come.
fn save(
    py: Python<'_>,
    path: &Path,
    durable: bool,
    size: usize,
    mut progress: Progress,
    write: impl FnOnce(&mut File, &mut dyn FnMut(usize) -> Result<()>) -> Result<()> + Send,
) -> PyResult<()> {
    let durability = if durable {
        Durability::Synced
    } else {
        Durability::Cached
    };
    let saved = py.detach(|| {
        write_file(path, durability, size, |file| {
            write(file, &mut |done| progress.at(done))
        })
    });
    saved.map_err(|error| progress.explain(error, |error| errors::file_error(py, error, path)))
}
