//! Locates arrays in a source and reads boxes of them.

use std::collections::HashMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use super::Catalog;
use super::check::OTHER_LEAF;
use crate::base::raw::Uninit;
use crate::base::source::{Pieces, Source, SourcePieces};
use crate::elements::{Bounds, Runs};
use crate::format::array::resolve;
use crate::format::events::{ArrayEvent, Event, Events};
use crate::format::index::{LeafKind, is_shape};
use crate::{Error, Result, base::grow};

/// Across a larger gap, a second disk request is faster.
const NEAR_BYTES: usize = 32 << 10;

const KEY_DTYPE: &str = "uint32";

#[derive(Debug)]
pub struct ArrayPlace {
    shape: SmallVec<[usize; 6]>,
    parts: Pieces,
}

impl ArrayPlace {
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The ranges of its bytes in order: one, or one per chunk.
    pub fn parts(&self) -> &[Range<usize>] {
        self.parts.as_slice()
    }

    pub fn nbytes(&self) -> usize {
        self.parts.len()
    }

    pub fn itemsize(&self) -> usize {
        self.nbytes() / self.shape.iter().product::<usize>().max(1)
    }

    pub(crate) fn pieces(&self, range: Range<usize>) -> Result<Pieces> {
        Pieces::new(grow::collect(self.parts.of(range))?)
    }

    /// The runs of a box in memory with these strides, or contiguous memory. `None` if the box
    /// exceeds the array or elements would overlap.
    pub fn runs(&self, bounds: &[Bounds], strides: Option<&[usize]>) -> Option<Runs> {
        let itemsize = self.itemsize();
        match strides {
            Some(strides) => Runs::new(&self.shape, itemsize, bounds, strides),
            None => Runs::compact(&self.shape, itemsize, bounds),
        }
    }

    pub fn ranges(&self, runs: &Runs) -> Result<Vec<Range<usize>>> {
        let ranges = runs.ranges(NEAR_BYTES)?.into_iter();
        grow::collect(ranges.flat_map(|range| self.parts.of(range)))
    }

    /// # Panics
    /// If the memory is smaller than the runs' extent.
    pub fn read_runs(
        &self,
        source: &dyn Source,
        runs: &Runs,
        target: &mut Uninit,
        threads: NonZero<usize>,
        check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let parts = &self.parts;
        runs.read(&SourcePieces { source, parts }, target, threads, check)
    }
}

/// Returns the array, the NumPy scalar or the data of the PRNG key that a leaf of this kind is.
fn array_in<'a>(events: &'a Events, kind: &LeafKind) -> Option<ArrayEvent<'a>> {
    match (events.as_slice(), kind) {
        (&[Event::Array(number)], LeafKind::Array(..))
        | (&[Event::Scalar(number)], LeafKind::Scalar(_))
        | (&[Event::PrngKey(_), .., Event::Array(number)], LeafKind::PrngKey(..)) => {
            Some(events.array(number))
        }
        _ => None,
    }
}

impl Catalog {
    /// Finds an array leaf, or a PRNG key's data, and checks it against the catalog.
    ///
    /// # Panics
    /// If the value is not a leaf.
    pub fn array(&self, source: &dyn Source, value: usize) -> Result<ArrayPlace> {
        self.array_of(source, value, |array| array.itemsize())
    }

    fn array_of(
        &self,
        source: &dyn Source,
        value: usize,
        itemsize_of: impl FnOnce(ArrayEvent<'_>) -> Option<usize>,
    ) -> Result<ArrayPlace> {
        let events = self.events_of(source, value)?;
        let leaf = self.leaf(value).expect("the value is a leaf");
        let event = array_in(&events, self.kind(leaf));
        let (Some(event), Some((dtype, expected))) = (event, self.dtype_and_shape(leaf)) else {
            return Err(self.is_another(value));
        };
        let shape = Some(event)
            .filter(|event| event.dtype == dtype.as_bytes())
            .and_then(itemsize_of)
            .and_then(|itemsize| resolve(event.dims, event.nbytes(), itemsize, event.offset).ok())
            .filter(|shape| is_shape(shape, expected))
            .ok_or_else(|| self.is_another(value))?;
        let parts = grow::collect(event.spans.iter().map(|span| span.range()))?;
        let parts = Pieces::new(parts)?;
        Ok(ArrayPlace { shape, parts })
    }

    pub fn dtype_and_shape(&self, leaf: usize) -> Option<(&str, &[u64])> {
        match self.kind(leaf) {
            LeafKind::Array(dtype, shape) => Some((dtype, shape)),
            LeafKind::PrngKey(_, shape) => Some((KEY_DTYPE, shape)),
            _ => None,
        }
    }

    fn is_another(&self, value: usize) -> Error {
        Error::at(self.path_of(value), Error::Structure(OTHER_LEAF.into()))
    }
}

/// Caches the positions of arrays with many chunks, which are slow to find.
///
/// Threads that find the lock held, and forked processes, skip the cache.
#[derive(Debug, Default)]
pub struct FoundArrays(Mutex<Chunked>);

#[derive(Debug, Default)]
struct Chunked {
    known: HashMap<usize, Arc<ArrayPlace>>,
    chunks: usize,
}

impl FoundArrays {
    /// A single array may have more.
    const MOST: usize = 1 << 20;

    pub fn known(&self, value: usize) -> Option<Arc<ArrayPlace>> {
        self.0.try_lock().ok()?.known.get(&value).cloned()
    }

    /// [`Catalog::array`] through the cache. An unknown dtype has no element size.
    pub fn find(
        &self,
        catalog: &Catalog,
        source: &dyn Source,
        value: usize,
        itemsize: Option<usize>,
    ) -> Result<Arc<ArrayPlace>> {
        let array = Arc::new(catalog.array_of(source, value, |_| itemsize)?);
        let chunks = array.parts().len();
        if chunks > 1
            && let Ok(mut chunked) = self.0.try_lock()
        {
            if chunked.chunks + chunks > Self::MOST {
                *chunked = Chunked::default();
            }
            chunked.known.try_reserve(1)?;
            if chunked.known.insert(value, array.clone()).is_none() {
                chunked.chunks += chunks;
            }
        }
        Ok(array)
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // bytes may repeat
mod tests {
    use super::*;
    use crate::base::raw::append_with;
    use crate::format::array::{Alignment, Array, ChunkLimit, Framing};
    use crate::format::encoder::Encoder;
    use crate::format::layout::Caching;
    use crate::format::structure::Kind;
    use crate::format::wire::{EXT_NDARRAY, Head};

    const SHAPE: [usize; 3] = [4, 5, 6];

    fn bytes() -> Vec<u8> {
        (0..2 * SHAPE.iter().product::<usize>())
            .map(|at| at as u8)
            .collect()
    }

    fn source(is_indexed: bool, chunk: f64) -> Vec<u8> {
        let framing = Framing {
            align: Alignment::new(64).unwrap(),
            chunks: ChunkLimit::new(chunk),
            may_box: true,
        };
        let mut encoder = if is_indexed {
            Encoder::<Vec<u8>>::indexed(framing, false)
        } else {
            Encoder::new(framing)
        };
        let array = |shape, dtype, itemsize| Array {
            code: EXT_NDARRAY,
            shape,
            dtype,
            itemsize,
        };
        encoder.map(3).unwrap();
        encoder.key("w").unwrap();
        let data = bytes();
        let w = array(&SHAPE, "int16", 2);
        encoder
            .array(&w, Kind::Plain, |out, range| out.push(data[range].to_vec()))
            .unwrap();
        encoder.key("key").unwrap();
        encoder.prng_key("fry").unwrap();
        let data = array(&[2], KEY_DTYPE, 4);
        encoder
            .array(&data, Kind::Plain, |out, range| {
                out.push(vec![1; range.len()])
            })
            .unwrap();
        encoder.end(Kind::Dict).unwrap();
        encoder.key("step").unwrap();
        encoder.plain(Head::Int(7)).unwrap();
        encoder.end(Kind::Dict).unwrap();
        let layout = encoder.finish(None).unwrap();
        let mut source = Vec::new();
        append_with(&mut source, layout.len(), |target| {
            layout.copy_to(0, target, Caching::Usual)
        })
        .unwrap();
        source
    }

    #[test]
    fn boxes_are_read_wherever_their_bytes_are() {
        for (is_indexed, chunk) in [(false, 1e9), (true, 1e9), (false, 28.0), (true, 28.0)] {
            let source = source(is_indexed, chunk);
            let catalog = Catalog::open(&source, false, &()).unwrap();
            let value = catalog.find(0, ["w"], &()).unwrap().unwrap();
            let w = catalog.array(&source, value).unwrap();
            assert_eq!(w.shape(), SHAPE);
            assert_eq!(w.nbytes(), 240);
            assert_eq!(w.parts().len(), if chunk < 1e9 { 9 } else { 1 });
            let bounds = |start, count, step| Bounds { start, count, step };
            let box_of = [bounds(1, 2, 2), bounds(0, 3, 2), bounds(2, 3, 1)];
            let mut expected = Vec::new();
            for (a, b, c) in [1, 3].into_iter().flat_map(|a| {
                [0, 2, 4]
                    .into_iter()
                    .flat_map(move |b| (2..5).map(move |c| (a, b, c)))
            }) {
                let at = 2 * ((a * SHAPE[1] + b) * SHAPE[2] + c);
                expected.extend([at as u8, at as u8 + 1]);
            }
            let read = |bounds: &[Bounds]| {
                let ranges = w.runs(bounds, None)?.ranges(0).unwrap().into_iter();
                let parts = ranges.flat_map(|range| w.parts.of(range).collect::<Vec<_>>());
                Some(
                    parts
                        .flat_map(|part| &source[part])
                        .copied()
                        .collect::<Vec<u8>>(),
                )
            };
            assert_eq!(read(&box_of), Some(expected));
            assert_eq!(read(&SHAPE.map(|count| bounds(0, count, 1))), Some(bytes()));
            assert_eq!(read(&SHAPE.map(|len| bounds(len, 0, 1))), Some(vec![]));
            assert_eq!(read(&SHAPE.map(|len| bounds(len, 1, 1))), None);
            assert_eq!(read(&[]), None);
            let runs = w.runs(&box_of, None).unwrap();
            let ranges = w.ranges(&runs).unwrap();
            assert!(ranges.len() <= w.parts().len());
        }
    }

    #[test]
    fn the_data_of_keys_are_arrays_and_numbers_are_none() {
        for is_indexed in [false, true] {
            let source = source(is_indexed, 1e9);
            let catalog = Catalog::open(&source, false, &()).unwrap();
            let find = |key| catalog.find(0, [key], &()).unwrap().unwrap();
            let key = catalog.array(&source, find("key")).unwrap();
            assert_eq!((key.shape(), key.nbytes()), (&[2][..], 8));
            let error = catalog.array(&source, find("step")).unwrap_err();
            assert!(error.to_string().ends_with("(at step)"), "{error}");
        }
    }

    #[test]
    fn arrays_in_chunks_are_known_once_they_are_found() {
        for (chunk, is_known) in [(1e9, false), (28.0, true)] {
            let source = source(true, chunk);
            let catalog = Catalog::open(&source, false, &()).unwrap();
            let value = catalog.find(0, ["w"], &()).unwrap().unwrap();
            let cache = FoundArrays::default();
            assert!(cache.known(value).is_none());
            let itemsize = |itemsize| cache.find(&catalog, &source, value, itemsize);
            assert!(itemsize(None).is_err());
            assert!(itemsize(Some(4)).is_err());
            {
                let _held = cache.0.lock().unwrap();
                assert_eq!(itemsize(Some(2)).unwrap().shape(), SHAPE);
                assert!(cache.known(value).is_none());
            }
            assert_eq!(itemsize(Some(2)).unwrap().shape(), SHAPE);
            assert_eq!(cache.known(value).is_some(), is_known);
        }
    }
}
