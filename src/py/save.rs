//! Functions that save: a tree in, bytes or a file out.

use std::num::NonZero;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyType};

use super::layout::Layout;
use super::memory::{
    Owned, Writable, lent_bytes, list_of_results, new_bytes, new_bytes_at_most, new_list_of,
    remember_size, view,
};
use super::options::{self, Int};
use super::pipe::Destination;
use super::walk::{LeafPayload, Options, layout_of, problems_of, raw_layout_of, snapshot};
use super::watch::Watcher;
use super::{delta, errors, gzip as py_gzip};
use crate::base::raw::Filling;
use crate::codec::gzip;
use crate::files::sink::{Output, pour, replace_file, write_pipe};
use crate::format::array::{Alignment, ChunkLimit, Framing};
use crate::format::encoder::Encoder;
use crate::format::layout::{Caching, OutputPiece, Payload};
use crate::format::structure::Record;
use crate::sharding::manifest::{Grid, Manifest, ShardFile};
use crate::{Result, base::parallel};

/// `buffers` joins smaller pieces: a copy costs less than sending one more piece.
const JOIN_MAX_BYTES: usize = 4 << 10;

#[pyfunction]
#[pyo3(signature = (
    tree, *, state_dict, sort_keys=false, align, max_chunk_size, overridden=vec![], left_out=None,
    structure=false, metadata=None, index=false, checksums=false,
    digests=false, record=None, snapshot=false, gaps=false,
    align_all=false, joined=false, base=None, base_name="", threads=None
))]
pub fn walk(
    tree: &Bound<'_, PyAny>,
    state_dict: bool,
    sort_keys: bool,
    align: Int,
    max_chunk_size: f64,
    overridden: Vec<Bound<'_, PyType>>,
    left_out: Option<Bound<'_, PyAny>>,
    structure: bool,
    metadata: Option<Vec<u8>>,
    index: bool,
    checksums: bool,
    digests: bool,
    record: Option<Vec<u8>>,
    snapshot: bool,
    gaps: bool,
    align_all: bool,
    joined: bool,
    base: Option<Bound<'_, PyAny>>,
    base_name: &str,
    threads: Option<Int>,
) -> PyResult<Layout> {
    let align = Alignment::new(align.0)?;
    let framing = Framing {
        align: if align_all { align.of_all() } else { align },
        chunks: ChunkLimit::new(max_chunk_size),
        may_box: true,
    };
    let out = match (structure, index) {
        (false, _) => Encoder::new(framing),
        (true, false) => Encoder::described(framing),
        (true, true) => Encoder::indexed(framing, checksums),
    };
    let out = if digests { out.digested() } else { out };
    let options = Options {
        state_dict,
        sort_keys,
        gaps,
        joined,
        overridden,
        left_out,
    };
    let record = record.map(|record| Record::read(&record)).transpose()?;
    let (mut layout, gaps) = layout_of(tree, out, options, metadata, record)?;
    if snapshot {
        self::snapshot(tree.py(), &mut layout)?;
    }
    if let Some(base) = base {
        layout = delta::patch_of(layout, &base, base_name, threads)?;
    }
    Ok(Layout::new(layout, gaps))
}

#[pyfunction]
#[pyo3(signature = (header, arrays, *, snapshot))]
pub fn lay_raw(header: &[u8], arrays: &Bound<'_, PyList>, snapshot: bool) -> PyResult<Layout> {
    let (mut layout, _) = raw_layout_of(arrays, Encoder::raw(header)?)?;
    if snapshot {
        self::snapshot(arrays.py(), &mut layout)?;
    }
    Ok(Layout::new(layout, Vec::new()))
}

#[pyfunction]
#[pyo3(signature = (tree, *, overridden))]
pub fn problems(
    tree: &Bound<'_, PyAny>,
    overridden: Vec<Bound<'_, PyType>>,
) -> PyResult<Vec<(String, String)>> {
    let options = Options {
        state_dict: true,
        overridden,
        ..Options::default()
    };
    problems_of(tree, Encoder::new(Framing::default()), options)
}

#[pymethods]
impl Layout {
    #[getter]
    fn gaps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        new_list_of(py, self.gaps.iter().map(|array| array.bind(py).clone()))
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.output.len()
    }

    #[pyo3(signature = (*, threads))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        threads: Option<Int>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let threads = self.threads(threads)?;
        let watcher = Watcher::signals();
        if let Some(joined) = self.output.joined() {
            remember_size(joined.len());
            if let Some(owner) = joined.owner()
                && let Some(bytes) = lent_bytes(py, owner, joined)
            {
                return Ok(bytes);
            }
        }
        let bytes = new_bytes(py, self.output.len(), self.needs_python, |memory| {
            pour(&self.output, memory, Caching::Usual, threads, &watcher)
        })?;
        watcher.raise(bytes)
    }

    #[pyo3(signature = (buffer, *, offset, threads))]
    fn pack_into(
        &self,
        buffer: &Bound<'_, PyAny>,
        offset: Int,
        threads: Option<Int>,
    ) -> PyResult<usize> {
        let py = buffer.py();
        let wanted = threads;
        let threads = self.threads(wanted)?;
        let mut buffer = Writable::get(buffer)?;
        let (room, needed) = (buffer.len(), self.output.len());
        let start = buffer.position(offset.0)?;
        if room - start < needed {
            return Err(PyValueError::new_err(format!(
                "the buffer is too small: {needed} bytes are needed after offset {start}, and it \
                 has {} there; packed_size returns their number with the same options",
                room - start
            )));
        }
        let range = start..start + needed;
        let watcher = Watcher::signals();
        let target = buffer.memory();
        // Arrays of devices may not be in host memory yet.
        let overlaps =
            |leaf: &LeafPayload| leaf.memory().is_none_or(|memory| memory.overlaps(target));
        let filled = if self.output.payloads().any(overlaps) {
            // Writing would overwrite arrays before they are read.
            let copy = self.to_bytes(py, wanted)?;
            let copy = copy.as_bytes();
            buffer.fill(py, range, false, |memory| {
                memory.write_copy_of_slice(copy);
                Ok(())
            })
        } else {
            buffer.fill(py, range, self.needs_python, |memory| {
                pour(&self.output, memory, Caching::Past, threads, &watcher).map(drop)
            })
        };
        watcher.raise(filled)?;
        Ok(needed)
    }

    fn buffers<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let py = slf.py();
        let byte = numpy::dtype::<u8>(py);
        let Self {
            output: layout,
            needs_python,
            ..
        } = slf.get();
        let pieces = py.detach(|| layout.pieces(JOIN_MAX_BYTES))?;
        let views = pieces.into_iter().map(|piece| match piece {
            OutputPiece::Payload(number) => {
                let owned = Owned::of(slf, |layout| layout.output.payload(number).memory());
                let owned = owned.expect("a payload is a piece where it has memory");
                let array = view(&byte, &[owned.memory().len()], owned, 0)?;
                PyMemoryView::from(&array).map(Bound::into_any)
            }
            OutputPiece::Joined(range) => {
                let bytes = new_bytes(py, range.len(), *needs_python, |memory| {
                    layout.copy_to(range.start, memory, Caching::Usual)
                })?;
                PyMemoryView::from(bytes?.as_any()).map(Bound::into_any)
            }
        });
        list_of_results(py, views)
    }

    #[pyo3(signature = (level, *, numbers=false, threads, progress))]
    fn to_gzip<'py>(
        &self,
        py: Python<'py>,
        level: Option<Int>,
        numbers: bool,
        threads: Option<Int>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = self.output.len();
        let method = py_gzip::method(level, numbers)?;
        let threads = py_gzip::threads(threads, size)?;
        let watcher = Watcher::new(progress, size);
        let compressed = new_bytes_at_most(py, gzip::bound(size), self.needs_python, |memory| {
            let mut stream = Filling::new(memory);
            gzip::compress(&self.output, method, threads, &mut stream, &watcher)?;
            Ok(stream.finish())
        })?;
        watcher.raise(compressed)
    }

    #[pyo3(signature = (place, *, compress, level, durable, threads, progress))]
    fn save(
        &self,
        py: Python<'_>,
        place: Destination,
        compress: &Bound<'_, PyAny>,
        level: Option<Int>,
        durable: bool,
        threads: Option<Int>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let size = self.output.len();
        let watcher = Watcher::new(progress, size);
        // The compressed size is unknown; zero reserves nothing.
        let (method, threads, size) = if compress.is_truthy()? {
            let method = py_gzip::method(level, compress.eq("numbers")?)?;
            (Some(method), py_gzip::threads(threads, size)?, 0)
        } else {
            (None, self.threads(threads)?, size)
        };
        let write = |file: &mut Output<'_>| match method {
            Some(method) => gzip::compress(&self.output, method, threads, file, &watcher),
            None => file.layout(&self.output, threads),
        };
        let saved = match &place {
            Destination::Path(path) => {
                py.detach(|| replace_file(path, durable, size, &watcher, write))
            }
            Destination::Pipe(pipe) => {
                let file = pipe.get().file()?;
                py.detach(|| write_pipe(&file, &watcher, write))
            }
        };
        saved.map_err(|error| {
            watcher.explain(error, |error| match &place {
                Destination::Path(path) => errors::file_error(error, path),
                Destination::Pipe(_) => error.into(),
            })
        })
    }
}

impl Layout {
    pub fn manifest(
        &self,
        py: Python<'_>,
        files: Vec<ShardFile>,
        arrays: Vec<Grid>,
    ) -> Result<Manifest> {
        let gap = |leaf: &LeafPayload| match leaf {
            LeafPayload::Gap { number, .. } => Some(*number),
            _ => None,
        };
        py.detach(|| Manifest::new(&self.output, gap, files, arrays))
    }

    fn threads(&self, requested: Option<Int>) -> Result<NonZero<usize>> {
        options::threads(requested, self.output.len(), parallel::MIN_COPY_BYTES)
    }
}
