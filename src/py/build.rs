//! The making of Python objects from tokens.
//!
//! An array becomes a view of the input wherever its payload is aligned for its
//! dtype. Where it must be copied, a small one is copied at once and a large one
//! with all others at the end, in parallel and detached.

use std::ops::Range;

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use smallvec::SmallVec;

use super::errors;
use super::hooks::Hooks;
use super::memory::{Copies, FreshArray, FreshPages, SmallCopies, view};
use crate::array::{ArrayBody, ChunkedArray, Dims};
use crate::wire::{self, Cursor, Token};
use crate::{Error, sniff};

/// Arrays of at least so many bytes are copied together at the end.
const LATER_MIN_BYTES: usize = 64 << 10;

/// After so many bytes of input the part that has been read is released.
const RELEASE_BYTES: usize = 4 << 20;

/// How many values may be read a second time, in all.
const MAX_READ_AGAIN: usize = 100_000;

/// The longest name that a dtype may have; those that are known have 17 bytes at most.
const MAX_DTYPE_NAME: usize = 64;

/// How many dtypes are remembered; a tree has a handful.
const MAX_DTYPES: usize = 64;

/// What becomes of arrays; the first three are what NumPy 2 means by `copy=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// `None`: views where possible.
    IfNeeded,
    /// `True`: writable arrays with memory of their own.
    Always,
    /// `False`: views, or an error.
    Never,
    /// Their shapes and dtypes only.
    Abstract,
}

impl From<Option<bool>> for CopyMode {
    fn from(copy: Option<bool>) -> Self {
        match copy {
            None => Self::IfNeeded,
            Some(true) => Self::Always,
            Some(false) => Self::Never,
        }
    }
}

/// The tree that `data` encodes; its arrays keep `owner` alive.
///
/// `release` is told now and then which range of `data` has been read for good.
pub fn build<'py>(
    owner: &Bound<'py, PyAny>,
    data: &[u8],
    copy: CopyMode,
    threads: Option<i64>,
    release: impl Fn(Range<usize>),
) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    let mut builder = Builder {
        py,
        hooks: Hooks::get(py)?,
        owner,
        copy,
        cursor: Cursor::new(data),
        keys: KeyCache::default(),
        dtypes: Vec::new(),
        copies: Copies::default(),
        small_copies: SmallCopies::default(),
        fresh_pages: FreshPages::new(data.len()),
        release: &release,
        released: 0,
        at_once: false,
        depth: 0,
        values: 0,
        read_again: 0,
        path: Vec::new(),
    };
    let tree = builder.value().and_then(|tree| {
        builder.cursor.finish()?;
        Ok(tree)
    });
    match tree {
        Ok(tree) => {
            let copied = builder.copies.run(py, threads);
            copied.map_err(|error| errors::to_py(py, error, None))?;
            if builder.released > 0 {
                release(builder.released..data.len());
            }
            Ok(tree)
        }
        Err(failure) => {
            let error = match *failure {
                Failure::Raised(error) => return Err(error),
                Failure::Core(error) => error,
            };
            let path = errors::path_to(&builder.path);
            Err(errors::to_py(py, explain(error, data), Some(&path)))
        }
    }
}

/// Adds what the data seems to be instead of msgpack.
fn explain(error: Error, data: &[u8]) -> Error {
    match (error.offset(), sniff::describe(data)) {
        (Some(offset), Some(what)) => {
            Error::malformed(offset, format!("{error}; the data looks like {what}"))
        }
        _ => error,
    }
}

enum Failure {
    Core(Error),
    Raised(PyErr),
}

impl From<Error> for Box<Failure> {
    fn from(error: Error) -> Self {
        Self::new(Failure::Core(error))
    }
}

impl From<PyErr> for Box<Failure> {
    fn from(error: PyErr) -> Self {
        Self::new(Failure::Raised(error))
    }
}

/// Boxed, because results lie on the stack at every level of the tree.
type Built<'py> = Result<Bound<'py, PyAny>, Box<Failure>>;

struct Builder<'a, 'py> {
    py: Python<'py>,
    hooks: &'static Hooks,
    owner: &'a Bound<'py, PyAny>,
    copy: CopyMode,
    cursor: Cursor<'a>,
    keys: KeyCache<'py>,
    dtypes: Vec<Dtype<'py>>,
    copies: Copies<'py, 'a>,
    small_copies: SmallCopies<'py>,
    fresh_pages: FreshPages,
    release: &'a dyn Fn(Range<usize>),
    /// Up to where the input has been released.
    released: usize,
    /// The arrays here are read by Python before the end, so copy them at once.
    at_once: bool,
    depth: usize,
    /// How many values have been read, and how many of them a second time.
    values: usize,
    read_again: usize,
    /// On a failure: the keys from the value up to the root.
    path: Vec<String>,
}

impl<'a, 'py> Builder<'a, 'py> {
    /// The next value. This and what it calls for containers is the recursion, which
    /// must not need much of the stack: what is inlined here counts at every level.
    fn value(&mut self) -> Built<'py> {
        let offset = self.cursor.offset();
        let token = self.cursor.token()?;
        self.values += 1;
        let py = self.py;
        Ok(match token {
            Token::Nil => py.None().into_bound(py),
            Token::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
            Token::Int(value) => PyInt::new(py, value).into_any(),
            Token::Uint(value) => PyInt::new(py, value).into_any(),
            Token::Float(value) => PyFloat::new(py, value).into_any(),
            Token::Str(bytes) => PyString::new(py, text(bytes, offset)?).into_any(),
            Token::Bin(bytes) => PyBytes::new(py, bytes).into_any(),
            Token::Array(count) => self.below(offset, |it| it.list(count))?,
            Token::Map(count) => self.below(offset, |it| it.map(count, offset))?,
            Token::Ext(code, body) => self.ext(code, body)?,
        })
    }

    /// One level deeper.
    fn below(
        &mut self,
        offset: usize,
        container: impl FnOnce(&mut Self) -> Built<'py>,
    ) -> Built<'py> {
        if self.depth >= wire::MAX_DEPTH {
            return Err(Error::TooDeep { offset }.into());
        }
        self.depth += 1;
        let built = container(self);
        self.depth -= 1;
        built
    }

    #[inline(never)] // see `value`
    fn list(&mut self, count: usize) -> Built<'py> {
        let list = PyList::empty(self.py);
        for index in 0..count {
            let item = self
                .value()
                .inspect_err(|_| self.path.push(index.to_string()))?;
            list.append(item)?;
        }
        Ok(list.into_any())
    }

    #[inline(never)] // see `value`
    fn map(&mut self, pairs: usize, offset: usize) -> Built<'py> {
        let start = self.cursor.clone();
        let planned = self.copies.len();
        let values_before = self.values;
        let dict = PyDict::new(self.py);
        let was_at_once = self.at_once;
        for index in 0..pairs {
            let key_offset = self.cursor.offset();
            let peek = self.cursor.clone();
            let key = match self.cursor.token()? {
                Token::Str(bytes) if bytes == wire::CHUNKED_MARKER.as_bytes() => {
                    // What was built of this map so far is dropped, and read as chunks.
                    // Writers put the marker first; only so much is read a second time.
                    self.read_again += self.values - values_before;
                    if self.read_again > MAX_READ_AGAIN {
                        let reason = "the marker of an array in chunks is not the first key";
                        return Err(Error::malformed(key_offset, reason).into());
                    }
                    self.copies.truncate(planned);
                    self.cursor = start;
                    self.at_once = was_at_once;
                    let chunked = ChunkedArray::parse(&mut self.cursor, pairs, offset)?;
                    return self.chunked(chunked);
                }
                Token::Str(bytes) => {
                    self.at_once |= index == 0 && bytes == wire::PRNG_MARKER.as_bytes();
                    self.keys.get(self.py, bytes, key_offset)?.into_any()
                }
                _ => {
                    self.cursor = peek;
                    self.value()?
                }
            };
            let value = self.value().inspect_err(|_| {
                self.path
                    .push(key.str().map_or_else(|_| "?".into(), |key| key.to_string()));
            })?;
            dict.set_item(key, value).map_err(|error| match error {
                error if error.is_instance_of::<PyTypeError>(self.py) => {
                    Error::malformed(key_offset, format!("a map key cannot be hashed: {error}"))
                        .into()
                }
                other => Box::from(other),
            })?;
        }
        let is_key = self.at_once && !was_at_once;
        self.at_once = was_at_once;
        if is_key && pairs == 2 {
            return self.prng_key(dict);
        }
        Ok(dict.into_any())
    }

    /// A typed PRNG key, if this is the state of one, or the dict itself.
    #[inline(never)]
    fn prng_key(&mut self, dict: Bound<'py, PyDict>) -> Built<'py> {
        let name = dict.get_item(wire::PRNG_MARKER)?;
        match (name, dict.get_item("data")?) {
            (Some(name), Some(data)) => {
                let key = self.hooks.wrap_key.bind(self.py).call1((name, data))?;
                Ok(if key.is_none() { dict.into_any() } else { key })
            }
            _ => Ok(dict.into_any()),
        }
    }

    #[inline(never)] // see `value`
    fn ext(&mut self, code: i8, body: &'a [u8]) -> Built<'py> {
        let py = self.py;
        let offset = self.cursor.offset() - body.len();
        match code {
            wire::EXT_NDARRAY => self.array(ArrayBody::parse(body, offset)?),
            wire::EXT_NPSCALAR => {
                // The scalar is taken out of its array, so the bytes must be there.
                let (at_once, copy) = (self.at_once, self.copy);
                (self.at_once, self.copy) = (true, CopyMode::Always);
                let array = ArrayBody::parse(body, offset)
                    .map_err(Box::from)
                    .and_then(|body| self.array(body));
                (self.at_once, self.copy) = (at_once, copy);
                Ok(array?.get_item(PyTuple::empty(py))?)
            }
            wire::EXT_COMPLEX => {
                let wire::Complex(real, imaginary) = wire::Complex::from_body(body, offset)?;
                Ok(PyComplex::from_doubles(py, real, imaginary).into_any())
            }
            _ => {
                let body = PyBytes::new(py, body);
                let made = self.hooks.make_ext.bind(py).call1((code, body));
                made.map_err(|error| match error {
                    error if error.is_instance_of::<PyValueError>(py) => {
                        let reason = format!("extension {code}: {}", error.value(py));
                        Error::malformed(offset, reason).into()
                    }
                    other => Box::from(other),
                })
            }
        }
    }

    fn array(&mut self, body: ArrayBody<'a>) -> Built<'py> {
        let dtype = self.dtype(body.dtype, body.offset)?;
        let itemsize = self.dtypes[dtype].itemsize;
        let dims = body
            .dims
            .resolve(body.payload.len(), itemsize, body.offset)?;
        self.place(dtype, &dims, &[body.payload], body.offset)
    }

    #[inline(never)] // see `value`
    fn chunked(&mut self, chunked: ChunkedArray<'a>) -> Built<'py> {
        let dtype = self.dtype(chunked.chunks[0].dtype, chunked.offset)?;
        let itemsize = self.dtypes[dtype].itemsize;
        let mut nbytes = 0;
        let mut payloads = Vec::with_capacity(chunked.chunks.len());
        for chunk in chunked.chunks {
            chunk
                .dims
                .resolve(chunk.payload.len(), itemsize, chunk.offset)?;
            nbytes += chunk.payload.len();
            payloads.push(chunk.payload);
        }
        let dims = chunked.dims.resolve(nbytes, itemsize, chunked.offset)?;
        self.place(dtype, &dims, &payloads, chunked.offset)
    }

    /// An array of the bytes of `payloads`: a view if it may and can be one.
    #[inline(never)]
    fn place(
        &mut self,
        dtype: usize,
        dims: &Dims,
        payloads: &[&'a [u8]],
        offset: usize,
    ) -> Built<'py> {
        if self.cursor.offset() - self.released > RELEASE_BYTES {
            (self.release)(self.released..self.cursor.offset());
            self.released = self.cursor.offset();
        }
        let dtype = &self.dtypes[dtype];
        if self.copy == CopyMode::Abstract {
            let shape = PyTuple::new(self.py, dims.as_slice())?;
            let abstract_array = self.hooks.abstract_array.bind(self.py);
            return Ok(abstract_array.call1((shape, &dtype.object))?);
        }
        if let [payload] = payloads
            && self.copy != CopyMode::Always
            && payload.as_ptr().addr().is_multiple_of(dtype.alignment)
        {
            return Ok(view(&dtype.object, dims.as_slice(), payload, self.owner)?);
        }
        let nbytes = payloads.iter().map(|payload| payload.len()).sum();
        if self.copy == CopyMode::Never && nbytes > 0 {
            return Err(Error::malformed(
                offset,
                "copy=False, but this array can only be had by a copy: its bytes are in \
                 several chunks, or not aligned for its dtype; pass copy=None",
            )
            .into());
        }
        if let [payload] = payloads
            && self.copy == CopyMode::IfNeeded
            && nbytes <= SmallCopies::MAX_BYTES
        {
            let (dtype, shape) = (&dtype.object, dims.as_slice());
            return Ok(self.small_copies.array(dtype, shape, payload)?);
        }
        let writable = self.copy == CopyMode::Always;
        let pages = self.fresh_pages.take(nbytes, self.cursor.left());
        let (dtype, shape) = (&dtype.object, dims.as_slice());
        let fresh = match pages {
            Some(pages) => FreshArray::over(pages, dtype, shape, nbytes, writable),
            None => FreshArray::new(dtype, shape, nbytes, writable),
        }?;
        Ok(match payloads {
            [payload] if self.at_once || nbytes < LATER_MIN_BYTES => fresh.fill(payload),
            _ if self.at_once => fresh.fill(&payloads.concat()),
            _ => self.copies.push(fresh, payloads.to_vec()),
        })
    }

    /// The index of the dtype in `self.dtypes`; looked up once for all its arrays.
    fn dtype(&mut self, name: &[u8], offset: usize) -> Result<usize, Box<Failure>> {
        if let Some(known) = self.dtypes.iter().position(|known| known.name == name) {
            return Ok(known);
        }
        if self.dtypes.len() == MAX_DTYPES {
            self.dtypes.clear();
        }
        let resolve = self.hooks.resolve_dtype.bind(self.py);
        let found = if name.len() > MAX_DTYPE_NAME {
            self.py.None().into_bound(self.py)
        } else {
            resolve.call1((PyBytes::new(self.py, name),))?
        };
        if found.is_none() {
            let name = String::from_utf8_lossy(&name[..name.len().min(MAX_DTYPE_NAME)]);
            let reason = format!("{name:?} is no dtype that an array can have");
            return Err(Error::malformed(offset, reason).into());
        }
        let object: Bound<'py, PyArrayDescr> = found.cast_into().map_err(PyErr::from)?;
        self.dtypes.push(Dtype {
            name: name.to_vec(),
            itemsize: object.itemsize(),
            alignment: object.alignment(),
            object,
        });
        Ok(self.dtypes.len() - 1)
    }
}

/// A dtype that was met, by the name it has in the input.
///
/// The name is a copy: to compare with the input would bring pages back that are released.
struct Dtype<'py> {
    name: Vec<u8>,
    object: Bound<'py, PyArrayDescr>,
    itemsize: usize,
    alignment: usize,
}

fn text(bytes: &[u8], offset: usize) -> Result<&str, Error> {
    std::str::from_utf8(bytes)
        .map_err(|error| Error::malformed(offset, format!("a string is not UTF-8: {error}")))
}

/// The bytes of a key, and the string they are.
type CachedKey<'py> = (SmallVec<[u8; 24]>, Bound<'py, PyString>);

/// Recently seen map keys, copied as dtype names are: the same few stand in every layer.
#[derive(Default)]
struct KeyCache<'py> {
    slots: Vec<Option<CachedKey<'py>>>,
}

impl<'py> KeyCache<'py> {
    const SLOTS: usize = 256;
    const MAX_LEN: usize = 64;

    #[inline]
    fn get(
        &mut self,
        py: Python<'py>,
        bytes: &[u8],
        offset: usize,
    ) -> Result<Bound<'py, PyString>, Error> {
        if bytes.len() > Self::MAX_LEN {
            return Ok(PyString::new(py, text(bytes, offset)?));
        }
        if self.slots.is_empty() {
            self.slots.resize_with(Self::SLOTS, || None);
        }
        // FNV-1a, which is short and good enough for a cache. Its low bits depend on all
        // bytes; the high ones hardly on the last, which is all that differs in `w0`, `w1`.
        let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        let slot = &mut self.slots[hash as usize % Self::SLOTS];
        if let Some((known, string)) = slot
            && known[..] == *bytes
        {
            return Ok(string.clone());
        }
        let string = PyString::new(py, text(bytes, offset)?);
        *slot = Some((SmallVec::from_slice(bytes), string.clone()));
        Ok(string)
    }
}
