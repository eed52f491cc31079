//! Python objects of events.
//!
//! An array becomes a view of the input wherever its payload is aligned for its
//! dtype. Where it must be copied, a small one is copied at once and a large one
//! with all others at the end, in parallel and detached.
//!
//! | file | what is there |
//! |---|---|
//! | `arrays.rs` | arrays |
//! | `keys.rs` | keys of maps |
//! | `like.rs` | the containers of a template around what is read |

mod arrays;
mod keys;
mod like;

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use smallvec::SmallVec;

use self::arrays::{Copies, copy_all};
use self::keys::KeyCache;
use super::build::Matching;
use super::dtypes::Dtype;
use super::failure::{Failure, Walked};
use super::hashes::Hashes;
use super::hooks::Hooks;
use super::memory::{
    FreshPages, Owned, SmallCopies, copied, new_bytes, new_complex, new_dict, new_float, new_int,
    new_list, new_string, new_uint,
};
use super::watch::{Signals, Watcher};
use crate::events::{Closed, Event, Reader, Span};
use crate::source::{Source, read_to};
use crate::{Error, parallel, sniff, wire};

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

/// The tree that a part of a source encodes. Arrays can be views of `memory`, which is all of the
/// source.
pub fn build<'py>(
    py: Python<'py>,
    source: &dyn Source,
    part: Range<usize>,
    memory: Option<Owned<'_, 'py>>,
    copy: CopyMode,
    threads: Option<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut parts = Parts::new(py, source, part.len(), memory, copy, threads)?;
    let tree = parts.read(part)?;
    parts.finish()?;
    Ok(tree)
}

/// Parts of a source that are read one by one, as `build` does it, each of which is one value.
pub struct Parts<'a, 'py>(Objects<'a, 'py>);

impl<'a, 'py> Parts<'a, 'py> {
    /// For parts of so many bytes in all.
    pub fn new(
        py: Python<'py>,
        source: &'a dyn Source,
        nbytes: usize,
        memory: Option<Owned<'a, 'py>>,
        copy: CopyMode,
        threads: Option<i64>,
    ) -> PyResult<Self> {
        let objects = Objects::new(py, source, 0..0, nbytes, memory, copy, threads);
        Ok(Self(objects?))
    }

    /// Python, which made the values.
    pub fn py(&self) -> Python<'py> {
        self.0.py
    }

    /// The value of a part. No other one can be read after an error.
    ///
    /// The bytes of large arrays are there after [`Self::finish`].
    pub fn read(&mut self, part: Range<usize>) -> PyResult<Bound<'py, PyAny>> {
        let Self(objects) = self;
        objects.reader.seek(part);
        let value = objects.value();
        let value = value.and_then(|value| Ok(objects.reader.finish().map(|()| value)?));
        value.map_err(|failure| {
            failure
                .map_core(|error| explain(error, objects.source))
                .into_py(objects.py, "restoring")
        })
    }

    /// Copies what was left to be copied.
    pub fn finish(self) -> PyResult<()> {
        self.0.copied(())
    }
}

/// The tree as `build` makes it, around which the containers of a template are built; nothing if
/// the tree is not just like the template.
pub fn build_like<'py>(
    template: &Bound<'py, PyAny>,
    matching: &Matching<'py>,
    source: &dyn Source,
    memory: Option<Owned<'_, 'py>>,
    copy: CopyMode,
    threads: Option<i64>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = template.py();
    let whole = 0..source.len();
    let mut objects = Objects::new(py, source, whole, source.len(), memory, copy, threads)?;
    match objects.root_like(template, matching) {
        Ok(Some(tree)) if objects.reader.finish().is_ok() => objects.copied(tree).map(Some),
        Err(failure) if objects.interrupted || failure.must_be_raised(py) => {
            Err(failure.into_py(py, "restoring"))
        }
        // What is wrong is told when all is read once more.
        _ => Ok(None),
    }
}

impl<'a, 'py> Objects<'a, 'py> {
    fn new(
        py: Python<'py>,
        source: &'a dyn Source,
        part: Range<usize>,
        nbytes: usize,
        memory: Option<Owned<'a, 'py>>,
        copy: CopyMode,
        threads: Option<i64>,
    ) -> PyResult<Self> {
        parallel::threads(threads, 0, 1)?; // a number that makes no sense is always told
        Ok(Self {
            py,
            threads,
            hooks: Hooks::get(py)?,
            source,
            memory,
            copy,
            dtypes: Vec::new(),
            fresh_pages: FreshPages::new(nbytes),
            reader: Reader::within(source, part),
            keys: KeyCache::default(),
            resolved: ([usize::MAX; 4], SmallVec::new()),
            copies: Vec::new(),
            small_copies: SmallCopies::default(),
            at_once: false,
            signals: Signals::new(),
            interrupted: false,
        })
    }

    /// A tree, once all its arrays have been copied.
    fn copied<T>(self, tree: T) -> PyResult<T> {
        if self.copies.is_empty() {
            return Ok(tree);
        }
        let watcher = Watcher::signals();
        copy_all(self.py, self.source, self.copies, self.threads, &watcher)
            .map_err(|error| watcher.explain(error, PyErr::from))?;
        Ok(tree)
    }
}

/// Sets an item of a dict, unless too many keys in it have the same hash.
#[inline(never)] // see `value`
fn set_hashed<'py>(
    dict: &Bound<'py, PyDict>,
    key: &Bound<'py, PyAny>,
    value: Bound<'py, PyAny>,
    hashes: &mut Option<Box<Hashes>>,
) -> Walked {
    let before = dict.len();
    dict.set_item(key, value)?;
    if dict.len() > before {
        hashes.get_or_insert_default().add(key)?;
    }
    Ok(())
}

/// Adds what the data seems to be instead of msgpack.
pub fn explain(error: Error, source: &dyn Source) -> Error {
    let (error, path) = error.split();
    let error = explain_here(error, source);
    match path {
        Some(path) => Error::At {
            path,
            error: Box::new(error),
        },
        None => error,
    }
}

fn explain_here(error: Error, source: &dyn Source) -> Error {
    if let (Some(offset), true) = (error.offset(), source.is_empty()) {
        return Error::malformed(offset, "the data is empty (0 bytes)");
    }
    let mut start = Vec::new();
    let len = source.len().min(sniff::ENOUGH_BYTES);
    if read_to(source, 0..len, &mut start).is_err() {
        return error;
    }
    match (error.offset(), sniff::describe(&start)) {
        (Some(offset), Some(what)) => Error::malformed(
            offset,
            format!("the data looks like {what}; {}", error.reason()),
        ),
        _ => error,
    }
}

type Built<'py> = Walked<Bound<'py, PyAny>>;

struct Objects<'a, 'py> {
    py: Python<'py>,
    hooks: &'static Hooks,
    source: &'a dyn Source,
    memory: Option<Owned<'a, 'py>>,
    copy: CopyMode,
    threads: Option<i64>,
    reader: Reader<'a>,
    keys: KeyCache<'py>,
    /// By the numbers of their names.
    dtypes: Vec<Option<Arc<Dtype>>>,
    /// The shape that was resolved last: of which dimensions (their start and number) and dtype,
    /// and of how many bytes.
    resolved: ([usize; 4], SmallVec<[usize; 6]>),
    copies: Copies<'py>,
    small_copies: SmallCopies<'py>,
    fresh_pages: FreshPages,
    /// The arrays here are read by Python before the end, so copy them at once.
    at_once: bool,
    signals: Signals,
    /// Whether a signal has raised something.
    interrupted: bool,
}

impl<'py> Objects<'_, 'py> {
    #[inline]
    fn check_signals(&mut self) -> Walked {
        self.signals.check(self.py).map_err(|error| {
            self.interrupted = true;
            error.into()
        })
    }

    /// The next value. This and what it calls for containers is the recursion, which
    /// must not need much of the stack: what is inlined here counts at every level.
    fn value(&mut self) -> Built<'py> {
        self.check_signals()?;
        let event = self.reader.next()?;
        self.object(event)
    }

    /// The object for an event, with all that is in it.
    #[inline]
    fn object(&mut self, event: Event) -> Built<'py> {
        let py = self.py;
        Ok(match event {
            Event::Array(number) => self.array(number, self.copy)?,
            Event::Map(map) => self.map(map.len)?,
            Event::List(list) => self.list(list.len)?,
            Event::Nil => py.None().into_bound(py),
            Event::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
            Event::Int(value) => new_int(py, value)?.into_any(),
            Event::Uint(value) => new_uint(py, value)?.into_any(),
            Event::Float(value) => new_float(py, value)?.into_any(),
            Event::Str(text) => new_string(py, self.reader.events().text_bytes(text))?.into_any(),
            _ => self.rare(event)?,
        })
    }

    #[inline(never)] // see `value`
    fn rare(&mut self, event: Event) -> Built<'py> {
        let py = self.py;
        Ok(match event {
            Event::Complex(number) => {
                let (real, imaginary) = self.reader.events().complex(number);
                new_complex(py, real, imaginary)?.into_any()
            }
            Event::Bin(span) => self.bytes(span)?,
            Event::Scalar(number) => {
                // The scalar is taken out of its array, so the bytes must be there.
                let at_once = std::mem::replace(&mut self.at_once, true);
                let array = self.array(number, CopyMode::Always);
                self.at_once = at_once;
                array?.get_item(PyTuple::empty(py))?
            }
            Event::Ext(code, span) => {
                let body = self.bytes(span)?;
                let made = self.hooks.make_ext.bind(py).call1((code, body));
                made.map_err(|error| {
                    if error.is_instance_of::<PyValueError>(py) {
                        let reason = format!("extension {code}: {}", error.value(py));
                        Box::from(Error::malformed(span.start, reason))
                    } else {
                        Box::from(error)
                    }
                })?
            }
            _ => return Err(Failure::structure("an event that begins nothing")),
        })
    }

    /// A copy of bytes of the source.
    fn bytes(&self, span: Span) -> Built<'py> {
        if let Some(memory) = self.source.stable() {
            return Ok(copied(self.py, &memory[span.range()])?.into_any());
        }
        let made = new_bytes(self.py, span.len as usize, false, |target| {
            self.source.read_at(span.start, target)
        })?;
        Ok(made?.into_any())
    }

    #[inline(never)] // see `value`
    fn list(&mut self, len: u32) -> Built<'py> {
        let made = new_list(self.py)?;
        for index in 0..len {
            let item = self
                .value()
                .map_err(|failure| failure.below(index.to_string()))?;
            made.append(item)?;
        }
        self.reader.close()?;
        Ok(made.into_any())
    }

    #[inline(never)] // see `value`
    fn map(&mut self, pairs: u32) -> Built<'py> {
        let planned = self.copies.len();
        let was_at_once = self.at_once;
        let dict = new_dict(self.py)?;
        let mut hashes = None;
        for index in 0..pairs {
            let key = self.reader.next()?;
            let object = if let Event::Str(text) = key {
                let text = self.reader.events().text_bytes(text);
                self.at_once |= index == 0 && text == wire::PRNG_MARKER.as_bytes();
                // Keys of one map differ: a large one would only drive out all others.
                if pairs > KeyCache::SLOTS {
                    new_string(self.py, text)?.into_any()
                } else {
                    self.keys.get(self.py, text)?.into_any()
                }
            } else {
                self.object(key)?
            };
            let value = self
                .value()
                .map_err(|failure| failure.below(self.reader.events().key_text(key)))?;
            // Complex keys are few (see `events/extensions.rs`) and quick to compare.
            if matches!(key, Event::Str(_) | Event::Complex(_)) || pairs as usize <= Hashes::MOST {
                dict.set_item(object, value)?;
            } else {
                set_hashed(&dict, &object, value, &mut hashes)?;
            }
        }
        self.at_once = was_at_once;
        match self.reader.close()? {
            Closed::Same => Ok(dict.into_any()),
            Closed::PrngKey => self.prng_key(dict),
            Closed::Array(number) => {
                // What was made of its parts is not needed.
                self.copies.truncate(planned);
                self.array(number, self.copy)
            }
        }
    }

    /// A typed PRNG key, or the dict if there is no such implementation.
    #[inline(never)]
    fn prng_key(&mut self, dict: Bound<'py, PyDict>) -> Built<'py> {
        let name = dict.get_item(wire::PRNG_MARKER)?;
        if let (Some(name), Some(data)) = (name, dict.get_item("data")?) {
            let key = self.hooks.wrap_key.bind(self.py).call1((name, data))?;
            if !key.is_none() {
                return Ok(key);
            }
        }
        Ok(dict.into_any())
    }
}
