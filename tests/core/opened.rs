//! Opens encoded data, compressed or not, with the catalog of their leaves.

use std::num::NonZero;
use std::sync::Arc;

use treepack::base::source::{Source, bytes_of};
use treepack::catalog::{BLOCK_BYTES, Catalog, Status};
use treepack::codec::gzip::{Indexed, Stream};
use treepack::foreign::sniff::explain;
use treepack::format::index::LeafKind;
use treepack::{Error, Result};

pub struct Opened<'a> {
    pub source: Arc<dyn Source + Send + 'a>,
    pub catalog: Catalog,
    checks_itself: bool,
    has_damaged_index: bool,
}

impl<'a> Opened<'a> {
    pub fn new(source: impl Source + Send + 'a) -> Result<Self> {
        let mut source: Arc<dyn Source + Send + 'a> = Arc::new(source);
        let checks_itself = Stream(&source).is_compressed()?;
        let mut has_damaged_index = false;
        if checks_itself {
            source = if let Some(indexed) = Indexed::open(source.clone())? {
                Arc::new(indexed)
            } else {
                has_damaged_index = Stream(&source).has_traces_of_index()?;
                Arc::new(Stream(&source).inflate(0, None, &())?)
            };
        }
        let catalog = Catalog::open(&source, false, &());
        Ok(Self {
            catalog: catalog.map_err(|error| explain(error, &source))?,
            source,
            checks_itself,
            has_damaged_index,
        })
    }

    /// The values that are leaves.
    pub fn leaves(&self) -> impl Iterator<Item = usize> {
        (0..self.catalog.values()).filter(|value| self.catalog.leaf(*value).is_some())
    }

    pub fn path(&self, value: usize) -> String {
        self.catalog.path_of(value).to_string()
    }

    pub fn kind(&self, value: usize) -> &LeafKind {
        let leaf = self.catalog.leaf(value);
        self.catalog.kind(leaf.expect("the value is a leaf"))
    }

    /// The value at a path without escapes.
    pub fn at(&self, path: &str) -> usize {
        let found = self.catalog.find(0, path.split('/'), &()).unwrap();
        found.expect("there is a value")
    }

    /// Reads an array, or the data of a PRNG key.
    pub fn bytes(&self, value: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for part in self.catalog.array(&self.source, value)?.parts() {
            bytes.extend(bytes_of(&self.source, part.clone())?);
        }
        Ok(bytes)
    }

    /// Compares everything: returns the paths of damaged leaves, or other damage.
    pub fn damage(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }

    fn check(&self) -> Result<()> {
        let (source, catalog) = (&self.source, &self.catalog);
        let threads = NonZero::<usize>::MIN;
        let found = catalog.verify(source, self.checks_itself, BLOCK_BYTES, threads, &())?;
        let is_damaged = |value: &usize| {
            let leaf = catalog.leaf(*value).expect("the value is a leaf");
            found[leaf] == Status::Corrupt
        };
        let damaged: Vec<_> = self.leaves().filter(is_damaged).collect();
        let mut paths: Vec<String> = damaged.iter().map(|value| self.path(*value)).collect();
        if found[catalog.len()] == Status::Corrupt {
            paths.push("the bytes after the leaves".into());
        }
        if !paths.is_empty() {
            return Err(Error::Structure(paths.join(", ")));
        }
        if self.has_damaged_index || source.damage().is_some() {
            return Err(Error::Gzip("the index of the blocks".into()));
        }
        catalog.check_record(source, &())
    }
}
