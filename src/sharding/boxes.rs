//! Finds the files and parts of boxes of sharded arrays, and reads them.
//!
//! The parts of a box are computed each time, and take no memory.

use std::num::NonZero;
use std::sync::Arc;

use crate::base::raw::Uninit;
use crate::base::source::Source;
use crate::base::watch::{Steps, Watch};
use crate::catalog::{ArrayPlace, Catalog, FoundArrays};
use crate::elements::{Bounds, Runs, ShardGrid, ShardPart, ShardParts};
use crate::format::index::{LeafKind, is_shape};
use crate::sharding::manifest::Grid;
use crate::{Error, Result, base::grow};

#[derive(Debug)]
pub struct ShardedArray {
    pub grid: ShardGrid,
    pub files: Arc<Vec<u32>>,
    place: ManifestPlace,
    /// Whether its one shard has no key of its own.
    is_unnamed: bool,
    dtype: String,
    itemsize: usize,
}

/// An array: the manifest's catalog, and a leaf number. A copied key could be long, and above many
/// arrays.
pub type ManifestPlace = (Arc<Catalog>, usize);

#[derive(Clone, Copy)]
pub struct OpenFile<'a> {
    pub number: u32,
    pub catalog: &'a Catalog,
    pub source: &'a dyn Source,
    pub arrays: &'a FoundArrays,
}

#[derive(Debug)]
pub struct Failed {
    pub file: Option<usize>,
    pub value: Option<usize>,
    pub error: Error,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            file: None,
            value: None,
            error,
        }
    }
}

impl ShardedArray {
    /// An array of this shape that is divided as the manifest says. A host array in one shard has no
    /// key above it. `None` if the shards do not form a grid.
    pub fn new(
        division: &Grid,
        shape: &[usize],
        place: ManifestPlace,
        dtype: String,
        itemsize: usize,
    ) -> Result<Option<Self>> {
        let counts = division.counts.iter().map(|count| *count as usize);
        let is_unnamed = division.is_unnamed();
        let counts = if is_unnamed {
            vec![1; shape.len()]
        } else {
            counts.collect()
        };
        let grid = ShardGrid::new(shape, &counts);
        let Some(grid) = grid.filter(|grid| grid.len() == division.files.len()) else {
            return Ok(None);
        };
        let times = |bytes: usize, len: &usize| bytes.checked_mul(*len);
        shape
            .iter()
            .try_fold(itemsize, times)
            .ok_or(Error::OutOfMemory)?;
        Ok(Some(Self {
            grid,
            files: division.files.clone(),
            place,
            is_unnamed,
            dtype,
            itemsize,
        }))
    }

    /// The leaf of a shard in its file. `None` if the file does not match the manifest.
    ///
    /// # Panics
    /// If the shard does not exist.
    pub fn find(
        &self,
        shard: usize,
        catalog: &Catalog,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        match self.around(catalog, watch)? {
            Some(around) => self.find_in(shard, catalog, around, &mut String::new(), watch),
            None => Ok(None),
        }
    }

    fn around(&self, catalog: &Catalog, watch: &dyn Watch) -> Result<Option<usize>> {
        let (tree, value) = &self.place;
        catalog.find(0, tree.keys_to(*value)?, watch)
    }

    fn find_in(
        &self,
        shard: usize,
        catalog: &Catalog,
        around: usize,
        name: &mut String,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        let candidate = if self.is_unnamed {
            Some(around)
        } else {
            self.grid.write_name(shard, name)?;
            catalog.find(around, [name.as_str()], watch)?
        };
        let shape = self.grid.shape_of(shard);
        let nbytes = self.itemsize * shape.iter().product::<usize>();
        Ok(candidate.filter(|value| {
            catalog.leaf(*value).is_some_and(|leaf| {
                let place = catalog.place(leaf);
                let is_kind = match catalog.kind(leaf) {
                    LeafKind::Array(dtype, dims) => *dtype == self.dtype && is_shape(&shape, dims),
                    _ => false,
                };
                is_kind && place.end - place.start >= nbytes
            })
        }))
    }
}

#[derive(Debug)]
pub struct ShardBox {
    array: Arc<ShardedArray>,
    parts: ShardParts,
}

impl ShardBox {
    pub fn new(array: Arc<ShardedArray>, bounds: &[Bounds]) -> Option<Self> {
        let parts = array.grid.parts(bounds)?;
        Some(Self { array, parts })
    }

    pub fn len(&self) -> usize {
        self.parts.len()
    }

    pub fn files(&self) -> Result<Vec<(u32, usize)>> {
        let of_part = |part: &ShardPart| self.array.files[part.shard];
        let mut most = None;
        self.parts.each(|part| {
            most = most.max(Some(of_part(part)));
            Ok::<_, Error>(())
        })?;
        let Some(most) = most else {
            return Ok(Vec::new());
        };
        let mut needed = grow::filled(None::<usize>, most as usize + 1)?;
        self.parts.each(|part| {
            let count: usize = part.local.iter().map(|bound| bound.count).product();
            let needed = &mut needed[of_part(part) as usize];
            *needed = Some(needed.unwrap_or(0) + count * self.array.itemsize);
            Ok::<_, Error>(())
        })?;
        let needed = (0..).zip(needed);
        grow::collect(needed.filter_map(|(file, bytes)| Some((file, bytes?))))
    }

    /// The first shard whose file does not match the manifest.
    pub fn missing(
        &self,
        files: &[OpenFile<'_>],
        watch: &dyn Watch,
    ) -> std::result::Result<Option<usize>, Failed> {
        let mut missing = None;
        self.each(files, watch, |_, value, part| {
            if value.is_none() {
                missing.get_or_insert(part.shard);
            }
            Ok(())
        })?;
        Ok(missing)
    }

    /// Calls `visit` with each part in shard order: the index of its file in `files` (ascending
    /// numbers), the leaf of its shard, and the part.
    pub fn each(
        &self,
        files: &[OpenFile<'_>],
        watch: &dyn Watch,
        mut visit: impl FnMut(usize, Option<usize>, &ShardPart) -> Result<()>,
    ) -> std::result::Result<(), Failed> {
        let array = &*self.array;
        let mut around = grow::filled(None::<Option<usize>>, files.len())?;
        let mut name = String::new();
        let (mut at, mut steps) = (0, Steps::new(watch));
        self.parts.each(|part| {
            steps.count()?;
            let number = array.files[part.shard];
            if files.get(at).is_none_or(|file| file.number != number) {
                let place = files.binary_search_by_key(&number, |file| file.number);
                at = place.map_err(|_| Error::Structure("a file is not open".into()))?;
            }
            let (catalog, cached) = (files[at].catalog, &mut around[at]);
            let mut value = None;
            let mut work = || {
                let around = match cached {
                    Some(cached) => *cached,
                    None => *cached.insert(array.around(catalog, watch)?),
                };
                if let Some(around) = around {
                    value = array.find_in(part.shard, catalog, around, &mut name, watch)?;
                }
                visit(at, value, part)
            };
            work().map_err(|error| Failed {
                file: Some(at),
                value,
                error,
            })
        })
    }

    pub fn place(&self, file: &OpenFile<'_>, value: Option<usize>) -> Result<Arc<ArrayPlace>> {
        let value =
            value.ok_or_else(|| Error::Structure("a shard is missing from its file".into()))?;
        if let Some(place) = file.arrays.known(value) {
            return Ok(place);
        }
        let itemsize = Some(self.array.itemsize);
        file.arrays.find(file.catalog, file.source, value, itemsize)
    }

    pub fn runs(&self, part: &ShardPart, strides: &[usize]) -> Result<(usize, Runs)> {
        let runs = self.array.grid.runs(part, self.array.itemsize, strides);
        runs.ok_or_else(|| Error::Structure("elements would overlap in memory".into()))
    }

    pub fn read(
        &self,
        files: &[OpenFile<'_>],
        memory: &mut Uninit,
        strides: &[usize],
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> std::result::Result<(), Failed> {
        self.each(files, watch, |file, value, part| {
            let file = &files[file];
            let array = self.place(file, value)?;
            let (start, runs) = self.runs(part, strides)?;
            let memory = memory
                .get_mut(start..start.saturating_add(runs.extent()))
                .ok_or_else(|| Error::Structure("the memory is too small for the box".into()))?;
            array.read_runs(file.source, &runs, memory, threads, || watch.check())
        })
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // numbers may repeat
mod tests {
    use std::mem::MaybeUninit;

    use super::*;
    use crate::elements::grid::tests::{boxes, elements, indices};
    use crate::files::sink::append_blocks;
    use crate::format::array::{Alignment, Array, ChunkLimit, Framing};
    use crate::format::encoder::Encoder;
    use crate::format::structure::Kind;
    use crate::format::wire::{EXT_NDARRAY, Head};
    use proptest::prelude::*;

    const KEYS: [&str; 2] = ["params", "w"];

    fn bytes(elements: &[usize]) -> Vec<u8> {
        let bytes = elements.iter().map(|at| (*at as u16).to_le_bytes());
        bytes.flatten().collect()
    }

    fn file_of(grid: &ShardGrid, shape: &[usize], shards: &[usize], but: Option<usize>) -> Vec<u8> {
        let mut encoder = Encoder::<Vec<u8>>::indexed(
            Framing {
                align: Alignment::new(64).unwrap(),
                chunks: ChunkLimit::DEFAULT,
                may_box: true,
            },
            true,
        );
        let shards: Vec<_> = shards.iter().filter(|it| Some(**it) != but).collect();
        encoder.map(2).unwrap();
        encoder.key("other").unwrap();
        encoder.plain(Head::Uint(1)).unwrap();
        for (key, len) in KEYS.into_iter().zip([1, shards.len()]) {
            encoder.key(key).unwrap();
            encoder.map(len).unwrap();
        }
        for &shard in shards {
            let bounds = grid.bounds(shard).unwrap();
            let places: Vec<Vec<usize>> = bounds.into_iter().map(Iterator::collect).collect();
            let data = bytes(&elements(shape, &places));
            let array = Array {
                code: EXT_NDARRAY,
                shape: &grid.shape_of(shard),
                dtype: "uint16",
                itemsize: 2,
            };
            encoder.key(&grid.name(shard).unwrap().unwrap()).unwrap();
            encoder
                .array(&array, Kind::Plain, |out, range| {
                    out.push(data[range].to_vec())
                })
                .unwrap();
        }
        for _ in 0..3 {
            encoder.end(Kind::Dict).unwrap();
        }
        let layout = encoder.finish(None).unwrap();
        let mut file = Vec::new();
        append_blocks(&layout, NonZero::<usize>::MIN, &mut file, &()).unwrap();
        file
    }

    fn division(counts: &[usize], files: &[u32]) -> Grid {
        Grid {
            counts: counts.iter().map(|count| *count as u32).collect(),
            files: Arc::new(files.to_vec()),
            host: false,
        }
    }

    fn place(keys: &[&str]) -> ManifestPlace {
        let mut source = Vec::new();
        for key in keys {
            rmp::encode::write_map_len(&mut source, 1).unwrap();
            rmp::encode::write_str(&mut source, key).unwrap();
        }
        rmp::encode::write_nil(&mut source).unwrap();
        let catalog = Catalog::open(&source, false, &()).unwrap();
        (Arc::new(catalog), keys.len())
    }

    #[allow(unsafe_code)]
    fn read(
        grid: &ShardGrid,
        shape: &[usize],
        division: &Grid,
        bounds: &[Bounds],
        but: Option<usize>,
    ) -> std::result::Result<(Option<usize>, Vec<u8>), Failed> {
        let numbers = &division.files;
        let array = ShardedArray::new(division, shape, place(&KEYS), "uint16".into(), 2);
        let shard_box = ShardBox::new(Arc::new(array.unwrap().unwrap()), bounds).unwrap();
        let needed = shard_box.files().unwrap();
        let total: usize = bounds.iter().map(|bound| bound.count).product();
        assert_eq!(needed.iter().map(|file| file.1).sum::<usize>(), 2 * total);
        assert!(needed.is_sorted_by(|a, b| a.0 < b.0));
        let sources: Vec<Vec<u8>> = needed
            .iter()
            .map(|(number, _)| {
                let own = (0..grid.len()).filter(|shard| numbers[*shard] == *number);
                file_of(grid, shape, &own.collect::<Vec<_>>(), but)
            })
            .collect();
        let opened: Vec<_> = sources
            .iter()
            .map(|source| {
                let catalog = Catalog::open(source, false, &()).unwrap();
                (catalog, FoundArrays::default())
            })
            .collect();
        let files: Vec<OpenFile<'_>> = needed
            .iter()
            .zip(&sources)
            .zip(&opened)
            .map(|(((number, _), source), (catalog, arrays))| OpenFile {
                number: *number,
                catalog,
                source,
                arrays,
            })
            .collect();
        let mut strides = vec![2; bounds.len()];
        for dim in (1..bounds.len()).rev() {
            strides[dim - 1] = strides[dim] * bounds[dim].count.max(1);
        }
        let missing = shard_box.missing(&files, &())?;
        let mut memory = vec![MaybeUninit::new(0); 2 * total];
        let threads = NonZero::new(2).unwrap();
        shard_box.read(&files, &mut memory, &strides, threads, &())?;
        // SAFETY: all of it was zeroed before.
        Ok((missing, unsafe { memory.assume_init_ref() }.to_vec()))
    }

    proptest! {
        #[test]
        fn a_box_is_read_from_the_files_that_have_its_shards(
            (shape, counts, bounds) in boxes(),
            numbers in prop::collection::vec(0u32..5, 27),
        ) {
            let grid = ShardGrid::new(&shape, &counts).unwrap();
            let division = division(&counts, &numbers[..grid.len()]);
            let (missing, content) = read(&grid, &shape, &division, &bounds, None).unwrap();
            prop_assert_eq!(missing, None);
            prop_assert_eq!(content, bytes(&elements(&shape, &indices(&bounds))));
        }

        #[test]
        fn a_shard_that_its_file_lacks_is_named(
            (shape, counts, bounds) in boxes(),
            numbers in prop::collection::vec(0u32..5, 27),
            lacks in 0usize..27,
        ) {
            let grid = ShardGrid::new(&shape, &counts).unwrap();
            let lacks = lacks % grid.len();
            let division = division(&counts, &numbers[..grid.len()]);
            let mut is_needed = false;
            let parts = grid.parts(&bounds).unwrap();
            parts.each(|part| {
                is_needed |= part.shard == lacks;
                Ok::<_, ()>(())
            }).unwrap();
            match read(&grid, &shape, &division, &bounds, Some(lacks)) {
                Ok((missing, content)) => {
                    prop_assert!(!is_needed);
                    prop_assert_eq!(missing, None);
                    prop_assert_eq!(content, bytes(&elements(&shape, &indices(&bounds))));
                }
                Err(failed) => {
                    prop_assert!(is_needed);
                    prop_assert!(failed.error.to_string().contains("is missing from its file"), "{:?}", failed);
                    prop_assert!(failed.file.is_some());
                }
            }
        }
    }

    #[test]
    fn a_shard_of_another_kind_is_missing() {
        let grid = ShardGrid::new(&[4], &[2]).unwrap();
        let source = file_of(&grid, &[4], &[0, 1], None);
        let catalog = Catalog::open(&source, false, &()).unwrap();
        let find = |shape: &[usize], dtype: &str, itemsize, keys: &[&str]| {
            let division = division(&[2], &[0, 0]);
            let array = ShardedArray::new(&division, shape, place(keys), dtype.into(), itemsize);
            array.unwrap().unwrap().find(0, &catalog, &()).unwrap()
        };
        assert!(find(&[4], "uint16", 2, &KEYS).is_some());
        assert_eq!(find(&[4], "int16", 2, &KEYS), None);
        assert_eq!(find(&[4], "uint16", 100, &KEYS), None);
        assert_eq!(find(&[6], "uint16", 2, &KEYS), None);
        assert_eq!(find(&[4], "uint16", 2, &["params"]), None);
        assert_eq!(find(&[4], "uint16", 2, &["params", "v"]), None);
        for (shape, files) in [(4, &[0][..]), (1, &[0, 0])] {
            let division = division(&[2], files);
            let array = ShardedArray::new(&division, &[shape], place(&[]), "uint16".into(), 2);
            assert!(array.unwrap().is_none());
        }
    }
}
