//! Boxes of sharded arrays: which files have them, where in those, and reading them.
//!
//! ```text
//! array, box ──▶ the files that are needed ──opened──▶ each part: its shard, its leaf, its runs
//! ```
//!
//! A box takes no memory for its parts: whoever goes through them finds them again.

use std::mem::MaybeUninit;
use std::num::NonZero;
use std::sync::Arc;

use crate::array::{Bounds, Halves, Runs, ShardGrid, ShardPart, ShardParts};
use crate::catalog::{ArrayPlace, Catalog, FoundArrays};
use crate::manifest::FileNumbers;
use crate::source::Source;
use crate::structure::LeafKind;
use crate::watch::Watch;
use crate::{Error, Result, grow};

/// After so many shards the caller is asked whether to go on.
const CHECK_SHARDS: usize = 1 << 10;

/// An array whose shards are in several files.
#[derive(Debug)]
pub struct ShardedArray {
    grid: ShardGrid,
    files: FileNumbers,
    keys: Vec<String>,
    is_host: bool,
    kind: LeafKind,
    itemsize: usize,
    shard_bytes: usize,
}

/// A file of a sharded checkpoint that is open.
#[derive(Clone, Copy)]
pub struct OpenFile<'a> {
    /// Its number in the manifest.
    pub number: u32,
    /// Its leaves.
    pub catalog: &'a Catalog,
    /// Its bytes.
    pub source: &'a dyn Source,
    /// Its arrays in chunks, as far as they have been found.
    pub arrays: &'a FoundArrays,
}

/// What went wrong with a file.
#[derive(Debug)]
pub struct Failed {
    /// The place of the file among those that were given, unless it is not about one.
    pub file: Option<usize>,
    /// The leaf.
    pub value: Option<usize>,
    /// What it was.
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
    /// The array below some keys, whose shards are in the files with these numbers; those of the host
    /// are not below a key of their own. `None` if there are fewer files than shards.
    pub fn new(
        grid: ShardGrid,
        files: FileNumbers,
        keys: Vec<String>,
        is_host: bool,
        dtype: String,
        itemsize: usize,
    ) -> Result<Option<Self>> {
        let shape = grow::collect(grid.shard_shape().map(|len| len as u64))?;
        let times = |bytes: usize, len: usize| bytes.checked_mul(len);
        let bytes = grid.shard_shape().try_fold(itemsize, times);
        let shard_bytes = bytes.ok_or(Error::OutOfMemory)?;
        Ok((files.len() == grid.len()).then_some(Self {
            grid,
            files,
            keys,
            is_host,
            kind: LeafKind::Array(dtype, shape),
            itemsize,
            shard_bytes,
        }))
    }

    /// How its shards lie.
    #[must_use]
    pub fn grid(&self) -> &ShardGrid {
        &self.grid
    }

    /// The number of the file of each shard.
    #[must_use]
    pub fn files(&self) -> &[u32] {
        &self.files
    }

    /// The leaf that a shard is in its file. `None` if the file has none as the manifest says.
    ///
    /// # Panics
    /// If there are fewer shards.
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

    /// What is below the keys in a file.
    fn around(&self, catalog: &Catalog, watch: &dyn Watch) -> Result<Option<usize>> {
        catalog.find(0, self.keys.iter().map(String::as_str), watch)
    }

    fn find_in(
        &self,
        shard: usize,
        catalog: &Catalog,
        around: usize,
        name: &mut String,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        let found = if self.is_host {
            Some(around)
        } else {
            self.grid.write_name(shard, name)?;
            catalog.find(around, [name.as_str()], watch)?
        };
        Ok(found.filter(|value| {
            catalog.leaf(*value).is_some_and(|leaf| {
                let place = catalog.place(leaf);
                *catalog.kind(leaf) == self.kind && place.end - place.start >= self.shard_bytes
            })
        }))
    }
}

/// A box of a sharded array.
#[derive(Debug)]
pub struct ShardBox {
    array: Arc<ShardedArray>,
    parts: ShardParts,
}

impl ShardBox {
    /// This box of an array. `None` if it has no such box.
    #[must_use]
    pub fn new(array: Arc<ShardedArray>, bounds: &[Bounds]) -> Option<Self> {
        let parts = array.grid.parts(bounds)?;
        Some(Self { array, parts })
    }

    /// How many shards have some of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The numbers of the files that it needs, ascending, and how many bytes of each.
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
            let count: usize = part.local.iter().map(|it| it.count).product();
            let needed = &mut needed[of_part(part) as usize];
            *needed = Some(needed.unwrap_or(0) + count * self.array.itemsize);
            Ok::<_, Error>(())
        })?;
        let needed = (0..).zip(needed);
        grow::collect(needed.filter_map(|(file, bytes)| Some((file, bytes?))))
    }

    /// The box in two, cut where a shard begins, if there are several.
    #[must_use]
    pub fn halves(&self) -> Option<Halves> {
        self.parts.halves()
    }

    /// The first shard that its file does not have as the manifest says.
    pub fn missing(
        &self,
        files: &[OpenFile<'_>],
        watch: &dyn Watch,
    ) -> std::result::Result<Option<usize>, Failed> {
        let mut missing = None;
        let done = self.each(files, watch, |_, value, part| {
            if value.is_none() {
                missing = Some(part.shard);
                return Err(Error::Stopped);
            }
            Ok(())
        });
        match missing {
            Some(shard) => Ok(Some(shard)),
            None => done.map(|()| None),
        }
    }

    /// Calls `found` with each part: the place of its file among those that are given, which have
    /// ascending numbers, the leaf that its shard is, and what of that, in the order of the shards.
    pub fn each(
        &self,
        files: &[OpenFile<'_>],
        watch: &dyn Watch,
        mut found: impl FnMut(usize, Option<usize>, &ShardPart) -> Result<()>,
    ) -> std::result::Result<(), Failed> {
        let array = &*self.array;
        // What is below the keys of the array, once somebody has looked.
        let mut around = grow::filled(None::<Option<usize>>, files.len())?;
        let mut name = String::new();
        let (mut at, mut until_check) = (0, CHECK_SHARDS);
        self.parts.each(|part| {
            until_check -= 1;
            if until_check == 0 {
                watch.check()?;
                until_check = CHECK_SHARDS;
            }
            let number = array.files[part.shard];
            if files.get(at).is_none_or(|file| file.number != number) {
                let place = files.binary_search_by_key(&number, |file| file.number);
                at = place.map_err(|_| Error::Structure("a file is not open".into()))?;
            }
            let (catalog, known) = (files[at].catalog, &mut around[at]);
            let mut value = None;
            let mut work = || {
                let around = match known {
                    Some(known) => *known,
                    None => *known.insert(array.around(catalog, watch)?),
                };
                if let Some(around) = around {
                    value = array.find_in(part.shard, catalog, around, &mut name, watch)?;
                }
                found(at, value, part)
            };
            work().map_err(|error| Failed {
                file: Some(at),
                value,
                error,
            })
        })
    }

    /// The array that a shard is, where it lies in its file.
    pub fn place(&self, file: &OpenFile<'_>, value: Option<usize>) -> Result<Arc<ArrayPlace>> {
        let value = value.ok_or_else(|| Error::Structure("a shard is not there".into()))?;
        if let Some(known) = file.arrays.known(value) {
            return Ok(known);
        }
        let itemsize = Some(self.array.itemsize);
        file.arrays.find(file.catalog, file.source, value, itemsize)
    }

    /// The runs of a part, for memory with these strides, and after how many bytes they begin there.
    pub fn runs(&self, part: &ShardPart, strides: &[usize]) -> Result<(usize, Runs)> {
        let runs = self.array.grid.runs(part, self.array.itemsize, strides);
        runs.ok_or_else(|| Error::Structure("the memory has no place for each element".into()))
    }

    /// Reads it to memory with these strides.
    pub fn read(
        &self,
        files: &[OpenFile<'_>],
        memory: &mut [MaybeUninit<u8>],
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
