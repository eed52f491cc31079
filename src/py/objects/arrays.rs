//! Arrays of events: views of the source, or copies, of which large ones wait for the end.

use std::mem::MaybeUninit;
use std::ops::Range;

use numpy::PyArrayDescr;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::super::dtypes::Dtype;
use super::super::failure::Walked;
use super::super::memory::{FreshArray, SmallCopies, detached, sizes, view};
use super::super::watch::Watcher;
use super::{Built, CopyMode, Objects};
use crate::array::resolve;
use crate::events::{Span, no_dtype};
use crate::source::Source;
use crate::watch::Watch;
use crate::{Error, grow, parallel};

/// Arrays of at least so many bytes are copied together at the end.
const LATER_MIN_BYTES: usize = 64 << 10;

/// Fresh arrays, and where in the source their bytes are.
pub(super) type Copies<'py> = Vec<(FreshArray<'py>, SmallVec<[Span; 1]>)>;

/// Fills all planned arrays.
pub(super) fn copy_all(
    py: Python<'_>,
    source: &dyn Source,
    mut copies: Copies<'_>,
    threads: Option<i64>,
    watcher: &Watcher,
) -> crate::Result<()> {
    let mut blocks = Vec::new();
    for (array, spans) in &mut copies {
        let pieces = spans.iter().map(|span| span.range());
        add_blocks(&mut blocks, pieces, array.memory())?;
    }
    let bytes = blocks.iter().map(|(_, block)| block.len()).sum();
    let threads = parallel::threads(threads, bytes, parallel::MIN_COPY_BYTES)?;
    detached(py, bytes, false, || {
        let read = |(start, target): Block<'_>| source.read_at(start, target).map(drop);
        parallel::for_each(blocks, threads, read, || watcher.check())
    })
}

/// Memory to be filled, and where in a source its bytes begin.
type Block<'m> = (usize, &'m mut [MaybeUninit<u8>]);

/// Adds memory that takes pieces of a source, one after the other, in blocks that threads may
/// share.
///
/// # Panics
/// If it does not have as many bytes as the pieces.
fn add_blocks<'m>(
    blocks: &mut Vec<Block<'m>>,
    pieces: impl IntoIterator<Item = Range<usize>>,
    memory: &'m mut [MaybeUninit<u8>],
) -> crate::Result<()> {
    let mut rest = memory;
    for piece in pieces {
        let (now, later) = rest.split_at_mut(piece.len());
        let starts = (piece.start..).step_by(parallel::BLOCK);
        blocks.try_reserve(piece.len().div_ceil(parallel::BLOCK))?;
        blocks.extend(starts.zip(now.chunks_mut(parallel::BLOCK)));
        rest = later;
    }
    assert!(rest.is_empty(), "the pieces cover the memory");
    Ok(())
}

impl<'py> Objects<'_, 'py> {
    /// An array: a view if it may and can be one.
    #[inline(never)] // see `value`
    pub(super) fn array(&mut self, number: u32, copy: CopyMode) -> Built<'py> {
        let found = self.reader.events().array(number);
        let known = self.dtypes.get(found.dtype_number);
        let Some(Some(dtype)) = known else {
            self.find_dtype(number)?;
            return self.array(number, copy);
        };
        let nbytes = found.nbytes();
        let same = [
            found.dims_start,
            found.dims.len(),
            found.dtype_number,
            nbytes,
        ];
        if self.resolved.0 != same {
            let shape = resolve(found.dims, nbytes, dtype.itemsize, found.offset)?;
            self.resolved = (same, shape);
        }
        let shape = &self.resolved.1;
        if copy == CopyMode::Abstract {
            let shape = sizes(self.py, shape)?;
            let abstract_array = self.hooks.abstract_array.bind(self.py);
            return Ok(abstract_array.call1((shape, &dtype.object))?);
        }
        if let ([span], Some(memory)) = (found.spans, self.memory)
            && copy != CopyMode::Always
        {
            let start = span.start;
            let address = memory.memory().as_ptr().addr() + start;
            if address.is_multiple_of(dtype.alignment) {
                return Ok(view(dtype.object.bind(self.py), shape, memory, start)?);
            }
            if copy == CopyMode::IfNeeded && nbytes <= SmallCopies::MAX_BYTES {
                let bytes = memory.memory().slice(span.range());
                let dtype = dtype.object.bind(self.py);
                let copied = self
                    .small_copies
                    .array(dtype, shape, |it| bytes.read_at(0, it));
                return Ok(copied?);
            }
        }
        let (dtype, shape) = (dtype.object.bind(self.py).clone(), shape.clone());
        self.copied_array(number, &dtype, &shape, copy)
    }

    #[inline(never)]
    fn copied_array(
        &mut self,
        number: u32,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[usize],
        copy: CopyMode,
    ) -> Built<'py> {
        let found = self.reader.events().array(number);
        let nbytes = found.nbytes();
        if copy == CopyMode::Never && nbytes > 0 {
            return Err(Error::malformed(
                found.offset,
                "copy=False, but this array can only be had by a copy: its bytes are in \
                 several chunks, or not aligned for its dtype; pass copy=None",
            )
            .into());
        }
        let writable = copy == CopyMode::Always;
        let later = self.source.len().saturating_sub(found.offset);
        let mut fresh = match self.fresh_pages.take(nbytes, later) {
            Some(pages) => FreshArray::over(pages, dtype, shape, writable),
            None => FreshArray::new(dtype, shape, writable),
        }?;
        let object = fresh.object().clone();
        if self.at_once || nbytes < LATER_MIN_BYTES {
            let mut rest = fresh.memory();
            for span in found.spans {
                let (now, later) = rest.split_at_mut(span.len as usize);
                self.source.read_at(span.start, now)?;
                rest = later;
            }
        } else {
            let mut spans = SmallVec::new();
            let room = spans.try_reserve(found.spans.len());
            room.map_err(|_| Error::OutOfMemory)?;
            spans.extend_from_slice(found.spans);
            grow::push(&mut self.copies, (fresh, spans))?;
        }
        Ok(object)
    }

    /// Looks up the dtype of an array, once for all of its name.
    #[inline(never)]
    fn find_dtype(&mut self, number: u32) -> Walked {
        let found = self.reader.events().array(number);
        let Some(dtype) = Dtype::named(self.py, found.dtype)? else {
            return Err(no_dtype(found.dtype, found.offset).into());
        };
        if self.dtypes.len() <= found.dtype_number {
            let more = found.dtype_number + 1 - self.dtypes.len();
            self.dtypes.try_reserve(more).map_err(Error::from)?;
            self.dtypes.resize_with(found.dtype_number + 1, || None);
        }
        self.dtypes[found.dtype_number] = Some(dtype);
        Ok(())
    }
}
