//! Headers of arrays that were written last, to be copied.

use std::ops::Range;

use smallvec::SmallVec;

use super::headers::{Array, write_ext};
use crate::raw::Buffer;
use crate::wire::Head;
use crate::{Result, grow};

/// Headers of small arrays that stand in a layout: a tree has many arrays of few shapes,
/// and to copy their headers costs less than to make them again.
#[derive(Debug, Default)]
pub struct RecentHeaders {
    /// The last ones; that of number `n` stands at `n % COUNT`.
    known: Vec<KnownHeaders>,
    /// How many there have been.
    added: usize,
    /// Those of the last array, if they are known.
    last: Option<Like>,
}

/// Headers that an array like the last one has as well.
#[derive(Debug, Clone)]
pub(crate) enum Like {
    /// Those that stand there.
    Same(Range<usize>),
    /// Those of the array with this number, by where they are to stand.
    Aligned(usize),
}

#[derive(Debug)]
struct KnownHeaders {
    number: usize,
    code: i8,
    itemsize: usize,
    shape: SmallVec<[usize; 4]>,
    dtype: SmallVec<[u8; 16]>,
    /// Where they stand among the headers, at the smallest widths.
    place: Option<Range<usize>>,
    /// At the widths that align the array, by the number of a [`RecentPlace`]; empty until there
    /// is one. With the width of the header of the key before them.
    aligned: Vec<Option<(usize, Range<usize>)>>,
}

/// What the headers of an aligned array depend on, besides the array: where they stand, and which
/// widths the key before them can have.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecentPlace(Option<usize>);

impl RecentPlace {
    /// How many there are: offsets up to the largest alignment, without a key or with a short one,
    /// where the chunked form may be used or not.
    const COUNT: usize = 64 * 2 * 2;

    /// Keys of more bytes have headers of other widths, and are rare.
    pub const SHORT: usize = 31;

    /// The place of headers at an offset in the output, where the key, if any, of so many bytes begins.
    pub fn of(offset: usize, key: Option<usize>, may_box: bool) -> Self {
        let len = key.unwrap_or(0);
        let number = ((offset + len) % 64) << 2 | usize::from(key.is_some()) << 1;
        Self((len <= Self::SHORT).then_some(number | usize::from(may_box)))
    }
}

impl RecentHeaders {
    const COUNT: usize = 4;

    /// `ext(code, [shape, dtype, bin` at the smallest widths.
    pub(super) fn write(&mut self, out: &mut Buffer, array: &Array<'_>) -> Result<()> {
        let known = self.find(array);
        if let Some(place) = known.and_then(|index| self.known[index].place.clone()) {
            self.last = Some(Like::Same(place.clone()));
            out.extend_from_within(place);
            return Ok(());
        }
        let start = out.len();
        write_ext(out, array)?;
        let index = known.unwrap_or_else(|| self.add(array));
        self.known[index].place = Some(start..out.len());
        self.last = Some(Like::Same(start..out.len()));
        Ok(())
    }

    /// Those of the last array, if arrays like it can have them.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub(crate) fn last(&self) -> Option<Like> {
        self.last.clone()
    }

    /// Those of an array that is like one before, at an offset in the output where its key, if any, of
    /// so many bytes begins, and the width of the header of the key; if they are known.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    #[inline]
    pub(crate) fn like(
        &self,
        like: &Like,
        offset: usize,
        key: Option<usize>,
        may_box: bool,
    ) -> Option<(usize, Range<usize>)> {
        match like {
            Like::Same(range) => {
                let key = u32::try_from(key.unwrap_or(0)).ok()?;
                Some((Head::Str(key).width(), range.clone()))
            }
            Like::Aligned(number) => {
                let place = RecentPlace::of(offset, key, may_box);
                self.aligned_like(*number, place)
            }
        }
    }

    /// Another array comes.
    pub(super) fn begin(&mut self) {
        self.last = None;
    }

    /// Headers that align an array, and the width of the header of the key before them.
    pub(super) fn aligned(
        &mut self,
        array: &Array<'_>,
        place: RecentPlace,
    ) -> Option<(usize, Range<usize>)> {
        let index = self.find(array)?;
        self.last = Some(Like::Aligned(self.known[index].number));
        self.known[index].aligned.get(place.0?)?.clone()
    }

    /// The same for the array with this number.
    #[inline]
    fn aligned_like(&self, number: usize, place: RecentPlace) -> Option<(usize, Range<usize>)> {
        let known = &self.known[number % Self::COUNT];
        if known.number != number {
            return None; // others have taken its place
        }
        known.aligned.get(place.0?)?.clone()
    }

    /// Adds such headers, which stand in a range of the layout's.
    pub(super) fn add_aligned(
        &mut self,
        array: &Array<'_>,
        place: RecentPlace,
        width: usize,
        headers: Range<usize>,
    ) -> Result<()> {
        let Some(number) = place.0 else {
            return Ok(());
        };
        let index = self.find(array).unwrap_or_else(|| self.add(array));
        let aligned = &mut self.known[index].aligned;
        if aligned.is_empty() {
            *aligned = grow::filled(None, RecentPlace::COUNT)?;
        }
        aligned[number] = Some((width, headers));
        Ok(())
    }

    fn find(&self, array: &Array<'_>) -> Option<usize> {
        self.known.iter().position(|known| {
            known.shape[..] == *array.shape
                && known.dtype[..] == *array.dtype.as_bytes()
                && (known.code, known.itemsize) == (array.code, array.itemsize)
        })
    }

    /// Adds an array, of which no headers are known; returns where.
    fn add(&mut self, array: &Array<'_>) -> usize {
        let number = self.added;
        self.added += 1;
        let known = KnownHeaders {
            number,
            code: array.code,
            itemsize: array.itemsize,
            shape: SmallVec::from_slice(array.shape),
            dtype: SmallVec::from_slice(array.dtype.as_bytes()),
            place: None,
            aligned: Vec::new(),
        };
        if self.known.len() < Self::COUNT {
            self.known.push(known);
            return self.known.len() - 1;
        }
        let index = number % Self::COUNT;
        self.known[index] = known;
        index
    }
}
