//! Lists the leaves of encoded data by path, without reading them.
//!
//! The leaves come from the index at the end of the file, or from one pass over all headers. Each
//! leaf is a range of the source.
//!
//! | file | content |
//! |---|---|
//! | `tables.rs` | hash tables of keys |
//! | `check.rs` | comparing leaves, and in `verify` all headers, with the index |
//! | `read.rs`, `scan.rs` | finding leaves by the index, by headers |
//! | `find.rs` | values by key |
//! | `arrays.rs` | positions of arrays, and boxes of them |
//! | `select.rs` | marking selected leaves |
//! | `fits.rs` | comparing the structure record with the tree |
//! | `statics.rs` | comparing static data |
//! | `apart.rs` | differences of typed values |
//! | `stream.rs` | leaves of streams |
//! | `verify.rs` | comparing all leaves with their checksums |
//! | `compared.rs` | comparing one leaf while it is copied |

mod apart;
mod arrays;
mod check;
mod compared;
mod find;
mod fits;
mod read;
mod scan;
mod select;
mod statics;
mod stream;
mod tables;
mod verify;

use std::ops::Range;

pub use arrays::{ArrayPlace, FoundArrays};
pub use compared::Compared;
pub use select::Marks;
pub use stream::{stream_item, stream_items};
pub use verify::{BLOCK_BYTES, Status};

use self::tables::Tables;
use crate::base::error::Path;
use crate::base::grow;
use crate::base::watch::Watch;
use crate::format::index::{Kinds, LeafKind};
use crate::{Error, Result};

type Key = (usize, usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafSpan {
    /// Start of the leaf's head: its key, and the headers of containers before it.
    pub region: usize,
    pub start: usize,
    pub end: usize,
    kind: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    /// Whether the key is a string; list elements only have indices.
    is_text: bool,
    is_list: bool,
    is_leaf: bool,
    len: u32,
    /// Number of leaves before it; for a leaf, its number.
    head: usize,
    /// The container around it; for the root, itself.
    parent: usize,
    /// The next entry outside.
    end: usize,
}

#[derive(Debug, Default)]
pub struct Catalog {
    entries: Vec<Entry>,
    text: String,
    leaves: Vec<LeafSpan>,
    kinds: Kinds,
    /// One per leaf, then one for the bytes after them.
    checksums: Vec<u32>,
    rest: Range<usize>,
    record_key: usize,
    record: Option<Vec<u8>>,
    pub damage: Option<Error>,
    /// Whether the leaves are those of the index.
    is_indexed: bool,
    tables: Tables,
}

impl Catalog {
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// The first is the root, unless nothing was readable.
    pub fn values(&self) -> usize {
        self.entries.len()
    }

    /// # Panics
    /// If there is no such value, here and below.
    pub fn key(&self, value: usize) -> &str {
        let (start, end) = self.entries[value].key;
        &self.text[start..end]
    }

    pub fn after(&self, value: usize) -> usize {
        self.entries[value].end
    }

    pub fn leaf(&self, value: usize) -> Option<usize> {
        let entry = &self.entries[value];
        entry.is_leaf.then_some(entry.head)
    }

    pub fn is_list(&self, value: usize) -> bool {
        self.entries[value].is_list
    }

    pub fn children(&self, value: usize) -> impl Iterator<Item = usize> {
        let end = self.entries[value].end;
        let first = Some(value + 1).filter(|first| *first < end);
        std::iter::successors(first, move |child| {
            Some(self.entries[*child].end).filter(|next| *next < end)
        })
    }

    /// Finds a value below another by its keys; of equal keys the last.
    ///
    /// The first lookup in a large container visits all of it and checks `watch`.
    pub fn find<'a>(
        &self,
        value: usize,
        keys: impl IntoIterator<Item = &'a str>,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        let mut entry = value;
        for key in keys {
            let Some(child) = self.child(entry, key, watch)? else {
                return Ok(None);
            };
            entry = child;
        }
        Ok(Some(entry))
    }

    /// Empty if out of memory.
    pub fn path_of(&self, value: usize) -> Path {
        self.path_below(0, value).unwrap_or_default()
    }

    pub fn path_below(&self, from: usize, value: usize) -> Result<Path> {
        let mut path = Path::default();
        for key in self.keys_up(from, value) {
            path.try_push_outer(key)?;
        }
        Ok(path)
    }

    pub fn keys_to(&self, value: usize) -> Result<Vec<&str>> {
        let mut keys = grow::collect(self.keys_up(0, value))?;
        keys.reverse();
        Ok(keys)
    }

    fn keys_up(&self, from: usize, value: usize) -> impl Iterator<Item = &str> {
        let within = move |at: usize| (at > from).then_some(at);
        let places =
            std::iter::successors(within(value), move |at| within(self.entries[*at].parent));
        places.map(|at| self.key(at))
    }

    pub fn is_end(&self, value: usize) -> bool {
        let entry = &self.entries[value];
        entry.is_leaf || entry.end == value + 1
    }

    fn places_in(&self, value: usize) -> impl Iterator<Item = LeafSpan> {
        let inside = &self.entries[value..self.entries[value].end];
        let leaves = inside.iter().filter(|entry| entry.is_leaf);
        leaves.map(|leaf| self.leaves[leaf.head])
    }

    pub fn totals(&self, value: usize) -> (usize, usize) {
        let places = self.places_in(value);
        places.fold((0, 0), |(count, bytes), place| {
            (count + 1, bytes + place.end - place.start)
        })
    }

    pub fn kinds_in(&self, value: usize) -> Result<Vec<(&LeafKind, usize, usize)>> {
        let places = self.places_in(value);
        let mut kinds = grow::collect(places.map(|at| (at.kind, 1, at.end - at.start)))?;
        kinds.sort_unstable_by_key(|(kind, ..)| *kind);
        kinds.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            if is_same {
                first.1 += 1;
                first.2 += next.2;
            }
            is_same
        });
        let named = kinds.into_iter();
        grow::collect(named.map(|(kind, count, bytes)| (&self.kinds.list[kind], count, bytes)))
    }

    /// # Panics
    /// If the leaf does not exist, here and below.
    pub fn place(&self, leaf: usize) -> LeafSpan {
        self.leaves[leaf]
    }

    pub fn kind(&self, leaf: usize) -> &LeafKind {
        &self.kinds.list[self.leaves[leaf].kind]
    }

    pub fn dtypes(&self) -> impl Iterator<Item = &str> {
        self.kinds.list.iter().filter_map(|kind| match kind {
            LeafKind::Array(dtype, _) | LeafKind::Scalar(dtype) => Some(dtype.as_str()),
            _ => None,
        })
    }

    pub fn is_summed(&self) -> bool {
        !self.checksums.is_empty()
    }

    /// The number of leaves with checksums, which are the first ones.
    pub fn summed(&self) -> usize {
        self.checksums.len().min(self.len())
    }

    pub fn record(&self) -> Option<&[u8]> {
        self.record.as_deref()
    }
}
