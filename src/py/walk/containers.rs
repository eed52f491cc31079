//! Writes values by type, and containers: one recursion with a branch per kind.

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyMemoryView, PyString, PyTuple};

use super::super::classes::Class;
use super::super::errors;
use super::super::failure::{Built, Failure, Walked};
use super::super::hashes::check_unique_keys;
use super::super::memory::{dict_next, has_string_keys, write_alike};
use super::super::value;
use super::super::watch::Signals;
use super::state::{Position, Walk};
use crate::format::structure::Kind;
use crate::{base::grow, format::wire};

impl<'py> Walk<'py> {
    pub fn root(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        let state = self.options.state_dict;
        self.value(value, Position { state, depth: 0 })
    }

    /// Writes `value`.
    ///
    /// Functions of the recursion call only those that return a `Walked`: errors of the core and of
    /// Python in their frames would need twice the stack.
    pub fn value(&mut self, value: &Bound<'py, PyAny>, place: Position) -> Walked {
        if self.signals.count(1) {
            return self.value_after_signals(value, place);
        }
        let class = value.get_type_ptr();
        let overridden = &self.options.overridden;
        if !overridden.is_empty() && overridden.iter().any(|t| t.as_type_ptr() == class) {
            return self.node(value, place);
        }
        let py = self.py;
        if class == PyDict::type_object_raw(py) {
            self.dict(value.cast_exact()?, place)
        } else if class == self.array_type {
            self.plain_array(value)
        } else if class == PyList::type_object_raw(py) {
            self.sequence(value.cast_exact::<PyList>()?.iter(), Kind::List, place)
        } else if class == PyTuple::type_object_raw(py) {
            self.sequence(value.cast_exact::<PyTuple>()?.iter(), Kind::Tuple, place)
        } else if self.plain(value, class)? {
            Ok(())
        } else {
            self.by_class(value, place)
        }
    }

    #[inline(never)]
    fn by_class(&mut self, value: &Bound<'py, PyAny>, place: Position) -> Walked {
        match self.class(value)? {
            Class::Ext | Class::Node if self.out.is_described() => self.typed_node(value, place),
            Class::Code if self.out.is_described() => self.reduced(value, place),
            Class::Ext if !place.state => self.other(Class::Ext, value),
            Class::Ext | Class::Node if self.options.state_dict => self.node(value, place),
            class => self.other(class, value),
        }
    }

    #[cold]
    fn value_after_signals(&mut self, value: &Bound<'py, PyAny>, place: Position) -> Walked {
        self.signals.look(self.py)?;
        self.value(value, place)
    }

    #[inline(never)]
    fn class(&mut self, value: &Bound<'py, PyAny>) -> Walked<Class> {
        Ok(self.classes.of(value)?)
    }

    #[inline(never)]
    fn plain_array(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        self.array(value.cast()?, wire::EXT_NDARRAY)
    }

    #[inline(never)]
    fn other(&mut self, class: Class, value: &Bound<'py, PyAny>) -> Walked {
        let py = self.py;
        match class {
            Class::Array => self.array(value.cast()?, wire::EXT_NDARRAY)?,
            Class::Scalar => {
                let array = py
                    .import(intern!(py, "numpy"))?
                    .call_method1(intern!(py, "asarray"), (value,))?;
                self.array(array.cast()?, wire::EXT_NPSCALAR)?;
            }
            Class::Masked => {
                let masked = py.import(intern!(py, "numpy.ma"))?;
                if masked.call_method1("is_masked", (value,))?.is_truthy()? {
                    return self.other(Class::Unsupported, value);
                }
                self.array(self.in_order(value)?.cast()?, wire::EXT_NDARRAY)?;
            }
            Class::JaxArray => self.jax_array(value)?,
            Class::Deferred => self.deferred_array(value)?,
            Class::PrngKey => self.prng_key(value)?,
            Class::BytesLike if self.out.is_described() && has_format(value)? => {
                return self.other(Class::Unsupported, value);
            }
            Class::BytesLike => {
                let kind = if value.is_instance_of::<PyByteArray>() {
                    Kind::Bytearray
                } else {
                    Kind::Memoryview
                };
                let bytes = py.get_type::<PyBytes>().call1((value,))?;
                self.bytes(bytes.cast()?, kind)?;
            }
            Class::Ext => {
                let code: i8 = value.getattr(intern!(py, "code"))?.extract()?;
                let data = value.getattr(intern!(py, "data"))?;
                self.out.ext(code, data.cast::<PyBytes>()?.as_bytes())?;
            }
            Class::Timestamp => {
                let data = value.call_method0(intern!(py, "to_bytes"))?;
                let data = data.cast::<PyBytes>()?;
                self.out.ext(wire::EXT_TIMESTAMP, data.as_bytes())?;
            }
            Class::Unsupported | Class::Code => {
                let why = self.hooks.explain.bind(py).call1((value,))?;
                return Err(Failure::leaf(why.extract::<String>()?));
            }
            Class::Node => {
                return Err(Failure::leaf(format!(
                    "cannot serialize a {} here: msgpack_serialize takes dicts, lists, tuples \
                     and leaves; use to_bytes, or call to_state_dict on the tree first",
                    errors::type_name(&value.get_type())
                )));
            }
        }
        Ok(())
    }

    pub(super) fn dict(&mut self, dict: &Bound<'py, PyDict>, place: Position) -> Walked {
        if self.options.sort_keys {
            return self.sorted_pairs(dict, place.below()?);
        }
        let all_strings = self.pairs(dict, place.below()?)?;
        self.end_dict(dict, all_strings)
    }

    #[inline(never)]
    fn end_dict(&mut self, dict: &Bound<'py, PyDict>, all_strings: bool) -> Walked {
        let kind = if !all_strings && self.out.is_described() {
            let keys = value::encode_keys(&dict.keys());
            Kind::dict_with_keys(keys.map_err(|error| self.unsupported(error))?)
        } else {
            Kind::Dict
        };
        Ok(self.out.end(kind)?)
    }

    /// Starts a map with the items of a dict; returns whether all keys are strings.
    pub(super) fn pairs(&mut self, dict: &Bound<'py, PyDict>, below: Position) -> Walked<bool> {
        let count = dict.len();
        self.map(dict, count, below)?;
        let mut position = 0;
        let mut seen = 0;
        let mut all_strings = true;
        loop {
            seen += self.alike(dict, &mut position, count - seen)?;
            let Some((key, value)) = dict_next(dict, &mut position) else {
                break;
            };
            if below.state && all_strings && !key.is_exact_instance_of::<PyString>() {
                all_strings = false;
                check_keys(dict)?;
            }
            if seen == count {
                break;
            }
            self.pair(&key, &value, below)?;
            seen += 1;
        }
        if seen != count || dict.len() != count {
            return Err(changed("dictionary").into());
        }
        Ok(all_strings)
    }

    #[inline(never)]
    fn map(&mut self, dict: &Bound<'py, PyDict>, count: usize, below: Position) -> Walked {
        if !below.state && self.out.is_described() && !has_string_keys(dict) {
            Ok(self.out.map_of_values(count)?)
        } else {
            Ok(self.out.map(count)?)
        }
    }

    #[inline(never)]
    fn alike(
        &mut self,
        dict: &Bound<'py, PyDict>,
        position: &mut isize,
        most: usize,
    ) -> Walked<usize> {
        let mut written = 0;
        if let Some(last) = &self.last_small
            && last.is_repeated
            && last.code == wire::EXT_NDARRAY
            && self.problems.is_none()
            && self.options.overridden.is_empty()
        {
            while written < most {
                let some = (most - written).min(Signals::VALUES);
                let (out, headers) = (&mut self.out, &last.headers);
                let count = write_alike(out, headers, &last.alike, dict, position, some);
                self.signals.check_many(self.py, count)?;
                written += count;
                if count < some {
                    break;
                }
            }
        }
        Ok(written)
    }

    /// Never with a record.
    #[inline(never)]
    fn sorted_pairs(&mut self, dict: &Bound<'py, PyDict>, below: Position) -> Walked {
        let keys = sorted_keys(dict)?;
        self.out.map(keys.len())?;
        for key in keys {
            self.pair(&key, &item(dict, &key)?, below)?;
        }
        Ok(self.out.end(Kind::Dict)?)
    }

    pub(super) fn pair(
        &mut self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        place: Position,
    ) -> Walked {
        self.key(key, place)?;
        self.child(value, place, || text_of(key))
    }

    #[inline(never)]
    fn key(&mut self, key: &Bound<'py, PyAny>, place: Position) -> Walked {
        if let Ok(key) = key.cast_exact::<PyString>() {
            return Ok(self.out.key(key.to_str()?)?);
        } else if place.state {
            return Ok(self.out.key(key.str()?.to_str()?)?);
        } else if key.is_instance_of::<PyTuple>() {
            return Err(Failure::leaf(format!(
                "cannot serialize the key {}: a key that is a tuple cannot be read back",
                key.repr()?
            )));
        }
        self.value(key, place)
            .map_err(|failure| failure.below(text_of(key)))
    }

    #[inline]
    fn child(
        &mut self,
        value: &Bound<'py, PyAny>,
        place: Position,
        key: impl Fn() -> String,
    ) -> Walked {
        if self.problems.is_some() {
            return self.examined(value, place, key());
        }
        self.value(value, place)
            .map_err(|failure| failure.below(key()))
    }

    #[inline(never)]
    fn examined(&mut self, value: &Bound<'py, PyAny>, place: Position, key: String) -> Walked {
        let before = self.problems.as_ref().map_or(0, Vec::len);
        let mark = self.out.mark();
        if before >= Self::MAX_PROBLEMS {
            self.out.skip(mark);
            return Ok(()); // a tree that contains itself has no end of them
        }
        let done = self.value(value, place);
        if done.is_err() {
            self.out.skip(mark);
        }
        let problems = self.problems.get_or_insert_default();
        match done {
            Err(failure) if failure.must_be_raised(self.py) => return Err(failure.below(key)),
            Err(failure) => grow::push(problems, *failure)?,
            Ok(()) => {}
        }
        for failure in &mut problems[before..] {
            failure.push_outer(key.clone());
        }
        Ok(())
    }

    #[inline(never)]
    fn sequence(
        &mut self,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        kind: Kind,
        place: Position,
    ) -> Walked {
        let place = place.below()?;
        let len = items.len();
        self.start_sequence(len, place)?;
        let mut count = 0;
        for item in items {
            if count == len {
                return Err(changed("list").into());
            }
            if place.state {
                self.index(count)?;
            }
            self.child(&item, place, || count.to_string())?;
            count += 1;
        }
        if count != len {
            return Err(changed("list").into());
        }
        self.end(kind)
    }

    #[inline(never)]
    fn start_sequence(&mut self, len: usize, place: Position) -> Walked {
        let started = if place.state {
            self.out.map(len)
        } else {
            self.out.list(len)
        };
        Ok(started?)
    }

    #[inline(never)]
    fn index(&mut self, index: usize) -> Walked {
        // `to_string` took a quarter of the time of a list of numbers.
        Ok(self.out.key(itoa::Buffer::new().format(index))?)
    }

    #[inline(never)]
    pub(super) fn end(&mut self, kind: Kind) -> Walked {
        Ok(self.out.end(kind)?)
    }

    #[inline(never)]
    fn prng_key(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        let answer = self
            .hooks
            .key
            .bind(self.py)
            .call_method1(intern!(self.py, "of"), (value,))?;
        let (name, data): (Bound<'py, PyString>, Bound<'py, PyAny>) = answer.extract()?;
        self.split(value)?;
        self.out.prng_key(name.to_str()?)?;
        self.jax_array(&data)?;
        Ok(self.out.end(Kind::Dict)?)
    }
}

// Keeps the recursion's frames small.
#[inline(never)]
fn check_keys(dict: &Bound<'_, PyDict>) -> Walked {
    Ok(check_unique_keys(dict)?)
}

#[cold]
#[inline(never)]
fn text_of(key: &Bound<'_, PyAny>) -> String {
    key.str().map_or_else(|_| "?".into(), |key| key.to_string())
}

fn changed(container: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{container} changed size during iteration"))
}

/// Returns the keys in their order, unsorted if they cannot be compared.
#[inline(never)]
fn sorted_keys<'py>(dict: &Bound<'py, PyDict>) -> Walked<Bound<'py, PyList>> {
    let keys = dict.as_mapping().keys()?;
    match keys.sort() {
        Err(error) if error.is_instance_of::<PyException>(dict.py()) => {
            Ok(dict.as_mapping().keys()?)
        }
        sorted => Ok(sorted.map(|()| keys)?),
    }
}

#[inline(never)]
fn item<'py>(dict: &Bound<'py, PyDict>, key: &Bound<'py, PyAny>) -> Built<'py> {
    let item = dict.get_item(key)?;
    Ok(item.ok_or_else(|| changed("dictionary"))?)
}

/// Whether it is a view of other elements than bytes, or of several dimensions.
fn has_format(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(view) = value.cast::<PyMemoryView>() else {
        return Ok(false);
    };
    let format = view.getattr(intern!(view.py(), "format"))?;
    let ndim: usize = view.getattr(intern!(view.py(), "ndim"))?.extract()?;
    let elements = format
        .extract::<&str>()?
        .trim_start_matches(['<', '>', '=', '@', '!']);
    Ok(ndim != 1 || !["B", "c"].contains(&elements))
}
