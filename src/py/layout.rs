//! The verbs that save: a tree in, bytes or a file out.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use super::intake::Options;
use super::memory::{Borrowed, new_bytes};
use super::{errors, gzip};
use crate::array::{Alignment, ChunkLimit, Framing};
use crate::sink::{Durability, pour, write_file, write_layout};
use crate::{Result, layout};

/// A tree that is ready to be written: small headers, and borrowed array memory.
#[pyclass(frozen, module = "treepack._core")]
pub struct Layout(layout::Layout<Borrowed>);

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

    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        new_bytes(py, self.0.len(), |target| pour(&self.0, target))
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
