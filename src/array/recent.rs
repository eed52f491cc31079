//! Headers of arrays that were written last, to be copied.

use std::ops::Range;

use smallvec::SmallVec;

use super::headers::{Array, write_ext};
use crate::Result;

/// Headers of small arrays that stand in a layout: a tree has many arrays of few shapes,
/// and to copy their headers costs less than to make them again.
#[derive(Debug, Default)]
pub struct RecentHeaders {
    known: Vec<KnownHeaders>,
    /// Which of them is replaced next.
    oldest: usize,
}

#[derive(Debug)]
struct KnownHeaders {
    code: i8,
    itemsize: usize,
    shape: SmallVec<[usize; 4]>,
    dtype: SmallVec<[u8; 16]>,
    /// Where they stand among the headers.
    place: Range<usize>,
}

impl RecentHeaders {
    const COUNT: usize = 4;

    /// `ext(code, [shape, dtype, bin` at the smallest widths.
    pub(super) fn write(&mut self, out: &mut Vec<u8>, array: &Array<'_>) -> Result<()> {
        let same = |known: &&KnownHeaders| {
            known.shape[..] == *array.shape
                && known.dtype[..] == *array.dtype.as_bytes()
                && (known.code, known.itemsize) == (array.code, array.itemsize)
        };
        if let Some(known) = self.known.iter().find(same) {
            out.extend_from_within(known.place.clone());
            return Ok(());
        }
        let start = out.len();
        write_ext(out, array)?;
        let headers = KnownHeaders {
            code: array.code,
            itemsize: array.itemsize,
            shape: SmallVec::from_slice(array.shape),
            dtype: SmallVec::from_slice(array.dtype.as_bytes()),
            place: start..out.len(),
        };
        if self.known.len() < Self::COUNT {
            self.known.push(headers);
        } else {
            self.known[self.oldest] = headers;
            self.oldest = (self.oldest + 1) % Self::COUNT;
        }
        Ok(())
    }
}
