//! Writes a file leaf by leaf.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::path;
use std::sync::Arc;

use crate::array::{Alignment, Array, ChunkLimit, Framing, MAX_NDIM};
use crate::dtype::Dtype;
use crate::encoder::Encoder;
use crate::error::Path;
use crate::file::ArrayView;
use crate::gzip::{self, Method};
use crate::layout::{Layout, Payload};
use crate::raw::{RawBytes, Uninit};
use crate::sink::{Append, append_blocks, replace_file};
use crate::structure::{Kind, Value};
use crate::wire::{Complex, EXT_NDARRAY, Head, MAX_DEPTH};
use crate::{Error, Result, grow, parallel};

const ALIGN: i64 = 64;

/// Smaller payloads are copied between the headers.
const JOIN_BYTES: usize = 64;

/// A tree to write, with an index of its leaves and their checksums.
///
/// Leaves are added by [path](Path); keys become maps. Array bytes are borrowed until they are
/// written. treepack, flax and eformer read the file.
pub struct Writer<'a> {
    root: Node<'a>,
    metadata: Option<Value>,
    compress: Compress,
    durable: bool,
}

/// The compression of a [`Writer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Compress {
    /// Uncompressed.
    #[default]
    No,
    /// gzip; flax reads the inflated file.
    Gzip,
    /// Coded float exponents: smaller and faster for weights. Only treepack reads it.
    Numbers,
}

impl From<bool> for Compress {
    fn from(compress: bool) -> Self {
        if compress { Self::Gzip } else { Self::No }
    }
}

impl Compress {
    fn method(self) -> Option<Method> {
        match self {
            Self::No => None,
            Self::Gzip => Some(Method::Adaptive),
            Self::Numbers => Some(Method::Numbers),
        }
    }
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Self {
            root: Node::Map(Map::default()),
            metadata: None,
            compress: Compress::No,
            durable: true,
        }
    }
}

impl<'a> Writer<'a> {
    /// Starts an empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the metadata that [`File::metadata`](crate::File::metadata) reads.
    pub fn metadata(&mut self, value: impl Into<Value>) -> &mut Self {
        self.metadata = Some(value.into());
        self
    }

    /// Sets the compression: none by default; `true` is gzip. Blocks can be read one by one.
    pub fn compress(&mut self, compress: impl Into<Compress>) -> &mut Self {
        self.compress = compress.into();
        self
    }

    /// Sets whether [`save`](Self::save) waits for the disk, so that the file survives a power
    /// loss. `true` by default; otherwise the file survives only a crash of the program.
    pub fn durable(&mut self, durable: bool) -> &mut Self {
        self.durable = durable;
        self
    }

    /// Adds an array of elements in C order, little-endian.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use treepack::{Dtype, File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// let shared: Arc<[u8]> = vec![1; 12].into();
    /// writer.array("borrowed", Dtype::U8, &[4], &[1, 2, 3, 4])?;
    /// writer.array("shared", Dtype::F32, &[3, 1], shared)?;
    /// writer.array("scalar", Dtype::I16, &[], vec![7, 0])?;
    /// # let mut bytes = Vec::new();
    /// # writer.write_to(&mut bytes)?;
    ///
    /// // An array of another file is read when it is written.
    /// let file = File::from_bytes(&bytes)?;
    /// let mut writer = Writer::new();
    /// let array = file.get("borrowed")?;
    /// writer.array("copied", array.dtype(), &[2, 2], array)?;
    /// # let mut copy = Vec::new();
    /// # writer.write_to(&mut copy)?;
    /// # assert_eq!(File::from_bytes(&copy)?.get("copied")?.bytes()?, [1, 2, 3, 4].as_slice());
    /// # Ok::<(), treepack::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a leaf is already at, above or below the path, or the number of bytes does not fit the
    /// shape.
    pub fn array(
        &mut self,
        path: &str,
        dtype: Dtype,
        shape: &[usize],
        bytes: impl Into<Bytes<'a>>,
    ) -> Result<()> {
        let bytes = bytes.into();
        if nbytes(shape, dtype.itemsize()) != Some(bytes.len()) {
            let len = bytes.len();
            let reason = format!("{len} bytes do not fit an array of {dtype}{shape:?}");
            return Err(Error::at(path.parse()?, Error::Option(reason)));
        }
        let shape = grow::to_vec(shape)?;
        self.add(path, Node::Array(dtype, shape, bytes))
    }

    /// Adds a plain value: a number, text, bytes or none.
    ///
    /// ```
    /// use treepack::{Value, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.value("config/name", "linear")?;
    /// writer.value("config/rate", 0.5)?;
    /// writer.value("config/seed", Value::None)?;
    /// let error = writer.value("config", true).unwrap_err();
    /// assert!(error.to_string().contains("config"));
    /// # Ok::<(), treepack::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`array`](Self::array), and if the value is a container.
    pub fn value(&mut self, path: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        match &value {
            Value::Tuple(_) | Value::List(_) | Value::Dict(_) | Value::Frozenset(_) => {}
            Value::Named(..) if large(&value).is_none() => {}
            _ => return self.add(path, Node::Value(value)),
        }
        let reason =
            "a leaf must be a number, text, bytes or none: add the values of a container by path";
        Err(Error::at(path.parse()?, Error::Option(reason.into())))
    }

    fn add(&mut self, path: &str, leaf: Node<'a>) -> Result<()> {
        let path: Path = path.parse()?;
        if path.keys().count() > MAX_DEPTH {
            return Err(Error::TreeTooDeep { limit: MAX_DEPTH });
        }
        let mut node = &mut self.root;
        for key in path.keys() {
            node = match node {
                Node::Map(map) => map.child(key)?,
                _ => return Err(taken(&path)),
            };
        }
        match node {
            Node::Map(map) if map.children.is_empty() => *node = leaf,
            _ => return Err(taken(&path)),
        }
        Ok(())
    }

    /// Writes a file atomically.
    ///
    /// Creates missing directories and follows a link.
    ///
    /// # Errors
    /// If a key is reserved or the file cannot be written. The old file then stays.
    pub fn save(&self, path: impl AsRef<path::Path>) -> Result<()> {
        let (path, layout) = (path.as_ref(), self.layout()?);
        let threads = self.threads(layout.len())?;
        let method = self.compress.method();
        // The compressed size is unknown; zero reserves nothing.
        let size = method.map_or(layout.len(), |_| 0);
        let written = replace_file(path, self.durable, size, &(), |file| {
            if let Some(method) = method {
                gzip::compress(&layout, method, threads, file, &())
            } else {
                file.layout(&layout, threads)
            }
        });
        written.map(drop)
    }

    /// Writes the file to a stream, such as a socket or a `Vec`.
    ///
    /// ```
    /// use treepack::{File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.value("step", 7)?;
    /// let mut bytes = Vec::new();
    /// writer.compress(true).write_to(&mut bytes)?;
    /// assert_eq!(bytes[..2], [0x1f, 0x8b]); // gzip
    /// assert_eq!(File::from_bytes(&bytes)?.leaf("step")?.value()?, 7.into());
    /// # Ok::<(), treepack::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a key is reserved (then nothing is written), or the stream fails.
    pub fn write_to(&self, mut stream: impl io::Write) -> Result<()> {
        let layout = self.layout()?;
        let threads = self.threads(layout.len())?;
        let mut out = Stream(&mut stream);
        match self.compress.method() {
            Some(method) => gzip::compress(&layout, method, threads, &mut out, &())?,
            None => append_blocks(&layout, threads, &mut out, &())?,
        }
        Ok(stream.flush()?)
    }

    fn layout(&self) -> Result<Layout<PayloadRange<'_>>> {
        let framing = Framing {
            align: Alignment::new(ALIGN)?,
            chunks: ChunkLimit::DEFAULT,
            may_box: true,
        };
        // Compressed blocks have their own checksums.
        let mut encoder = Encoder::indexed(framing, self.compress == Compress::No);
        encode(&self.root, &mut encoder)?;
        let metadata = self.metadata.as_ref().map(Value::encode);
        encoder.finish(metadata.transpose()?)
    }

    fn threads(&self, bytes: usize) -> Result<NonZero<usize>> {
        let least = match self.compress {
            Compress::No => parallel::MIN_COPY_BYTES,
            _ => gzip::MIN_PARALLEL_BYTES,
        };
        parallel::threads(None, bytes, least)
    }
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

fn nbytes(shape: &[usize], itemsize: usize) -> Option<usize> {
    let times = |size: usize, dim: &usize| size.checked_mul((*dim).max(1));
    let most = shape.iter().try_fold(itemsize, times)?;
    let fits = shape.len() <= MAX_NDIM && isize::try_from(most).is_ok();
    fits.then(|| if shape.contains(&0) { 0 } else { most })
}

fn taken(path: &Path) -> Error {
    let reason = "cannot add a leaf here: another leaf is at this path, above it or below it";
    Error::at(path.clone(), Error::Option(reason.into()))
}

enum Node<'a> {
    Map(Map<'a>),
    Array(Dtype, Vec<usize>, Bytes<'a>),
    Value(Value),
}

#[derive(Default)]
struct Map<'a> {
    children: Vec<(String, Node<'a>)>,
    places: HashMap<String, usize>,
}

impl<'a> Map<'a> {
    fn child(&mut self, key: &str) -> Result<&mut Node<'a>> {
        let place = if let Some(place) = self.places.get(key) {
            *place
        } else {
            let place = self.children.len();
            let child = Node::Map(Self::default());
            self.places.try_reserve(1)?;
            grow::push(&mut self.children, (grow::to_string(key)?, child))?;
            self.places.insert(grow::to_string(key)?, place);
            place
        };
        Ok(&mut self.children[place].1)
    }
}

fn encode<'t>(node: &'t Node<'t>, encoder: &mut Encoder<PayloadRange<'t>>) -> Result<()> {
    match node {
        Node::Map(map) => {
            encoder.map(map.children.len())?;
            for (key, child) in &map.children {
                let done = encoder.key(key).and_then(|()| encode(child, encoder));
                done.map_err(|error| below(key, error))?;
            }
            encoder.end(Kind::Dict)
        }
        Node::Value(value) => encode_value(value, encoder),
        Node::Array(dtype, shape, bytes) => {
            let header = Array {
                code: EXT_NDARRAY,
                shape,
                dtype: &dtype.to_string(),
                itemsize: dtype.itemsize(),
            };
            encoder.array(&header, Kind::Plain, |out, range| match bytes.memory() {
                Some(memory) if range.len() <= JOIN_BYTES => out.extend(&memory[range]),
                _ => out.push(PayloadRange { bytes, range }),
            })
        }
    }
}

fn encode_value(value: &Value, encoder: &mut Encoder<PayloadRange<'_>>) -> Result<()> {
    match value {
        Value::None => encoder.plain(Head::Nil),
        Value::Bool(value) => encoder.plain(Head::Bool(*value)),
        Value::Int(value) => match u64::try_from(*value) {
            Ok(value) => encoder.plain(Head::Uint(value)),
            Err(_) => encoder.plain(Head::Int(*value)),
        },
        Value::Float(value) => encoder.plain(Head::Float(*value)),
        Value::Complex(real, imaginary) => encoder.complex(Complex(*real, *imaginary)),
        Value::Str(value) => encoder.str(value.len(), |out| out.extend(value.as_bytes())),
        Value::Bytes(value) => encoder.bin(value.len(), Kind::Plain, |out| out.extend(value)),
        other => encoder.plain(Head::Uint(large(other).unwrap_or_default())), // checked before
    }
}

fn large(value: &Value) -> Option<u64> {
    match value {
        Value::Named(name, made_of) if name == "int" => match &**made_of {
            Value::Str(digits) => digits.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

fn below(key: &str, error: Error) -> Error {
    let (error, path) = error.split();
    let mut path = path.unwrap_or_default();
    path.push_outer(key);
    Error::at(path, error)
}

/// Bytes of an array to write: borrowed, owned, shared, or of an array in a [`File`](crate::File).
/// [`Writer::array`] converts its argument into `Bytes`.
#[derive(Debug, Clone)]
pub struct Bytes<'a>(Inner<'a>);

#[derive(Debug, Clone)]
enum Inner<'a> {
    Memory(Cow<'a, [u8]>),
    Shared(Arc<[u8]>),
    View(ArrayView<'a>),
}

impl Bytes<'_> {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Memory(bytes) => bytes.len(),
            Inner::Shared(bytes) => bytes.len(),
            Inner::View(array) => array.nbytes(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn memory(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Memory(bytes) => Some(bytes),
            Inner::Shared(bytes) => Some(bytes),
            Inner::View(_) => None,
        }
    }
}

macro_rules! from {
    ($([$($generic:tt)*] $type:ty: $bytes:ident => $inner:expr,)*) => {$(
        impl<'a, $($generic)*> From<$type> for Bytes<'a> {
            fn from($bytes: $type) -> Self {
                Self($inner)
            }
        }
    )*};
}
from! {
    [] &'a [u8]: bytes => Inner::Memory(bytes.into()),
    [const N: usize] &'a [u8; N]: bytes => Inner::Memory(bytes.as_slice().into()),
    [const N: usize] [u8; N]: bytes => Inner::Memory(bytes.to_vec().into()),
    [] &'a Vec<u8>: bytes => Inner::Memory(bytes.into()),
    [] Cow<'a, [u8]>: bytes => Inner::Memory(bytes),
    [] Vec<u8>: bytes => Inner::Memory(bytes.into()),
    [] Arc<[u8]>: bytes => Inner::Shared(bytes),
    [] ArrayView<'a>: array => Inner::View(array),
}

struct PayloadRange<'t> {
    bytes: &'t Bytes<'t>,
    range: Range<usize>,
}

impl Payload for PayloadRange<'_> {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let start = self.range.start + start;
        let bytes: &[u8] = match &self.bytes.0 {
            Inner::View(array) => return array.copy_to(start, target),
            Inner::Memory(bytes) => bytes,
            Inner::Shared(bytes) => bytes,
        };
        Ok(target.write_copy_of_slice(&bytes[start..][..target.len()]))
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        let memory = self.bytes.memory()?;
        Some(memory[self.range.clone()].into())
    }
}

struct Stream<'a>(&'a mut dyn io::Write);

impl Append for Stream<'_> {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        Ok(self.0.write_all(piece)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;

    #[test]
    fn chunks_are_ranges_of_the_bytes() {
        let elements: Vec<u8> = (0..=255).collect();
        let mut writer = Writer::new();
        let dtype = Dtype::U16;
        writer.array("memory", dtype, &[128], &elements).unwrap();
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        let file = File::from_bytes(bytes).unwrap();
        let view = file.get("memory").unwrap();
        writer.array("view", dtype, &[128], view).unwrap();
        let shared: Arc<[u8]> = elements.as_slice().into();
        writer.array("shared", dtype, &[128], shared).unwrap();
        for limit in [100.0, 33.0] {
            let framing = Framing {
                align: Alignment::new(1).unwrap(),
                chunks: ChunkLimit::new(limit),
                may_box: true,
            };
            let mut encoder = Encoder::indexed(framing, true);
            encode(&writer.root, &mut encoder).unwrap();
            let layout = encoder.finish(None).unwrap();
            let mut bytes = Vec::new();
            let out = &mut Stream(&mut bytes);
            append_blocks(&layout, NonZero::<usize>::MIN, out, &()).unwrap();
            let file = File::from_bytes(bytes).unwrap();
            for path in ["memory", "view", "shared"] {
                let array = file.get(path).unwrap();
                assert_eq!(array.bytes().unwrap(), elements, "{path}");
                assert!(matches!(array.bytes().unwrap(), Cow::Owned(_)));
            }
        }
    }
}
