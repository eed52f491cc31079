//! Caches headers of recent arrays.

use std::ops::Range;

use smallvec::SmallVec;

use super::headers::{Array, write_ext};
use crate::base::raw::Buffer;
use crate::format::wire::Head;
use crate::{Result, base::grow};

/// Headers of recent small arrays: copying them is cheaper than writing them.
#[derive(Debug, Default)]
pub struct RecentHeaders {
    /// A ring: entry `n` is at `n % COUNT`.
    entries: Vec<KnownHeaders>,
    added: usize,
    last: Option<Like>,
}

#[derive(Debug, Clone)]
pub(crate) enum Like {
    Same(Range<usize>),
    /// The array's entry; its headers depend on their offset.
    Aligned(usize),
}

#[derive(Debug)]
struct KnownHeaders {
    number: usize,
    code: i8,
    itemsize: usize,
    shape: SmallVec<[usize; 4]>,
    dtype: SmallVec<[u8; 16]>,
    place: Option<Range<usize>>,
    /// Aligned headers by [`RecentPlace`], with the width of the preceding key's header; initially
    /// empty.
    aligned: Vec<Option<(usize, Range<usize>)>>,
}

/// Determines aligned headers: their offset, and the possible widths of the preceding key.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecentPlace(Option<usize>);

impl RecentPlace {
    /// Offsets up to the largest alignment, with or without a short key, with or without chunks.
    const COUNT: usize = 64 * 2 * 2;

    /// Longer keys have wider headers, and are rare.
    pub const SHORT: usize = 31;

    pub fn of(offset: usize, key: Option<usize>, may_box: bool) -> Self {
        let len = key.unwrap_or(0);
        let number = ((offset + len) % 64) << 2 | usize::from(key.is_some()) << 1;
        Self((len <= Self::SHORT).then_some(number | usize::from(may_box)))
    }
}

impl KnownHeaders {
    #[inline]
    fn aligned_at(&self, place: RecentPlace) -> Option<(usize, Range<usize>)> {
        self.aligned.get(place.0?)?.clone()
    }
}

impl RecentHeaders {
    const COUNT: usize = 4;

    pub(super) fn write(&mut self, out: &mut Buffer, array: &Array<'_>) -> Result<()> {
        let existing = self.find(array);
        if let Some(place) = existing.and_then(|index| self.entries[index].place.clone()) {
            self.last = Some(Like::Same(place.clone()));
            out.extend_from_within(place);
            return Ok(());
        }
        let start = out.len();
        write_ext(out, array)?;
        let index = existing.unwrap_or_else(|| self.add(array));
        self.entries[index].place = Some(start..out.len());
        self.last = Some(Like::Same(start..out.len()));
        Ok(())
    }

    pub(crate) fn last(&self) -> Option<Like> {
        self.last.clone()
    }

    /// The headers of an array like a recent one, and the width of its key's header, if known for
    /// this offset and key length.
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
                let entry = &self.entries[number % Self::COUNT];
                let place = RecentPlace::of(offset, key, may_box);
                (entry.number == *number).then(|| entry.aligned_at(place))?
            }
        }
    }

    pub(super) fn begin(&mut self) {
        self.last = None;
    }

    pub(super) fn aligned(
        &mut self,
        array: &Array<'_>,
        place: RecentPlace,
    ) -> Option<(usize, Range<usize>)> {
        let index = self.find(array)?;
        self.last = Some(Like::Aligned(self.entries[index].number));
        self.entries[index].aligned_at(place)
    }

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
        let aligned = &mut self.entries[index].aligned;
        if aligned.is_empty() {
            *aligned = grow::filled(None, RecentPlace::COUNT)?;
        }
        aligned[number] = Some((width, headers));
        Ok(())
    }

    fn find(&self, array: &Array<'_>) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.shape[..] == *array.shape
                && entry.dtype[..] == *array.dtype.as_bytes()
                && (entry.code, entry.itemsize) == (array.code, array.itemsize)
        })
    }

    fn add(&mut self, array: &Array<'_>) -> usize {
        let number = self.added;
        self.added += 1;
        let entry = KnownHeaders {
            number,
            code: array.code,
            itemsize: array.itemsize,
            shape: SmallVec::from_slice(array.shape),
            dtype: SmallVec::from_slice(array.dtype.as_bytes()),
            place: None,
            aligned: Vec::new(),
        };
        if self.entries.len() < Self::COUNT {
            self.entries.push(entry);
            return self.entries.len() - 1;
        }
        let index = number % Self::COUNT;
        self.entries[index] = entry;
        index
    }
}
