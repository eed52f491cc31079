//! Containers, and the choice of what a value is.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyList, PyString, PyTuple};

use super::super::errors;
use super::super::memory::dict_next;
use super::walk::{Class, Failure, Place, Walk, Walked};
use crate::wire::{self, Head};

impl<'py> Walk<'_, 'py> {
    /// Writes `value`, after its map key if that is still to be written.
    pub fn value(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let class = value.get_type_ptr();
        let types = &self.types;
        let overridden = &self.options.overridden;
        if !overridden.is_empty() && overridden.iter().any(|t| t.as_type_ptr() == class) {
            return self.node(value, key, place);
        }
        if class == types.array {
            self.array(value.cast()?, wire::EXT_NDARRAY, key, place)
        } else if class == types.dict {
            self.dict(value.cast()?, key, place)
        } else if class == types.list {
            self.sequence(value.cast::<PyList>()?.iter(), key, place)
        } else if class == types.tuple {
            self.sequence(value.cast::<PyTuple>()?.iter(), key, place)
        } else if class == types.string {
            self.key(key)?;
            self.string(value.cast()?)
        } else if class == types.bool {
            self.key(key)?;
            let marker = if value.cast::<PyBool>()?.is_true() {
                rmp::Marker::True
            } else {
                rmp::Marker::False
            };
            self.out.headers().push(marker.to_u8());
            Ok(())
        } else if class == types.int {
            self.key(key)?;
            self.int(value)
        } else if class == types.float {
            self.key(key)?;
            let bits = value.cast::<PyFloat>()?.value().to_be_bytes();
            self.out.headers().push(rmp::Marker::F64.to_u8());
            self.out.headers().extend_from_slice(&bits);
            Ok(())
        } else if value.is_none() {
            self.key(key)?;
            self.out.headers().push(rmp::Marker::Null.to_u8());
            Ok(())
        } else if class == types.bytes {
            self.key(key)?;
            self.bytes(value.cast()?)
        } else if class == types.complex {
            self.key(key)?;
            let value = value.cast::<PyComplex>()?;
            let body = wire::Complex(value.real(), value.imag()).to_body();
            self.ext(wire::EXT_COMPLEX, &body)
        } else {
            self.other(value, key, place)
        }
    }

    /// A value of a type that only Python knows.
    fn other(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let py = self.py;
        match self.classify(value)? {
            Class::Array => self.array(value.cast()?, wire::EXT_NDARRAY, key, place),
            Class::Scalar => {
                let array = py
                    .import(intern!(py, "numpy"))?
                    .call_method1(intern!(py, "asarray"), (value,))?;
                self.array(array.cast()?, wire::EXT_NPSCALAR, key, place)
            }
            Class::JaxArray => self.jax_array(value, key, place),
            Class::PrngKey => self.prng_key(value, key, place),
            Class::BytesLike => {
                self.key(key)?;
                let bytes = py.get_type::<PyBytes>().call1((value,))?;
                self.bytes(bytes.cast()?)
            }
            Class::Ext if !place.state => {
                self.key(key)?;
                let code: i8 = value.getattr(intern!(py, "code"))?.extract()?;
                let data = value.getattr(intern!(py, "data"))?;
                self.ext(code, data.cast::<PyBytes>()?.as_bytes())
            }
            Class::Timestamp => {
                self.key(key)?;
                let data = value.call_method0(intern!(py, "to_bytes"))?;
                self.ext(wire::EXT_TIMESTAMP, data.cast::<PyBytes>()?.as_bytes())
            }
            Class::Ext | Class::Node if self.options.state_dict => self.node(value, key, place),
            Class::Unsupported => {
                let why = self.hooks.explain.bind(py).call1((value,))?;
                Err(Failure::leaf(why.extract::<String>()?))
            }
            _ => Err(Failure::leaf(format!(
                "cannot serialize a {} here: msgpack_serialize takes dicts, lists, tuples and \
                 leaves; use to_bytes, or call to_state_dict on the tree first",
                errors::type_name(&value.get_type())
            ))),
        }
    }

    fn classify(&mut self, value: &Bound<'py, PyAny>) -> Walked<Class> {
        let class = value.get_type();
        if let Some((_, known)) = self.classes.iter().find(|(known, _)| known.is(&class)) {
            return Ok(*known);
        }
        let number: usize = self
            .hooks
            .classify
            .bind(self.py)
            .call1((value,))?
            .extract()?;
        let answer = *Class::ALL
            .get(number)
            .ok_or_else(|| PyRuntimeError::new_err(format!("classify returned {number}")))?;
        self.classes.push((class, answer));
        Ok(answer)
    }

    /// A container that Python expands to its state.
    fn node(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let place = place.below()?;
        let answer = self.hooks.expand.bind(self.py).call1((value,))?;
        let (state, fixed): (Bound<'py, PyAny>, bool) = answer.extract()?;
        if state.is(value) {
            return Err(Failure::leaf(format!(
                "the handler of {} returns the object itself",
                errors::type_name(&value.get_type())
            )));
        }
        let place = Place {
            state: !fixed,
            ..place
        };
        match state.cast_exact::<PyDict>() {
            // A dict here is the state itself, even if dict has a handler.
            Ok(state) => self.dict(state, key, place),
            Err(_) => self.value(&state, key, place),
        }
    }

    fn dict(&mut self, dict: &Bound<'py, PyDict>, key: Option<&str>, place: Place) -> Walked {
        self.key(key)?;
        let below = place.below()?;
        let count = dict.len();
        Head::Map(wire::length("map", count)?).write(self.out.headers());
        if self.options.sort_keys {
            for (key, value) in sorted_items(dict)? {
                self.pair(&key, &value, below)?;
            }
            return Ok(());
        }
        let mut position = 0;
        let mut seen = 0;
        let mut all_strings = true;
        while let Some((key, value)) = dict_next(dict, &mut position) {
            if below.state && all_strings && key.get_type_ptr() != self.types.string {
                all_strings = false;
                self.hooks.check_unique_keys.bind(self.py).call1((dict,))?;
            }
            self.pair(&key, &value, below)?;
            seen += 1;
            if dict.len() != count || seen > count {
                break;
            }
        }
        if seen != count || dict.len() != count {
            return Err(PyRuntimeError::new_err("dictionary changed size during iteration").into());
        }
        Ok(())
    }

    fn pair(&mut self, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>, place: Place) -> Walked {
        let text = if key.get_type_ptr() == self.types.string {
            key.cast::<PyString>()?.clone()
        } else if place.state {
            key.str()?
        } else if key.is_instance_of::<PyTuple>() {
            return Err(Failure::leaf(format!(
                "cannot serialize the key {}: a key that is a tuple cannot be read back",
                key.repr()?
            )));
        } else {
            let name = || key.str().map_or_else(|_| "?".into(), |key| key.to_string());
            let done = self
                .value(key, None, place)
                .and_then(|()| self.value(value, None, place));
            return self.trace(done, name);
        };
        let text = text.to_str()?;
        if text == wire::CHUNKED_MARKER {
            return Err(Failure::tree(format!(
                "the key {text:?} is reserved: it marks arrays that are stored in chunks"
            )));
        }
        let done = self.value(value, Some(text), place);
        self.trace(done, || text.into())
    }

    fn sequence(
        &mut self,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        self.key(key)?;
        let mut place = place.below()?;
        let len = wire::length("list", items.len())?;
        if place.state {
            Head::Map(len).write(self.out.headers());
        } else {
            Head::Array(len).write(self.out.headers());
            place.in_list = true;
        }
        let mut count = 0;
        for item in items {
            let done = if place.state {
                self.value(&item, Some(&count.to_string()), place)
            } else {
                self.value(&item, None, place)
            };
            self.trace(done, || count.to_string())?;
            count += 1;
        }
        if count != len {
            return Err(PyRuntimeError::new_err("list changed size during iteration").into());
        }
        Ok(())
    }

    /// Notes the key of a child that failed.
    fn trace(&mut self, done: Walked, key: impl FnOnce() -> String) -> Walked {
        if done.is_err() {
            self.path.push(key());
        }
        done
    }

    fn prng_key(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        self.key(key)?;
        let answer = self.hooks.unwrap_key.bind(self.py).call1((value,))?;
        let (name, data): (Bound<'py, PyString>, Bound<'py, PyAny>) = answer.extract()?;
        Head::Map(2).write(self.out.headers());
        self.key(Some(wire::PRNG_MARKER))?;
        self.string(&name)?;
        self.value(&data, Some("data"), place)
    }
}

/// The items of a dict in the order of their keys, or as they are if the keys
/// have no order among each other.
fn sorted_items<'py>(
    dict: &Bound<'py, PyDict>,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let mut items: Vec<_> = dict.iter().collect();
    if items
        .iter()
        .all(|(key, _)| key.is_exact_instance_of::<PyString>())
    {
        // Python compares strings by code point, which is how their UTF-8 bytes compare.
        let mut keyed = Vec::with_capacity(items.len());
        for (key, value) in &items {
            keyed.push((key.cast::<PyString>()?.to_str()?, key, value));
        }
        keyed.sort_unstable_by_key(|(text, ..)| *text);
        return Ok(keyed
            .into_iter()
            .map(|(_, key, value)| (key.clone(), value.clone()))
            .collect());
    }
    let keys = dict.keys();
    if keys.sort().is_ok() {
        items.clear();
        for key in keys {
            let value = dict.get_item(&key)?.ok_or_else(|| {
                PyRuntimeError::new_err("dictionary changed size during iteration")
            })?;
            items.push((key, value));
        }
    }
    Ok(items)
}
