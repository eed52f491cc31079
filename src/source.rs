//! Where encoded bytes are read from: memory, a file, or a gzip stream with an index.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use crate::raw::{Filling, RawBytes, append_with};
use crate::{Error, Result};

/// Encoded bytes that can be read in any order.
///
/// A reader copies what it parses. Large payloads are not read at all until somebody asks.
pub trait Source: Sync {
    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `target` with the bytes from `offset` on, all of which must be there, and returns it.
    fn read_at<'t>(&self, offset: usize, target: &'t mut [MaybeUninit<u8>])
    -> Result<&'t mut [u8]>;

    /// How many bytes from `offset` on can be read at once: all, unless some are not there.
    fn run(&self, offset: usize) -> usize {
        self.len() - offset
    }

    /// How many bytes of a range are there.
    fn present(&self, range: Range<usize>) -> usize {
        range.len()
    }

    /// Of bytes that lie less than this apart, those between are read as well, which costs less
    /// than one more read.
    fn near(&self) -> usize {
        usize::MAX
    }

    /// All bytes, if they lie in memory where looking at a few costs nothing.
    fn memory(&self) -> Option<RawBytes<'_>> {
        self.stable().map(RawBytes::from)
    }

    /// All bytes, if they lie in memory that nobody changes.
    fn stable(&self) -> Option<&[u8]> {
        None
    }
}

impl Source for RawBytes<'_> {
    fn len(&self) -> usize {
        RawBytes::len(*self)
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        Ok(self.slice(offset..offset + target.len()).copy_to(target))
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(*self)
    }
}

/// What points to a source is one.
macro_rules! behind {
    ($($pointer:ty: $($bound:ident)+,)*) => {$(
        impl<S: $($bound +)+ ?Sized> Source for $pointer {
            fn len(&self) -> usize {
                (**self).len()
            }

            fn read_at<'t>(&self, offset: usize, target: &'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]> {
                (**self).read_at(offset, target)
            }

            fn run(&self, offset: usize) -> usize {
                (**self).run(offset)
            }

            fn present(&self, range: Range<usize>) -> usize {
                (**self).present(range)
            }

            fn near(&self) -> usize {
                (**self).near()
            }

            fn memory(&self) -> Option<RawBytes<'_>> {
                (**self).memory()
            }

            fn stable(&self) -> Option<&[u8]> {
                (**self).stable()
            }
        }
    )*};
}
behind!(&S: Source, Arc<S>: Source Send,);

impl Source for Vec<u8> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        Ok(target.write_copy_of_slice(&self[offset..offset + target.len()]))
    }

    fn stable(&self) -> Option<&[u8]> {
        Some(self)
    }
}

/// Parts of a source, one after the other.
pub struct Parts<'a> {
    /// What they are parts of.
    pub source: &'a dyn Source,
    /// Where they are in it.
    pub parts: &'a [Range<usize>],
}

impl Source for Parts<'_> {
    fn len(&self) -> usize {
        self.parts.iter().map(Range::len).sum()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        let mut filling = Filling::new(target);
        let mut skipped = offset;
        for part in self.parts {
            let from = skipped.min(part.len());
            skipped -= from;
            let len = (part.len() - from).min(filling.left());
            if len > 0 {
                filling.fill(len, |now| self.source.read_at(part.start + from, now))?;
            }
        }
        assert!(filling.left() == 0, "there are as many bytes");
        Ok(filling.finish())
    }

    fn near(&self) -> usize {
        self.source.near()
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        match self.parts {
            [part] => Some(self.source.memory()?.slice(part.clone())),
            _ => None,
        }
    }
}

/// What is wrong where something else than the bytes of an array would lie in a hole.
#[must_use]
pub fn missing(offset: usize) -> Error {
    Error::malformed(
        offset,
        "bytes are missing that are not those of an array: the manifest is damaged",
    )
}

/// Appends a range of a source to `out`.
pub fn read_to(source: &dyn Source, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
    let run = source.run(range.start);
    if run < range.len() {
        return Err(missing(range.start + run)); // before there is memory for it
    }
    append_with(out, range.len(), |target| {
        source.read_at(range.start, target)
    })
}
