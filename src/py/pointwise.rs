//! Converts numbers of arrays into Python's memory.

use std::num::NonZero;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use super::memory::{Borrowed, Writable};
use super::options::{self, Int};
use super::watch::Watcher;
use crate::base::raw::AsRaw as _;
use crate::base::watch::Watch as _;
use crate::base::{grow, parallel};
use crate::elements::pointwise::{Axis, Pointwise, Source, Target};

/// Bytes, the offset of the first element, and the strides.
type Memory<'py> = (Bound<'py, PyAny>, usize, Vec<usize>);

/// The name of a dtype, or the 256 values of one of a byte, as `float32`.
#[derive(FromPyObject)]
pub enum Kind<'py> {
    Name(String),
    Table(Bound<'py, PyAny>),
}

/// Converts the elements of one array to another dtype, scaled and shifted.
#[pyfunction]
#[pyo3(signature = (source, kind, target, dtype, shape, blocks, scales, *, scale, add, threads))]
pub fn convert(
    py: Python<'_>,
    source: Memory<'_>,
    kind: Kind<'_>,
    target: Memory<'_>,
    dtype: &str,
    shape: Vec<usize>,
    blocks: Vec<(NonZero<usize>, usize)>,
    scales: Option<Bound<'_, PyAny>>,
    scale: Option<f32>,
    add: Option<f32>,
    threads: Option<Int>,
) -> PyResult<()> {
    let (memory, at, source) = source;
    let (buffer, start, target) = target;
    let (memory, mut buffer) = (Borrowed::buffer(&memory)?, Writable::get(&buffer)?);
    let kind = match kind {
        Kind::Table(table) => floats(&table)?.try_into().map(Source::Byte).ok(),
        Kind::Name(name) => Source::named(&name),
    };
    let dtypes = kind.zip(Target::named(dtype));
    let dtypes = dtypes.ok_or_else(|| PyValueError::new_err("unsupported dtypes"))?;
    let ndim = shape.len();
    if [source.len(), target.len(), blocks.len()] != [ndim; 3] {
        return Err(PyValueError::new_err("the arrays have other dimensions"));
    }
    let axis_of = |dim: usize| Axis {
        count: shape[dim],
        source: source[dim],
        target: target[dim],
        block: blocks[dim].0,
        skipped: blocks[dim].1,
    };
    let axes: Vec<Axis> = (0..ndim).map(axis_of).collect();
    let scales = scales.as_ref().map(floats).transpose()?.unwrap_or_default();
    let steps = Pointwise::new(dtypes, &axes, scales, [scale, add]);
    let steps = steps
        .ok_or_else(|| PyIndexError::new_err("the array is not in C order, or has other scales"))?;
    let (from, to) = (
        at..at.saturating_add(steps.source_extent),
        start..start.saturating_add(steps.target_extent),
    );
    let raw = memory.as_raw();
    if from.end > raw.len() || to.end > buffer.len() {
        return Err(PyIndexError::new_err("the memory is too small for the box"));
    }
    if raw.overlaps(buffer.memory()) {
        return Err(PyValueError::new_err("the arrays overlap"));
    }
    let threads = options::threads(threads, to.len(), parallel::BLOCK)?;
    let watcher = Watcher::signals();
    let done = buffer.fill(py, to, true, |target| {
        steps.convert(raw.slice(from), target, threads, || watcher.check())
    });
    watcher.raise(done)
}

/// Copies contiguous numbers of `float32`.
fn floats(buffer: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let mut bytes = Vec::new();
    Borrowed::buffer(buffer)?.as_raw().append_to(&mut bytes)?;
    let floats = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes);
    Ok(grow::collect(floats)?)
}
