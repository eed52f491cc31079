//! Sources of encoded bytes: memory, files, and gzip streams with an index.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

use crate::base::raw::{Filling, RawBytes, Uninit, append_with};
use crate::{Error, Result, base::grow};

/// Encoded bytes that can be read in any order.
///
/// Readers copy what they parse, and read large payloads only on demand.
pub trait Source: Sync {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `target` from `offset` on, and returns it. All of these bytes must exist.
    fn read_at<'t>(&self, offset: usize, target: &'t mut [MaybeUninit<u8>])
    -> Result<&'t mut [u8]>;

    /// The number of bytes readable from `offset` on: all, unless some are missing.
    fn run(&self, offset: usize) -> usize {
        self.len() - offset
    }

    fn present(&self, range: Range<usize>) -> usize {
        range.len()
    }

    /// The number of bytes from `offset` on before an array that another program stores.
    fn at_hand(&self, offset: usize) -> usize {
        self.len() - offset
    }

    /// The range of a file that holds a range of the bytes: of gzip, whole blocks.
    fn stored(&self, range: Range<usize>) -> Range<usize> {
        range
    }

    /// Damage that reading any part does not find.
    fn damage(&self) -> Option<&'static str> {
        None
    }

    /// The phase of elements of up to eight bytes in a range, by the array with the largest share.
    fn phase(&self, _range: Range<usize>) -> usize {
        0
    }

    /// Gaps below this size are read, too, when that costs less than another read.
    fn near(&self) -> usize {
        usize::MAX
    }

    /// All bytes, if they are in memory with cheap random access.
    fn memory(&self) -> Option<RawBytes<'_>> {
        self.stable().map(RawBytes::from)
    }

    /// All bytes, if they are in immutable memory.
    fn stable(&self) -> Option<&[u8]> {
        None
    }
}

impl Source for RawBytes<'_> {
    fn len(&self) -> usize {
        RawBytes::len(*self)
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        Ok(self.slice(offset..offset + target.len()).copy_to(target))
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(*self)
    }
}

/// The methods of a source that reads another in the same places.
macro_rules! as_inner {
    ($self:ident, $inner:expr) => {
        fn run(&$self, offset: usize) -> usize {
            $inner.run(offset)
        }

        fn present(&$self, range: std::ops::Range<usize>) -> usize {
            $inner.present(range)
        }

        fn at_hand(&$self, offset: usize) -> usize {
            $inner.at_hand(offset)
        }

        fn near(&$self) -> usize {
            $inner.near()
        }
    };
}
pub(crate) use as_inner;

macro_rules! behind {
    ($($pointer:ty: $($bound:ident)+,)*) => {$(
        impl<S: $($bound +)+ ?Sized> Source for $pointer {
            fn len(&self) -> usize {
                (**self).len()
            }

            fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
                (**self).read_at(offset, target)
            }

            as_inner!(self, (**self));

            fn stored(&self, range: Range<usize>) -> Range<usize> {
                (**self).stored(range)
            }

            fn phase(&self, range: Range<usize>) -> usize {
                (**self).phase(range)
            }

            fn damage(&self) -> Option<&'static str> {
                (**self).damage()
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

macro_rules! in_memory {
    ($($owner:ty: $slice:ident,)*) => {$(
        impl Source for $owner {
            fn len(&self) -> usize {
                self.$slice().len()
            }

            fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
                Ok(target.write_copy_of_slice(&self.$slice()[offset..offset + target.len()]))
            }

            fn stable(&self) -> Option<&[u8]> {
                Some(self.$slice())
            }
        }
    )*};
}
pub(crate) use in_memory;

in_memory!(Vec<u8>: as_slice,);

#[derive(Debug, Clone, Default)]
pub struct Pieces {
    parts: Vec<Range<usize>>,
    ends: Vec<usize>,
}

impl Pieces {
    pub fn new(parts: Vec<Range<usize>>) -> Result<Self> {
        let mut end = 0;
        let ends = parts.iter().map(|part| {
            end += part.len();
            end
        });
        let ends = grow::collect(ends)?;
        Ok(Self { parts, ends })
    }

    pub fn as_slice(&self) -> &[Range<usize>] {
        &self.parts
    }

    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The source ranges of a range of the sequence, none empty. Finds the first by binary search.
    pub fn of(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let first = self.ends.partition_point(|end| *end <= range.start);
        let parts = self.parts[first..].iter().zip(&self.ends[first..]);
        let within = parts.map_while(move |(part, end)| {
            let begin = end - part.len();
            (begin < range.end).then(|| {
                let from = part.start + range.start.saturating_sub(begin);
                from..part.end - end.saturating_sub(range.end)
            })
        });
        within.filter(|part| !part.is_empty())
    }
}

pub type SharedSource = Arc<dyn Source + Send + Sync>;

pub struct SourcePieces<'a> {
    pub source: &'a dyn Source,
    pub parts: &'a Pieces,
}

impl Source for SourcePieces<'_> {
    fn len(&self) -> usize {
        self.parts.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let range = offset..offset + target.len();
        let mut filling = Filling::new(target);
        for part in self.parts.of(range) {
            filling.fill(part.len(), |now| self.source.read_at(part.start, now))?;
        }
        assert!(filling.left() == 0, "there are as many bytes");
        Ok(filling.finish())
    }

    fn near(&self) -> usize {
        self.source.near()
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        match self.parts.as_slice() {
            [part] => Some(self.source.memory()?.slice(part.clone())),
            _ => None,
        }
    }

    fn stable(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [part] => self.source.stable()?.get(part.clone()),
            _ => None,
        }
    }
}

pub fn missing(offset: usize) -> Error {
    Error::malformed(
        offset,
        "the manifest or patch is damaged: bytes outside of arrays are missing",
    )
}

pub fn bytes_of(source: &dyn Source, range: Range<usize>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_to(source, range, &mut bytes)?;
    Ok(bytes)
}

pub fn read_to(source: &dyn Source, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
    let run = source.run(range.start);
    if run < range.len() {
        return Err(missing(range.start + run)); // before there is memory for it
    }
    append_with(out, range.len(), |target| {
        source.read_at(range.start, target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_parts_is_in_those_that_it_needs() {
        let pieces = Pieces::new(vec![10..13, 20..20, 30..31, 5..9]).unwrap();
        assert_eq!(pieces.len(), 8);
        let whole: Vec<usize> = pieces.as_slice().iter().cloned().flatten().collect();
        for start in 0..=8 {
            for end in start..=8 {
                let parts: Vec<_> = pieces.of(start..end).collect();
                assert!(parts.iter().all(|part| !part.is_empty()));
                assert!(
                    parts
                        .into_iter()
                        .flatten()
                        .eq(whole[start..end].iter().copied())
                );
            }
        }
        assert_eq!(Pieces::default().of(0..0).count(), 0);
    }
}
