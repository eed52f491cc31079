//! Makes Python objects from single events.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use smallvec::SmallVec;

use super::super::content::Memory;
use super::super::dtypes::Dtype;
use super::super::failure::{Built, Failure, Walked};
use super::super::hashes::Hashes;
use super::super::hooks::Hooks;
use super::super::memory::{
    FreshArray, FreshPages, SmallCopies, copied, decoded, new_bytes, new_complex, new_dict,
    new_float, new_int, new_list, new_string, new_uint,
};
use super::super::options::{self, Int};
use super::super::watch::Signals;
use super::keys::KeyCache;
use crate::base::source::Source;
use crate::foreign::sniff::explain;
use crate::format::events::{Closed, Event, Events, Reader, Span};
use crate::{Error, format::wire};

/// How arrays are made; the first three are NumPy 2's `copy=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// `None`: views where possible.
    IfNeeded,
    /// `True`: writable arrays with their own memory.
    Always,
    /// `False`: views, or an error.
    Never,
    /// Only shapes and dtypes.
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

/// Arrays to fill, and the positions of their bytes in the source.
pub(super) type Copies<'py> = Vec<(FreshArray<'py>, SmallVec<[Span; 1]>)>;

/// Decodes values of a source one by one. Arrays can be views of `memory`.
pub struct Objects<'a, 'py> {
    pub py: Python<'py>,
    pub(super) hooks: &'static Hooks,
    pub(super) source: &'a dyn Source,
    pub(super) memory: Option<Memory<'a, 'py>>,
    /// Leaves that are not read, by their values in a catalog.
    pub given: Option<Bound<'py, PyDict>>,
    pub copy: CopyMode,
    /// Whether keys that are not strings become their texts, as in a catalog.
    pub(super) text_keys: bool,
    pub(super) threads: Option<Int>,
    pub(super) reader: Reader<'a>,
    /// The next event, if kept events are decoded.
    again: Option<usize>,
    pub(super) keys: KeyCache<'py>,
    /// By index of the name.
    pub(super) dtypes: Vec<Option<Arc<Dtype>>>,
    /// The last resolved shape, and its key: start and number of the dimensions, dtype, size in
    /// bytes.
    pub(super) resolved: ([usize; 4], SmallVec<[usize; 6]>),
    pub(super) copies: Copies<'py>,
    pub(super) small_copies: SmallCopies<'py>,
    pub(super) fresh_pages: FreshPages,
    /// Whether to copy arrays at once, because Python reads them before the end.
    pub(super) at_once: bool,
    pub signals: Signals<'py>,
}

impl<'a, 'py> Objects<'a, 'py> {
    /// Starts with `part`. `nbytes` is the size of all parts together.
    pub fn new(
        py: Python<'py>,
        source: &'a dyn Source,
        part: Range<usize>,
        nbytes: usize,
        memory: Option<Memory<'a, 'py>>,
        copy: CopyMode,
        threads: Option<Int>,
    ) -> PyResult<Self> {
        options::threads(threads, 0, 1)?; // rejects invalid numbers
        Ok(Self {
            py,
            threads,
            hooks: Hooks::get(py)?,
            source,
            memory,
            given: None,
            copy,
            text_keys: false,
            dtypes: Vec::new(),
            fresh_pages: FreshPages::new(nbytes),
            reader: Reader::within(source, part),
            again: None,
            keys: KeyCache::default(),
            resolved: ([usize::MAX; 4], SmallVec::new()),
            copies: Vec::new(),
            small_copies: SmallCopies::default(),
            at_once: false,
            signals: Signals::new(py),
        })
    }

    /// Decodes a part whose first event `check` accepts, see `whole`.
    pub fn read(
        &mut self,
        part: Range<usize>,
        check: impl FnOnce(&Events, Event) -> crate::Result<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.reader.seek(part);
        self.finished(|objects| {
            objects.signals.check(objects.py)?;
            let event = objects.reader.next()?;
            check(objects.reader.events(), event)?;
            objects.object(event)
        })
    }

    /// Decodes the current part, which is one value. Large arrays are filled by `copy_all`. After
    /// an error no other part can be read.
    pub fn whole(&mut self) -> PyResult<Bound<'py, PyAny>> {
        self.finished(Self::value)
    }

    fn finished(
        &mut self,
        decode: impl FnOnce(&mut Self) -> Built<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let value = decode(self);
        let value = value.and_then(|value| Ok(self.reader.finish().map(|()| value)?));
        value.map_err(|failure| {
            failure
                .map_core(|error| explain(error, self.source))
                .into_py(self.py, "restoring")
        })
    }

    /// Reads the events of the current part, for `kept`.
    pub(super) fn keep(&mut self) -> Walked {
        while self.reader.keep_next()? {
            self.signals.check(self.py)?;
        }
        Ok(())
    }
}

impl<'py> Objects<'_, 'py> {
    fn value(&mut self) -> Built<'py> {
        self.signals.check(self.py)?;
        let event = self.next()?;
        self.object(event)
    }

    #[inline]
    fn next(&mut self) -> crate::Result<Event> {
        let Some(at) = &mut self.again else {
            return self.reader.next();
        };
        *at += 1;
        Ok(self.reader.events().as_slice()[*at - 1])
    }

    /// Decodes the value that begins with a kept event.
    #[inline]
    pub(super) fn kept(&mut self, at: usize) -> Built<'py> {
        self.again = Some(at + 1);
        self.object(self.reader.events().as_slice()[at])
    }

    #[inline]
    pub(super) fn object(&mut self, event: Event) -> Built<'py> {
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
            Event::Str(text) => decoded(py, self.reader.events().text_bytes(text))?.into_any(),
            _ => self.rare(event)?,
        })
    }

    #[inline(never)]
    fn rare(&mut self, event: Event) -> Built<'py> {
        let py = self.py;
        Ok(match event {
            Event::Complex(number) => {
                let (real, imaginary) = self.reader.events().complex(number);
                new_complex(py, real, imaginary)?.into_any()
            }
            Event::Bin(span) => self.bytes(span)?,
            Event::PrngKey(map) => {
                let dict = self.map(map.len)?;
                self.prng_key(dict.cast_into()?)?
            }
            Event::Scalar(number) => {
                // The scalar is read from its array, which must have its bytes.
                let at_once = mem::replace(&mut self.at_once, true);
                let array = self.array(number, CopyMode::Always);
                self.at_once = at_once;
                array?.get_item(PyTuple::empty(py))?
            }
            Event::Ext(code, span) => {
                let body = self.bytes(span)?;
                let made = self
                    .hooks
                    .msgpack
                    .bind(py)
                    .call_method1(intern!(py, "make"), (code, body));
                made.map_err(|error| {
                    if error.is_instance_of::<PyValueError>(py) {
                        let reason = format!("extension {code}: {}", error.value(py));
                        Box::from(Error::malformed(span.start, reason))
                    } else {
                        Box::from(error)
                    }
                })?
            }
            _ => return Err(Failure::structure("an event does not begin a value")),
        })
    }

    fn bytes(&self, span: Span) -> Built<'py> {
        if let Some(memory) = self.source.stable() {
            return Ok(copied(self.py, &memory[span.range()])?.into_any());
        }
        let made = new_bytes(self.py, span.len as usize, false, |target| {
            self.source.read_at(span.start, target)
        })?;
        Ok(made?.into_any())
    }

    #[inline(never)]
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

    #[inline(never)]
    fn map(&mut self, pairs: u32) -> Built<'py> {
        let planned = self.copies.len();
        let was_at_once = self.at_once;
        let dict = new_dict(self.py)?;
        let mut hashes = None;
        for index in 0..pairs {
            let key = self.next()?;
            let object = if let Event::Str(text) = key {
                let text = self.reader.events().text_bytes(text);
                self.at_once |= index == 0 && text == wire::PRNG_MARKER.as_bytes();
                self.keys.get_of(self.py, text, pairs.into())?.into_any()
            } else if self.text_keys {
                new_string(self.py, &self.reader.key_text(key)?)?.into_any()
            } else {
                let object = self.object(key)?;
                if let Event::Ext(_, span) = key {
                    check_hash(&object, span.start)?;
                }
                object
            };
            let value = self.value().map_err(|failure| {
                let key = self.reader.events().key_text(key);
                if is_leaf(&dict, &key) {
                    failure.without_path()
                } else {
                    failure.below(key)
                }
            })?;
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
                // The objects of its parts are not needed.
                self.copies.truncate(planned);
                self.array(number, self.copy)
            }
        }
    }

    /// Makes a typed PRNG key; a dict if its implementation is unknown.
    #[inline(never)]
    fn prng_key(&mut self, dict: Bound<'py, PyDict>) -> Built<'py> {
        let name = dict.get_item(wire::PRNG_MARKER)?;
        if let (Some(name), Some(data)) = (name, dict.get_item("data")?) {
            let key = self.hooks.key.bind(self.py).call1((name, data))?;
            let key = key.call_method0(intern!(self.py, "wrapped"))?;
            if !key.is_none() {
                return Ok(key);
            }
        }
        Ok(dict.into_any())
    }
}

#[cold]
fn is_leaf(map: &Bound<'_, PyDict>, key: &str) -> bool {
    let markers = [wire::CHUNKED_MARKER, wire::PRNG_MARKER];
    let has = |marker: &&str| new_string(map.py(), marker).and_then(|marker| map.contains(marker));
    markers.contains(&key) || markers.iter().any(|marker| has(marker).unwrap_or(false))
}

/// Errors if a key cannot be hashed, such as a tuple of Orbax with a list in it.
#[inline(never)]
fn check_hash(key: &Bound<'_, PyAny>, offset: usize) -> Walked {
    key.hash().map(drop).map_err(|error| {
        if error.is_instance_of::<PyTypeError>(key.py()) {
            let reason = format!("a map key cannot be hashed: {}", error.value(key.py()));
            Box::from(Error::malformed(offset, reason))
        } else {
            Box::from(error)
        }
    })
}

/// Sets an item of a dict; errors if too many of its keys have the same hash.
#[inline(never)]
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
