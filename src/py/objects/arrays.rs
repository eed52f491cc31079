//! Makes arrays from events: views of the source, or copies.

use numpy::PyArrayDescr;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::super::dtypes::Dtype;
use super::super::failure::{Built, Walked};
use super::super::memory::{FreshArray, SmallCopies, new_tuple, view};
use super::values::{CopyMode, Objects};
use crate::base::source::Source;
use crate::format::array::resolve;
use crate::format::dtypes::no_dtype;
use crate::{Error, base::grow};

/// Size from which arrays are copied together at the end.
const LATER_MIN_BYTES: usize = 64 << 10;

impl<'py> Objects<'_, 'py> {
    /// Makes an array, as a view if possible and permitted.
    #[inline(never)]
    pub(super) fn array(&mut self, number: u32, copy: CopyMode) -> Built<'py> {
        let event = self.reader.events().array(number);
        let known = self.dtypes.get(event.dtype_number);
        let Some(Some(dtype)) = known else {
            self.find_dtype(number)?;
            return self.array(number, copy);
        };
        let nbytes = event.nbytes();
        let same = [
            event.dims_start,
            event.dims.len(),
            event.dtype_number,
            nbytes,
        ];
        if self.resolved.0 != same {
            let shape = resolve(event.dims, nbytes, dtype.itemsize, event.offset)?;
            self.resolved = (same, shape);
        }
        let shape = &self.resolved.1;
        if copy == CopyMode::Abstract {
            let shape = new_tuple(self.py, shape)?;
            let abstract_array = self.hooks.abstract_array.bind(self.py);
            return Ok(abstract_array.call1((shape, &dtype.object))?);
        }
        if let Some(memory) = &self.memory
            && copy != CopyMode::Always
        {
            let descr = dtype.object.bind(self.py);
            let made = memory.view(event.spans, |memory, start| {
                let address = memory.memory().as_ptr().addr() + start;
                if address.is_multiple_of(dtype.alignment) {
                    return view(descr, shape, memory, start).map(Some);
                }
                if copy != CopyMode::IfNeeded || nbytes > SmallCopies::MAX_BYTES {
                    return Ok(None);
                }
                let bytes = memory.memory().slice(start..start + nbytes);
                let copies = &mut self.small_copies;
                let array = copies.array(descr, shape, |target| bytes.read_at(0, target));
                array.map(Some)
            });
            if let Some(made) = made.transpose()?.flatten() {
                return Ok(made);
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
        let event = self.reader.events().array(number);
        let nbytes = event.nbytes();
        if copy == CopyMode::Never && nbytes > 0 {
            return Err(Error::malformed(
                event.offset,
                "copy=False, but this array must be copied: its bytes are in several chunks, not \
                 aligned for its dtype, or not mapped; pass copy=None",
            )
            .into());
        }
        let writable = copy == CopyMode::Always;
        let later = self.source.len().saturating_sub(event.offset);
        let mut fresh = match self.fresh_pages.take(nbytes, later) {
            Some(pages) => FreshArray::over(pages, dtype, shape, writable),
            None => FreshArray::new(dtype, shape, writable),
        }?;
        let object = fresh.object().clone();
        if self.at_once || nbytes < LATER_MIN_BYTES {
            let mut rest = fresh.memory();
            for span in event.spans {
                let (now, later) = rest.split_at_mut(span.len as usize);
                self.source.read_at(span.start, now)?;
                rest = later;
            }
        } else {
            let mut spans = SmallVec::new();
            let room = spans.try_reserve(event.spans.len());
            room.map_err(|_| Error::OutOfMemory)?;
            spans.extend_from_slice(event.spans);
            grow::push(&mut self.copies, (fresh, spans))?;
        }
        Ok(object)
    }

    #[inline(never)]
    fn find_dtype(&mut self, number: u32) -> Walked {
        let event = self.reader.events().array(number);
        let Some(dtype) = Dtype::named(self.py, event.dtype)? else {
            return Err(no_dtype(event.dtype, event.offset).into());
        };
        if self.dtypes.len() <= event.dtype_number {
            grow::resize(&mut self.dtypes, event.dtype_number + 1, None)?;
        }
        self.dtypes[event.dtype_number] = Some(dtype);
        Ok(())
    }
}
