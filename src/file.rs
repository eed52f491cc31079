//! Opens files: `File`, its leaves by path, and array views.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::array::{Bounds, Runs, resolve};
use crate::catalog::{BLOCK_BYTES, Catalog, Status, array_in, damaged_rest};
use crate::dtype::Dtype;
use crate::error::Path;
use crate::events::{Event, no_dtype};
use crate::gzip::{self, Indexed};
use crate::mapping::Mapping;
use crate::raw::{Room, Uninit, append_with};
use crate::source::{Pieces, Source, SourcePieces, bytes_of};
use crate::structure::{LeafKind, Record, Value};
use crate::{Error, Result, grow, parallel, sniff};

/// A treepack, flax or eformer file whose leaves are read on demand.
///
/// ```
/// use treepack::{Dtype, File, Writer};
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("model.treepack");
/// # let mut writer = Writer::new();
/// # writer.array("params/kernel", Dtype::F32, &[2, 3], vec![0; 24])?;
/// # writer.value("step", 7)?;
/// # writer.save(&path)?;
/// let file = File::open(&path)?;
/// for leaf in file.leaves() {
///     println!("{} is {}", leaf.path(), leaf.kind()); // params/kernel is float32[2, 3]
/// }
/// let kernel = file.get("params/kernel")?;
/// assert_eq!((kernel.dtype(), kernel.shape()), (Dtype::F32, &[2, 3][..]));
/// assert_eq!(kernel.bytes()?.len(), 24);
/// assert_eq!(file.leaf("step")?.value()?, 7.into());
/// file.verify()?;
/// # Ok::<(), treepack::Error>(())
/// ```
pub struct File<'a> {
    content: Encoded<'a>,
    catalog: Catalog,
}

type Shared<'a> = Arc<dyn Source + Send + 'a>;

struct Encoded<'a> {
    source: Shared<'a>,
    /// Whether reading detects all damage.
    checks_itself: bool,
    has_damaged_index: bool,
}

impl<'a> Encoded<'a> {
    fn new(source: Shared<'a>) -> Result<Self> {
        let start = bytes_of(&source, 0..source.len().min(gzip::MAGIC_BYTES))?;
        let mut made = Self {
            source,
            checks_itself: gzip::is_compressed(&start),
            has_damaged_index: false,
        };
        if !made.checks_itself {
            return Ok(made);
        }
        made.source = if let Some(indexed) = Indexed::open(made.source.clone())? {
            Arc::new(indexed)
        } else {
            made.has_damaged_index = gzip::has_traces(&made.source)?;
            let expected = gzip::claimed_size(&made.source)?;
            Arc::new(gzip::inflate_in_steps(&made.source, expected, None, &())?)
        };
        Ok(made)
    }

    fn source(&self) -> &dyn Source {
        &*self.source
    }

    fn stream_damage(&self) -> Option<&'static str> {
        let damage = "the index of the compressed blocks is damaged";
        let of_index = self.has_damaged_index.then_some(damage);
        of_index.or_else(|| self.source.damage())
    }
}

impl File<'static> {
    /// Opens a file, plain or gzip.
    ///
    /// Reads only the index, or all headers in files without one (flax's). Gzip without treepack's
    /// index is inflated into memory as a whole. Do not truncate the file while it is open: the
    /// program would end with SIGBUS. A replaced file keeps its old content.
    ///
    /// # Errors
    /// If the file is missing or not a checkpoint. Directories are for the Python package.
    pub fn open(path: impl AsRef<path::Path>) -> Result<Self> {
        Self::from_source(Mapping::open(path.as_ref())?)
    }
}

impl<'a> File<'a> {
    /// Opens bytes in memory, plain or gzip. Arrays borrow from plain bytes.
    ///
    /// ```
    /// use std::borrow::Cow;
    /// use treepack::{Dtype, File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.array("mask", Dtype::Bool, &[3], [1, 0, 1])?;
    /// let mut bytes = Vec::new();
    /// writer.write_to(&mut bytes)?;
    ///
    /// let file = File::from_bytes(&bytes)?;
    /// let mask = file.get("mask")?;
    /// assert!(matches!(mask.bytes()?, Cow::Borrowed([1, 0, 1])));
    /// # Ok::<(), treepack::Error>(())
    /// ```
    pub fn from_bytes(bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self> {
        Self::from_source(bytes.into())
    }

    /// Opens any [`Source`], such as an object in a store.
    pub fn from_source(source: impl Source + Send + 'a) -> Result<Self> {
        let content = Encoded::new(Arc::new(source))?;
        let catalog = Catalog::open(content.source(), false, &());
        let catalog = catalog.map_err(|error| sniff::explain(error, content.source()))?;
        Ok(Self { content, catalog })
    }

    /// Returns the number of leaves.
    #[must_use]
    pub fn len(&self) -> usize {
        self.catalog.len()
    }

    /// Returns whether there are no leaves.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lists all leaves in file order. Reads nothing.
    pub fn leaves(&self) -> impl Iterator<Item = Leaf<'_>> {
        (0..self.catalog.values()).filter_map(|value| self.leaf_of(value))
    }

    /// Finds the leaf at a [path](Path), such as `params/dense/kernel`, or `.` for a tree that is a
    /// leaf.
    ///
    /// ```
    /// use treepack::{Error, File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.value("config/rate~1step", 0.5)?; // the key `rate/step`
    /// # let mut bytes = Vec::new();
    /// # writer.write_to(&mut bytes)?;
    /// # let file = File::from_bytes(&bytes)?;
    /// assert_eq!(file.leaf("config/rate~1step")?.value()?, 0.5.into());
    /// assert!(matches!(file.leaf("config/rate"), Err(Error::NoLeaf { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoLeaf`] if there is none.
    pub fn leaf(&self, path: &str) -> Result<Leaf<'_>> {
        let keys: Path = path.parse()?;
        let found = self.catalog.find(0, keys.keys(), &())?;
        let leaf = found.and_then(|value| self.leaf_of(value));
        leaf.ok_or_else(|| Error::NoLeaf { path: path.into() })
    }

    /// Finds the array at a path and reads its headers.
    ///
    /// # Errors
    /// [`Error::NoLeaf`] if there is no leaf, [`Error::OtherKind`] if it is not an array.
    pub fn get(&self, path: &str) -> Result<ArrayView<'_>> {
        self.leaf(path)?.array()
    }

    /// Reads the metadata saved with the tree.
    pub fn metadata(&self) -> Result<Option<Value>> {
        let Some(record) = self.catalog.record() else {
            return Ok(None);
        };
        let metadata = Record::read(record)?.metadata;
        metadata.map(|value| Value::decode(&value)).transpose()
    }

    /// Returns whether the file has checksums for [`File::verify`]. flax's files have none.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.catalog.is_summed() || self.content.checks_itself
    }

    /// Compares the whole file with its checksums, index and structure record.
    ///
    /// ```
    /// use treepack::{Dtype, Error, File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.array("w", Dtype::U8, &[1000], vec![1; 1000])?;
    /// writer.array("b", Dtype::U8, &[10], [0; 10])?;
    /// let mut bytes = Vec::new();
    /// writer.write_to(&mut bytes)?;
    /// File::from_bytes(&bytes)?.verify()?;
    ///
    /// bytes[500] ^= 1;
    /// let Err(Error::Corrupt { paths, .. }) = File::from_bytes(&bytes)?.verify() else {
    ///     panic!("damage is found");
    /// };
    /// assert_eq!(paths[0].to_string(), "w");
    /// # Ok::<(), treepack::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`] lists the damaged leaves; other errors report damage elsewhere.
    pub fn verify(&self) -> Result<()> {
        let source = self.content.source();
        let threads = parallel::threads(None, source.len(), parallel::MIN_COPY_BYTES)?;
        let checks = self.content.checks_itself;
        let found = self
            .catalog
            .verify(source, checks, BLOCK_BYTES, threads, &())?;
        let is_corrupt = |leaf: &Leaf<'_>| found.get(leaf.number) == Some(&Status::Corrupt);
        let corrupt = self.leaves().filter(is_corrupt).map(|leaf| leaf.value);
        if let Some(error) = self.corrupt(corrupt)? {
            return Err(error);
        }
        if found.get(self.len()) == Some(&Status::Corrupt) {
            return Err(damaged_rest());
        }
        if let Some(damage) = self.content.stream_damage() {
            return Err(Error::Gzip(damage.into()));
        }
        self.catalog.check_record(source, &())?;
        let inner = self.catalog.inner_dtypes(source, &())?;
        let mut dtypes = self
            .catalog
            .dtypes()
            .chain(inner.iter().map(String::as_str));
        match dtypes.find(|name| Dtype::named(name).is_none()) {
            None => Ok(()),
            Some(name) => {
                let reason = no_dtype(name.as_bytes(), 0).reason();
                Err(Error::Structure(reason))
            }
        }
    }

    fn corrupt(&self, mut values: impl Iterator<Item = usize>) -> Result<Option<Error>> {
        /// Bounds the memory of long keys that many paths share.
        const MOST_BYTES: usize = 8 << 20;
        let mut left = MOST_BYTES;
        let mut paths = Vec::new();
        let mut more = 0;
        for value in values.by_ref() {
            let path = self.catalog.path_below(0, value)?;
            let keys = path.keys().map(|key| size_of::<String>() + key.len());
            let Some(rest) = left.checked_sub(keys.sum()) else {
                more = 1;
                break;
            };
            left = rest;
            grow::push(&mut paths, path)?;
        }
        more += values.count();
        let is_any = more > 0 || !paths.is_empty();
        Ok(is_any.then_some(Error::Corrupt { paths, more }))
    }

    fn leaf_of(&self, value: usize) -> Option<Leaf<'_>> {
        let number = self.catalog.leaf(value)?;
        Some(Leaf {
            file: self,
            value,
            number,
        })
    }
}

impl fmt::Debug for File<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leaves = self.len();
        write!(f, "File {{ {leaves} leaves }}")
    }
}

/// A leaf of a [`File`]: its kind, and its value on demand.
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    file: &'a File<'a>,
    value: usize,
    number: usize,
}

impl<'a> Leaf<'a> {
    /// Returns the leaf's path.
    ///
    /// # Panics
    /// If out of memory.
    #[must_use]
    pub fn path(&self) -> Path {
        let path = self.file.catalog.path_below(0, self.value);
        path.expect("there is memory for a path")
    }

    /// Returns the kind of leaf; for an array, dtype and shape. Reads nothing.
    #[must_use]
    pub fn kind(&self) -> &'a LeafKind {
        self.file.catalog.kind(self.number)
    }

    /// Returns the dtype of an array. Reads nothing.
    #[must_use]
    pub fn dtype(&self) -> Option<Dtype> {
        match self.kind() {
            LeafKind::Array(name, _) | LeafKind::Scalar(name) => Dtype::named(name),
            LeafKind::PrngKey(..) => Some(Dtype::U32),
            _ => None,
        }
    }

    /// Returns the encoded size in bytes, with headers.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let place = self.file.catalog.place(self.number);
        place.end - place.start
    }

    /// Reads the headers of an array, a NumPy scalar, or a PRNG key's data.
    ///
    /// # Errors
    /// [`Error::OtherKind`] if the leaf is not an array.
    pub fn array(&self) -> Result<ArrayView<'a>> {
        let source = self.file.content.source();
        let events = self.file.catalog.events_of(source, self.value)?;
        let found = array_in(&events, self.kind());
        let found = found.ok_or_else(|| self.is_not("an array"))?;
        let dtype = std::str::from_utf8(found.dtype).ok().and_then(Dtype::named);
        let dtype = dtype.ok_or_else(|| self.at(no_dtype(found.dtype, found.offset)))?;
        let shape = resolve(found.dims, found.nbytes(), dtype.itemsize(), found.offset);
        let parts = found.spans.iter().map(|span| span.range());
        Ok(ArrayView {
            source,
            parts: Pieces::new(grow::collect(parts)?)?,
            dtype,
            shape: shape.map_err(|error| self.at(error))?,
        })
    }

    /// Reads a plain value.
    ///
    /// # Errors
    /// [`Error::OtherKind`] if the leaf is an array or a container.
    pub fn value(&self) -> Result<Value> {
        let source = self.file.content.source();
        let events = self.file.catalog.events_of(source, self.value)?;
        Ok(match *events.as_slice() {
            [Event::Nil] => Value::None,
            [Event::Bool(value)] => value.into(),
            [Event::Int(value)] => value.into(),
            [Event::Uint(value)] => value.into(),
            [Event::Float(value)] => value.into(),
            [Event::Complex(number)] => {
                let (real, imaginary) = events.complex(number);
                Value::Complex(real, imaginary)
            }
            [Event::Str(text)] => Value::Str(grow::to_string(events.text(text))?),
            [Event::Bin(span)] => Value::Bytes(bytes_of(source, span.range())?),
            _ => return Err(self.is_not("a plain value")),
        })
    }

    fn is_not(&self, wanted: &'static str) -> Error {
        let found = self.kind().to_string();
        self.at(Error::OtherKind { found, wanted })
    }

    fn at(&self, error: Error) -> Error {
        Error::at(self.path(), error)
    }
}

impl fmt::Debug for Leaf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Leaf {{ {}: {} }}", self.path(), self.kind())
    }
}

/// An array of a [`File`] whose elements are read on demand.
///
/// ```
/// use treepack::{Dtype, File, Writer};
///
/// let mut writer = Writer::new();
/// let numbers: Vec<u8> = (0..6_u16).flat_map(u16::to_le_bytes).collect();
/// writer.array("table", Dtype::U16, &[3, 2], numbers)?;
/// let mut bytes = Vec::new();
/// writer.write_to(&mut bytes)?;
///
/// let file = File::from_bytes(&bytes)?;
/// let table = file.get("table")?;
/// assert_eq!(table.shape(), [3, 2]);
/// let last = table.rows(2..3)?;
/// assert_eq!(last.shape(), [1, 2]);
/// let bytes = last.bytes()?;
/// let (elements, _) = bytes.as_chunks();
/// assert_eq!(elements.iter().map(|element| u16::from_le_bytes(*element)).sum::<u16>(), 4 + 5);
/// # Ok::<(), treepack::Error>(())
/// ```
#[derive(Clone)]
pub struct ArrayView<'a> {
    source: &'a dyn Source,
    parts: Pieces,
    dtype: Dtype,
    shape: SmallVec<[usize; 6]>,
}

impl<'a> ArrayView<'a> {
    /// Returns the dtype.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the shape; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the size of all elements in bytes.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.parts.len()
    }

    /// Returns the elements in C order, little-endian. Borrows from bytes in memory; otherwise
    /// copies, since other processes may change a file.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>> {
        if let ([part], Some(memory)) = (self.parts.as_slice(), self.source.stable()) {
            return Ok(Cow::Borrowed(&memory[part.clone()]));
        }
        let mut bytes = Vec::new();
        append_with(&mut bytes, self.nbytes(), |target| self.read(target))?;
        Ok(Cow::Owned(bytes))
    }

    /// Selects rows, a range of the first dimension. Reads nothing.
    ///
    /// # Errors
    /// If the array has fewer rows.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let count = self.shape.first().copied().unwrap_or(0);
        if rows.start > rows.end || rows.end > count || self.shape.is_empty() {
            let (start, end) = (rows.start, rows.end);
            let reason = format!(
                "rows {start} to {end} of an array of shape {:?}",
                self.shape()
            );
            return Err(Error::Option(reason));
        }
        let row = self.nbytes() / count.max(1);
        let parts = self.parts.of(rows.start * row..rows.end * row);
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Ok(Self {
            parts: Pieces::new(grow::collect(parts)?)?,
            shape,
            ..*self
        })
    }

    /// Reads a box, a range of each dimension, in C order, little-endian. Reads only the box.
    ///
    /// ```
    /// use treepack::{Dtype, File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.array("table", Dtype::U8, &[2, 3], [1, 2, 3, 4, 5, 6])?;
    /// let mut bytes = Vec::new();
    /// writer.write_to(&mut bytes)?;
    ///
    /// let file = File::from_bytes(&bytes)?;
    /// assert_eq!(file.get("table")?.read_box(&[0..2, 1..3])?, [2, 3, 5, 6]);
    /// # Ok::<(), treepack::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if the array does not contain the box.
    pub fn read_box(&self, ranges: &[Range<usize>]) -> Result<Vec<u8>> {
        let bounds = ranges.iter().map(|range| Bounds {
            start: range.start,
            count: range.len(),
            step: 1,
        });
        let bounds = grow::collect(bounds)?;
        match Runs::compact(&self.shape, self.dtype.itemsize(), &bounds) {
            Some(runs) if ranges.iter().all(|range| range.start <= range.end) => {
                runs.gather(self.source, &self.parts)
            }
            _ => {
                let shape = self.shape();
                Err(Error::Option(format!(
                    "the box {ranges:?} of an array of shape {shape:?}"
                )))
            }
        }
    }

    fn read<'t>(&self, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let threads = parallel::threads(None, target.len(), parallel::MIN_COPY_BYTES)?;
        let ((), whole) = Room::share(target, |room| {
            let blocks = grow::collect(room.chunks(parallel::BLOCK).enumerate())?;
            let read = |(index, block): (usize, Room<'_>)| {
                block.fill(|block| self.copy_to(index * parallel::BLOCK, block))
            };
            parallel::for_each(blocks, threads, read, || Ok(()))
        })?;
        Ok(whole.expect("the blocks cover the memory"))
    }

    pub(crate) fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.in_parts().read_at(start, target)
    }

    fn in_parts(&self) -> SourcePieces<'_> {
        SourcePieces {
            source: self.source,
            parts: &self.parts,
        }
    }
}

impl fmt::Debug for ArrayView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrayView {{ {}{:?} }}", self.dtype, self.shape())
    }
}
