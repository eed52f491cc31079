//! Containers, and the choice of what a value is.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyList, PyString, PyTuple,
};
use serde_bytes::ByteBuf;

use super::super::errors;
use super::super::memory::dict_next;
use super::super::value;
use super::walk::{Class, Failure, Place, Walk, Walked};
use crate::structure::{Kind, NodeType, ROOT_KEY, TRAILER_KEY};
use crate::wire::{self, Head};

impl<'py> Walk<'_, 'py> {
    /// Writes `value`, after its map key if that is still to be written. This and what it
    /// calls for containers is the recursion, which must not need much of the stack: what is
    /// inlined here counts at every level.
    pub fn value(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let class = value.get_type_ptr();
        let types = &self.types;
        let overridden = &self.options.overridden;
        if !overridden.is_empty() && overridden.iter().any(|t| t.as_type_ptr() == class) {
            return self.node(value, key, place);
        }
        if class == types.dict {
            return self.dict(value.cast()?, key, place);
        } else if class == types.list {
            return self.sequence(value.cast::<PyList>()?.iter(), Kind::List, key, place);
        } else if class == types.tuple {
            return self.sequence(value.cast::<PyTuple>()?.iter(), Kind::Tuple, key, place);
        } else if class == types.array {
            self.array(value.cast()?, wire::EXT_NDARRAY, key, place)?;
        } else if class == types.string {
            self.key(key)?;
            self.string(value.cast()?)?;
        } else if class == types.bool {
            self.key(key)?;
            let marker = if value.cast::<PyBool>()?.is_true() {
                rmp::Marker::True
            } else {
                rmp::Marker::False
            };
            self.out.headers().push(marker.to_u8());
        } else if class == types.int {
            self.key(key)?;
            self.int(value)?;
        } else if class == types.float {
            self.key(key)?;
            let bits = value.cast::<PyFloat>()?.value().to_be_bytes();
            self.out.headers().push(rmp::Marker::F64.to_u8());
            self.out.headers().extend_from_slice(&bits);
        } else if value.is_none() {
            self.key(key)?;
            self.out.headers().push(rmp::Marker::Null.to_u8());
        } else if class == types.bytes {
            self.key(key)?;
            self.bytes(value.cast()?)?;
        } else if class == types.complex {
            self.key(key)?;
            let value = value.cast::<PyComplex>()?;
            let body = wire::Complex(value.real(), value.imag()).to_body();
            self.ext(wire::EXT_COMPLEX, &body)?;
        } else {
            let class = self.classify(value)?;
            return match class {
                Class::Ext | Class::Node if self.recorder.is_some() => {
                    self.typed_node(value, key, place)
                }
                Class::Ext if !place.state => self.other(class, value, key, place),
                Class::Ext | Class::Node if self.options.state_dict => self.node(value, key, place),
                _ => self.other(class, value, key, place),
            };
        }
        self.plain();
        Ok(())
    }

    /// Takes down a leaf that reads back as it was.
    #[inline]
    fn plain(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.plain();
        }
    }

    /// Takes down a leaf of another kind.
    #[inline(never)] // see `value`
    fn leaf(&mut self, kind: Kind) {
        if let Some(recorder) = &mut self.recorder {
            recorder.leaf(kind);
        }
    }

    /// A container begins.
    fn open(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.open();
        }
    }

    /// The container that began last ends.
    #[inline(never)] // see `value`
    fn close(&mut self, kind: Kind) {
        if let Some(recorder) = &mut self.recorder {
            recorder.close(kind);
        }
    }

    /// Writes a tree, and at the end its structure.
    pub fn described(&mut self, tree: &Bound<'py, PyAny>, place: Place) -> Walked {
        if self.is_container(tree)? {
            self.more_pairs = 1;
            self.value(tree, None, place)?;
        } else {
            Head::Map(2).write(self.out.headers());
            self.value(tree, Some(ROOT_KEY), place)?;
        }
        if let Some(recorder) = self.recorder.take() {
            let trailer = recorder.finish(self.options.metadata.clone()).encode();
            self.key(Some(TRAILER_KEY))?;
            Head::Bin(wire::length("structure", trailer.len())?).write(self.out.headers());
            self.out.headers().extend_from_slice(&trailer);
        }
        Ok(())
    }

    /// Whether a value is written as a map, and no leaf.
    fn is_container(&mut self, value: &Bound<'py, PyAny>) -> Walked<bool> {
        let class = value.get_type_ptr();
        let types = &self.types;
        let leaves = [
            types.string,
            types.bytes,
            types.int,
            types.float,
            types.bool,
        ];
        if [types.dict, types.list, types.tuple].contains(&class) {
            return Ok(true);
        }
        if leaves.contains(&class) || class == types.complex || value.is_none() {
            return Ok(false);
        }
        Ok(matches!(self.classify(value)?, Class::Node | Class::Ext))
    }

    /// A leaf of a type that only Python knows.
    #[inline(never)] // see `value`
    fn other(
        &mut self,
        class: Class,
        value: &Bound<'py, PyAny>,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        let py = self.py;
        match class {
            Class::Array => {
                self.array(value.cast()?, wire::EXT_NDARRAY, key, place)?;
                self.plain();
            }
            Class::Scalar => {
                let array = py
                    .import(intern!(py, "numpy"))?
                    .call_method1(intern!(py, "asarray"), (value,))?;
                self.array(array.cast()?, wire::EXT_NPSCALAR, key, place)?;
                self.plain();
            }
            Class::JaxArray => {
                self.jax_array(value, key, place)?;
                self.leaf(Kind::Jax);
            }
            Class::PrngKey => {
                let recorder = self.recorder.take(); // its parts are no children
                self.prng_key(value, key, place)?;
                self.recorder = recorder;
                self.leaf(Kind::Jax);
            }
            Class::BytesLike => {
                self.key(key)?;
                let bytes = py.get_type::<PyBytes>().call1((value,))?;
                self.bytes(bytes.cast()?)?;
                self.leaf(if value.is_instance_of::<PyByteArray>() {
                    Kind::Bytearray
                } else {
                    Kind::Memoryview
                });
            }
            Class::Ext => {
                self.key(key)?;
                let code: i8 = value.getattr(intern!(py, "code"))?.extract()?;
                let data = value.getattr(intern!(py, "data"))?;
                self.ext(code, data.cast::<PyBytes>()?.as_bytes())?;
            }
            Class::Timestamp => {
                self.key(key)?;
                let data = value.call_method0(intern!(py, "to_bytes"))?;
                self.ext(wire::EXT_TIMESTAMP, data.cast::<PyBytes>()?.as_bytes())?;
                self.plain();
            }
            Class::Unsupported => {
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
    #[inline(never)] // see `value`
    fn node(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let place = place.below()?;
        let (state, fixed) = self.expand(value)?;
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

    /// The state of a container, and whether it is final.
    #[inline(never)] // see `value`
    fn expand(&self, value: &Bound<'py, PyAny>) -> Walked<(Bound<'py, PyAny>, bool)> {
        let answer = self.hooks.expand.bind(self.py).call1((value,))?;
        let (state, fixed): (Bound<'py, PyAny>, bool) = answer.extract()?;
        if state.is(value) {
            return Err(Failure::leaf(format!(
                "the handler of {} returns the object itself",
                errors::type_name(&value.get_type())
            )));
        }
        Ok((state, fixed))
    }

    /// A container that Python takes apart, whose type is recorded.
    #[inline(never)] // see `value`
    fn typed_node(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let (children, class, data) = self.reduce(value)?;
        self.open();
        self.pairs(&children, key, place.below()?)?;
        self.close(Kind::Typed(class, data));
        Ok(())
    }

    /// The children of a container by name, the number of its type, and its static data.
    #[inline(never)] // see `value`
    fn reduce(&mut self, value: &Bound<'py, PyAny>) -> Walked<(Bound<'py, PyDict>, u32, ByteBuf)> {
        let answer = self.hooks.reduce_node.bind(self.py).call1((value,));
        let answer = answer.map_err(|error| Box::new(self.unsupported(error)))?;
        let (name, fields, data, children) = answer.extract()?;
        let data: Bound<'py, PyBytes> = data;
        let class = NodeType { name, fields };
        let class = self.recorder.as_mut().map(|it| it.node_type(class));
        let data = ByteBuf::from(data.as_bytes());
        Ok((children, class.unwrap_or_default(), data))
    }

    /// What is raised for something that cannot be written, with its place in the tree.
    fn unsupported(&self, error: PyErr) -> Failure {
        if error.is_instance_of::<PyTypeError>(self.py) {
            Failure::Leaf(error.value(self.py).to_string())
        } else {
            Failure::Raised(error)
        }
    }

    fn dict(&mut self, dict: &Bound<'py, PyDict>, key: Option<&str>, place: Place) -> Walked {
        if self.options.sort_keys {
            return self.sorted_pairs(dict, key, place.below()?);
        }
        self.open();
        let all_strings = self.pairs(dict, key, place.below()?)?;
        if all_strings {
            self.close(Kind::Dict);
            return Ok(());
        }
        self.close_with_keys(dict)
    }

    /// The dict that began last ends, which has keys that are no strings.
    #[inline(never)] // see `value`
    fn close_with_keys(&mut self, dict: &Bound<'py, PyDict>) -> Walked {
        if self.recorder.is_some() {
            let keys = value::encode(dict.keys().as_any());
            let keys = keys.map_err(|error| Box::new(self.unsupported(error)))?;
            self.close(Kind::DictWithKeys(ByteBuf::from(keys)));
        }
        Ok(())
    }

    /// The header of a map for a container of so many children.
    fn map_head(&mut self, count: usize) -> Walked {
        let pairs = wire::length("map", count)?.checked_add(std::mem::take(&mut self.more_pairs));
        let pairs = pairs.ok_or(crate::Error::TooLarge {
            what: "map",
            len: count,
        })?;
        Head::Map(pairs).write(self.out.headers());
        Ok(())
    }

    /// The items of a dict; returns whether all keys are strings.
    fn pairs(
        &mut self,
        dict: &Bound<'py, PyDict>,
        key: Option<&str>,
        below: Place,
    ) -> Walked<bool> {
        self.key(key)?;
        let count = dict.len();
        self.map_head(count)?;
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
            return Err(changed("dictionary").into());
        }
        Ok(all_strings)
    }

    /// The items of a dict in the order of their keys; never with a structure.
    #[inline(never)] // see `value`
    fn sorted_pairs(
        &mut self,
        dict: &Bound<'py, PyDict>,
        key: Option<&str>,
        below: Place,
    ) -> Walked {
        self.key(key)?;
        self.map_head(dict.len())?;
        for (key, value) in sorted_items(dict)? {
            self.pair(&key, &value, below)?;
        }
        Ok(())
    }

    fn pair(&mut self, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>, place: Place) -> Walked {
        let text = if key.get_type_ptr() == self.types.string {
            key.cast::<PyString>()?.clone()
        } else if place.state {
            key.str()?
        } else {
            return self.pair_with_key(key, value, place);
        };
        let text = text.to_str()?;
        if text.starts_with("__") {
            self.check_key(text)?;
        }
        let done = self.value(value, Some(text), place);
        self.trace(done, || text.into())
    }

    /// A pair whose key is written as it is.
    #[inline(never)] // see `value`
    fn pair_with_key(
        &mut self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        place: Place,
    ) -> Walked {
        if key.is_instance_of::<PyTuple>() {
            return Err(Failure::leaf(format!(
                "cannot serialize the key {}: a key that is a tuple cannot be read back",
                key.repr()?
            )));
        }
        let done = self
            .value(key, None, place)
            .and_then(|()| self.value(value, None, place));
        self.trace(done, || {
            key.str().map_or_else(|_| "?".into(), |key| key.to_string())
        })
    }

    /// Refuses keys that have a meaning of their own; all of them begin with `__`.
    #[inline(never)] // see `value`
    fn check_key(&self, text: &str) -> Walked {
        let meaning = match text {
            wire::CHUNKED_MARKER => "arrays that are stored in chunks",
            TRAILER_KEY | ROOT_KEY | wire::PRNG_MARKER if self.recorder.is_some() => {
                "what treepack adds to a tree"
            }
            _ => return Ok(()),
        };
        Err(Failure::tree(format!(
            "the key {text:?} is reserved: it marks {meaning}"
        )))
    }

    #[inline(never)] // see `value`
    fn sequence(
        &mut self,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        kind: Kind,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        self.open();
        self.key(key)?;
        let mut place = place.below()?;
        let len = wire::length("list", items.len())?;
        if place.state {
            self.map_head(items.len())?;
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
            return Err(changed("list").into());
        }
        self.close(kind);
        Ok(())
    }

    /// Notes the key of a child that failed.
    fn trace(&mut self, done: Walked, key: impl FnOnce() -> String) -> Walked {
        if done.is_err() {
            self.path.push(key());
        }
        done
    }

    #[inline(never)] // see `value`
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

fn changed(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{what} changed size during iteration"))
}

/// The items of a dict in the order of their keys, or as they are if the keys
/// have no order among each other.
#[inline(never)] // see `value`
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
            let value = dict.get_item(&key)?.ok_or_else(|| changed("dictionary"))?;
            items.push((key, value));
        }
    }
    Ok(items)
}
