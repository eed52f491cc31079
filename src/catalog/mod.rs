//! The leaves of encoded data by their paths, without any of them being read.
//!
//! A file that was saved with an index tells them at its end. In all others the headers are read,
//! once. Either way a leaf is a range of the source, which can be read by itself.
//!
//! | file | what is there |
//! |---|---|
//! | `read.rs` | finding the leaves: of an index, or of the headers |
//! | `check.rs` | comparing an index with the headers, where it is used |
//! | `find.rs` | values by their keys |
//! | `arrays.rs` | where arrays are, and boxes of them |
//! | `select.rs` | marking the leaves that are meant |
//! | `fits.rs` | comparing the record of the structure with the tree |
//! | `stream.rs` | leaves of streams, one after the other |
//! | `verify.rs` | comparing leaves with their checksums |
//! | `compared.rs` | the same for one leaf, while it is copied |

mod arrays;
mod check;
mod compared;
mod find;
mod fits;
mod read;
mod select;
mod stream;
mod verify;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

pub use arrays::{ArrayPlace, FoundArrays};
pub use compared::Compared;
pub use select::Marks;
pub use stream::stream_items;
pub use verify::{BLOCK_BYTES, Status};

use self::check::{Checked, Window};
use self::find::Tables;
use crate::error::Path;
use crate::grow;
use crate::structure::LeafKind;
use crate::watch::Watch;
use crate::{Error, Result};

/// Where the key of a value is in the text.
type Key = (usize, usize);

/// Where a leaf is, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Where what belongs to it begins: the headers of containers, and its key.
    pub region: usize,
    /// Where its value begins.
    pub start: usize,
    /// Where its value ends.
    pub end: usize,
    kind: usize,
}

/// A value of the tree: a container, or a leaf.
#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    /// Whether the key is a string; elements of lists have none else.
    is_text: bool,
    is_list: bool,
    is_leaf: bool,
    /// How many values its header says that it has, if it is a container.
    len: u32,
    /// How many leaves there are before it: if it is one, its number.
    head: usize,
    /// The number of the container that it is in; of the root, its own.
    parent: usize,
    /// The number of the entry after this one and all in it.
    end: usize,
}

/// All leaves of a tree, and the containers around them.
#[derive(Debug, Default)]
pub struct Catalog {
    /// In the order of the data; the first is the root.
    entries: Vec<Entry>,
    text: String,
    leaves: Vec<Place>,
    kinds: Vec<LeafKind>,
    numbers: HashMap<LeafKind, usize>,
    /// Of the leaves, and of what comes after them.
    checksums: Vec<u32>,
    /// What lies between the last leaf and the record.
    rest: Range<usize>,
    /// Where the key of the record begins, as an index tells.
    record_key: usize,
    record: Option<Vec<u8>>,
    /// Which heads were compared with an index, and which leaves.
    checked: Checked,
    read: Checked,
    /// What was read last for that.
    window: Mutex<Window>,
    /// What ended the reading of damaged data.
    damage: Option<Error>,
    /// Whether leaves are read although the headers of the containers around them are damaged.
    is_salvage: bool,
    /// Of large containers, what is in them by their keys.
    tables: Tables,
}

impl Catalog {
    /// How many leaves there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// How many values there are; the first is the root, unless nothing could be read.
    #[must_use]
    pub fn values(&self) -> usize {
        self.entries.len()
    }

    /// The key of a value.
    ///
    /// # Panics
    /// If there are not as many, here and below.
    #[must_use]
    pub fn key(&self, value: usize) -> &str {
        let (start, end) = self.entries[value].key;
        &self.text[start..end]
    }

    /// The number of the value after a value and all that is in it.
    #[must_use]
    pub fn after(&self, value: usize) -> usize {
        self.entries[value].end
    }

    /// The number of the leaf that a value is, unless it is a container.
    #[must_use]
    pub fn leaf(&self, value: usize) -> Option<usize> {
        let entry = &self.entries[value];
        entry.is_leaf.then_some(entry.head)
    }

    /// Whether a value is a list, and not a map.
    ///
    /// # Panics
    /// If there are not as many values.
    #[must_use]
    pub fn is_list(&self, value: usize) -> bool {
        self.entries[value].is_list
    }

    /// The values in a container.
    pub fn children(&self, value: usize) -> impl Iterator<Item = usize> {
        let end = self.entries[value].end;
        let first = Some(value + 1).filter(|first| *first < end);
        std::iter::successors(first, move |child| {
            Some(self.entries[*child].end).filter(|next| *next < end)
        })
    }

    /// The value below another one that some keys lead to. Of equal keys the last counts.
    ///
    /// The first time that something is looked up in a large container takes as long as going
    /// through it once, and `watch` is asked meanwhile whether to go on.
    pub fn find<'a>(
        &self,
        value: usize,
        keys: impl IntoIterator<Item = &'a str>,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        let mut found = value;
        for key in keys {
            let Some(child) = self.child(found, key, watch)? else {
                return Ok(None);
            };
            found = child;
        }
        Ok(Some(found))
    }

    /// The keys that lead from the root to a value, for errors: none without memory for them.
    #[must_use]
    pub fn path_of(&self, value: usize) -> Path {
        self.path_below(0, value).unwrap_or_default()
    }

    /// The keys that lead from a value to one that is in it.
    pub fn path_below(&self, from: usize, value: usize) -> Result<Path> {
        let mut path = Path::default();
        for key in self.keys_up(from, value) {
            path.try_push_outer(key)?;
        }
        Ok(path)
    }

    /// The keys that lead from the root to a value.
    pub fn keys_to(&self, value: usize) -> Result<Vec<&str>> {
        let mut keys = grow::collect(self.keys_up(0, value))?;
        keys.reverse();
        Ok(keys)
    }

    /// The keys that lead from a value to one that is in it, the last first.
    fn keys_up(&self, from: usize, value: usize) -> impl Iterator<Item = &str> {
        let within = move |at: usize| (at > from).then_some(at);
        let places =
            std::iter::successors(within(value), move |at| within(self.entries[*at].parent));
        places.map(|at| self.key(at))
    }

    /// Whether a value is a leaf, or a container with nothing in it.
    #[must_use]
    pub fn is_end(&self, value: usize) -> bool {
        let entry = &self.entries[value];
        entry.is_leaf || entry.end == value + 1
    }

    /// The leaves of a value, and the containers with nothing in them, by their paths from there.
    pub fn ends_below(&self, value: usize) -> impl Iterator<Item = Result<(Path, usize)>> + '_ {
        (value..self.entries[value].end)
            .filter(|at| self.is_end(*at))
            .map(move |at| Ok((self.path_below(value, at)?, at)))
    }

    /// How many leaves there are in a value, and how many bytes their values have.
    #[must_use]
    pub fn totals(&self, value: usize) -> (usize, usize) {
        let inside = &self.entries[value..self.entries[value].end];
        let leaves = inside.iter().filter(|entry| entry.is_leaf);
        leaves.fold((0, 0), |(count, bytes), leaf| {
            let place = self.leaves[leaf.head];
            (count + 1, bytes + place.end - place.start)
        })
    }

    /// The kinds of the leaves in a value, each with the number of such leaves, and of the bytes of
    /// their values. It takes no longer than the leaves are many, however many kinds there are.
    pub fn kinds_in(&self, value: usize) -> Result<Vec<(&LeafKind, usize, usize)>> {
        let inside = &self.entries[value..self.entries[value].end];
        let leaves = inside.iter().filter(|entry| entry.is_leaf);
        let places = leaves.map(|leaf| self.leaves[leaf.head]);
        let mut found = grow::collect(places.map(|at| (at.kind, 1, at.end - at.start)))?;
        found.sort_unstable_by_key(|(kind, ..)| *kind);
        found.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            if is_same {
                first.1 += 1;
                first.2 += next.2;
            }
            is_same
        });
        let named = found.into_iter();
        grow::collect(named.map(|(kind, count, bytes)| (&self.kinds[kind], count, bytes)))
    }

    /// Where a leaf is.
    ///
    /// # Panics
    /// If there are not as many, here and below.
    #[must_use]
    pub fn place(&self, leaf: usize) -> Place {
        self.leaves[leaf]
    }

    /// What a leaf is.
    #[must_use]
    pub fn kind(&self, leaf: usize) -> &LeafKind {
        &self.kinds[self.leaves[leaf].kind]
    }

    /// The names of all dtypes that leaves have.
    pub fn dtypes(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().filter_map(|kind| match kind {
            LeafKind::Array(dtype, _) | LeafKind::Scalar(dtype) => Some(dtype.as_str()),
            _ => None,
        })
    }

    /// Whether there are checksums of the leaves.
    #[must_use]
    pub fn is_summed(&self) -> bool {
        !self.checksums.is_empty()
    }

    /// The record of the structure with all that stands after it, if there is one.
    #[must_use]
    pub fn record(&self) -> Option<&[u8]> {
        self.record.as_deref()
    }

    /// What ended the reading of damaged data.
    #[must_use]
    pub fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// The same with the damage told in other words.
    #[must_use]
    pub fn map_damage(mut self, told: impl FnOnce(Error) -> Error) -> Self {
        self.damage = self.damage.map(told);
        self
    }
}
