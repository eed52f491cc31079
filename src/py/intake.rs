//! The walk over a Python tree that makes a layout of it.
//!
//! Dicts, lists, tuples and plain leaves are walked natively; anything else is
//! put to the hooks: first `classify`, once a type, then `expand` for containers.
//! Array bytes are not touched. Arrays of jax are only noted, so that all host
//! copies are started before the first is waited for.

use std::borrow::Cow;

use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};
use pyo3::{PyTypeInfo, ffi, intern};

use super::hooks::Hooks;
use super::memory::{Borrowed, dict_next};
use super::{errors, memory};
use crate::Error;
use crate::array::{self, Array, Framing};
use crate::layout::{Layout, LayoutBuilder};
use crate::wire::{self, Head};

/// Blobs and arrays of at most so many bytes are copied among the headers: a
/// piece of their own would take more room.
const INLINE_MAX_BYTES: usize = 64;

/// How a tree is to be walked.
pub struct Options<'py> {
    /// Write state dicts: lists as maps, keys as strings, containers expanded.
    pub state_dict: bool,
    /// Sort the keys of dicts.
    pub sort_keys: bool,
    /// How arrays are framed.
    pub framing: Framing,
    /// Types that are walked natively otherwise, but have handlers now.
    pub overridden: Vec<Bound<'py, PyType>>,
}

/// The layout of `tree`.
pub fn intake(tree: &Bound<'_, PyAny>, options: &Options<'_>) -> PyResult<Layout<Borrowed>> {
    let py = tree.py();
    let mut walk = Walk {
        py,
        hooks: Hooks::get(py)?,
        types: Types::new(py),
        options,
        out: LayoutBuilder::default(),
        dtypes: Vec::new(),
        classes: Vec::new(),
        on_device: Vec::new(),
        path: Vec::new(),
    };
    let place = Place {
        state: options.state_dict,
        in_list: false,
        depth: 0,
    };
    let done = walk.value(tree, None, place).and_then(|()| walk.fetch());
    match done {
        Ok(()) => Ok(walk.out.finish()),
        Err(failure) => Err(failure.into_py(py, &mut walk.path)),
    }
}

/// What stops a walk; the path is collected while it unwinds.
enum Failure {
    Core(Error),
    Raised(PyErr),
    /// A leaf that cannot be written, and why.
    Leaf(String),
    /// A tree that cannot be written, and why.
    Tree(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<pyo3::CastError<'_, '_>> for Failure {
    fn from(error: pyo3::CastError<'_, '_>) -> Self {
        Self::Raised(error.into())
    }
}

impl Failure {
    fn into_py(self, py: Python<'_>, path: &mut Vec<String>) -> PyErr {
        path.push(".".into());
        path.reverse();
        let path = path.join("/");
        match self {
            Self::Core(error) => errors::to_py(py, error, Some(&path)),
            Self::Leaf(why) => errors::make(py, "UnserializableLeafError", (why, path)),
            Self::Tree(why) => errors::make(py, "TreepackError", (format!("at {path}: {why}"),)),
            Self::Raised(error) => {
                // Best effort: the error itself says what is wrong.
                let note = format!("treepack: while serializing {path}");
                let _ = error
                    .value(py)
                    .call_method1(intern!(py, "add_note"), (note,));
                error
            }
        }
    }
}

type Walked<T = ()> = Result<T, Failure>;

/// Where in the tree the walk is.
#[derive(Clone, Copy)]
struct Place {
    /// Below here lists become maps and keys strings. Not so below the state
    /// that a handler returned: that is final.
    state: bool,
    /// Some container above is written as a msgpack array.
    in_list: bool,
    depth: usize,
}

impl Place {
    /// The place below a container.
    fn below(self) -> Walked<Self> {
        if self.depth >= wire::MAX_DEPTH {
            return Err(PyValueError::new_err(format!(
                "the tree is nested more than {} levels deep, or contains itself",
                wire::MAX_DEPTH
            ))
            .into());
        }
        Ok(Place {
            depth: self.depth + 1,
            ..self
        })
    }
}

/// The types that are told apart by one comparison each.
struct Types {
    dict: *mut ffi::PyTypeObject,
    list: *mut ffi::PyTypeObject,
    tuple: *mut ffi::PyTypeObject,
    string: *mut ffi::PyTypeObject,
    bytes: *mut ffi::PyTypeObject,
    int: *mut ffi::PyTypeObject,
    float: *mut ffi::PyTypeObject,
    bool: *mut ffi::PyTypeObject,
    complex: *mut ffi::PyTypeObject,
    array: *mut ffi::PyTypeObject,
}

impl Types {
    fn new(py: Python<'_>) -> Self {
        Self {
            dict: PyDict::type_object_raw(py),
            list: PyList::type_object_raw(py),
            tuple: PyTuple::type_object_raw(py),
            string: PyString::type_object_raw(py),
            bytes: PyBytes::type_object_raw(py),
            int: PyInt::type_object_raw(py),
            float: PyFloat::type_object_raw(py),
            bool: PyBool::type_object_raw(py),
            complex: PyComplex::type_object_raw(py),
            array: PyUntypedArray::type_object_raw(py),
        }
    }
}

/// What `_leaves.classify` answers; the numbers stand there as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Unsupported,
    Array,
    Scalar,
    JaxArray,
    PrngKey,
    BytesLike,
    Ext,
    Timestamp,
    Node,
}

impl Class {
    const ALL: [Self; 9] = [
        Self::Unsupported,
        Self::Array,
        Self::Scalar,
        Self::JaxArray,
        Self::PrngKey,
        Self::BytesLike,
        Self::Ext,
        Self::Timestamp,
        Self::Node,
    ];
}

/// How a dtype is written.
struct Dtype<'py> {
    object: Bound<'py, PyArrayDescr>,
    name: String,
    itemsize: usize,
    native: bool,
}

/// A jax array whose bytes are fetched at the end.
struct OnDevice<'py> {
    array: Bound<'py, PyAny>,
    nbytes: usize,
    /// Its places in the layout, with the range of its bytes that belongs there.
    parts: Vec<(usize, std::ops::Range<usize>)>,
}

struct Walk<'a, 'py> {
    py: Python<'py>,
    hooks: &'static Hooks,
    types: Types,
    options: &'a Options<'py>,
    out: LayoutBuilder<Borrowed>,
    dtypes: Vec<Dtype<'py>>,
    classes: Vec<(*mut ffi::PyTypeObject, Class)>,
    on_device: Vec<OnDevice<'py>>,
    /// On a failure: the keys from the leaf up to the root.
    path: Vec<String>,
}

impl<'py> Walk<'_, 'py> {
    /// Writes `value`, after its map key if that is still to be written.
    fn value(&mut self, value: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
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
                Err(Failure::Leaf(why.extract()?))
            }
            _ => Err(Failure::Leaf(format!(
                "cannot serialize a {} here: msgpack_serialize takes dicts, lists, tuples and \
                 leaves; use to_bytes, or call to_state_dict on the tree first",
                errors::type_name(&value.get_type())
            ))),
        }
    }

    fn classify(&mut self, value: &Bound<'py, PyAny>) -> Walked<Class> {
        let class = value.get_type_ptr();
        if let Some((_, known)) = self.classes.iter().find(|(known, _)| *known == class) {
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
            return Err(Failure::Leaf(format!(
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
        } else {
            let name = || key.str().map_or_else(|_| "?".into(), |key| key.to_string());
            let done = self
                .value(key, None, place)
                .and_then(|()| self.value(value, None, place));
            return self.trace(done, name);
        };
        let text = text.to_str()?;
        if text == wire::CHUNKED_MARKER {
            return Err(Failure::Tree(format!(
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

    fn key(&mut self, key: Option<&str>) -> Walked {
        if let Some(key) = key {
            Head::Str(wire::length("string", key.len())?).write(self.out.headers());
            self.out.headers().extend_from_slice(key.as_bytes());
        }
        Ok(())
    }

    fn int(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        if let Ok(value) = value.extract::<u64>() {
            Head::Uint(value).write(self.out.headers());
        } else if let Ok(value) = value.extract::<i64>() {
            rmp::encode::write_sint(self.out.headers(), value).expect("writing to memory");
        } else {
            return Err(PyOverflowError::new_err(
                "Integer value out of range: msgpack holds -2**63 to 2**64-1",
            )
            .into());
        }
        Ok(())
    }

    fn string(&mut self, value: &Bound<'py, PyString>) -> Walked {
        let text = value.to_str()?;
        Head::Str(wire::length("string", text.len())?).write(self.out.headers());
        self.blob(text.as_bytes(), || Borrowed::string(value))
    }

    fn bytes(&mut self, value: &Bound<'py, PyBytes>) -> Walked {
        let content = value.as_bytes();
        Head::Bin(wire::length("byte string", content.len())?).write(self.out.headers());
        self.blob(content, || Ok(Borrowed::bytes(value)))
    }

    /// Bytes that never change: a few are copied, many are borrowed.
    fn blob(&mut self, content: &[u8], borrow: impl FnOnce() -> PyResult<Borrowed>) -> Walked {
        if content.len() <= INLINE_MAX_BYTES {
            self.out.headers().extend_from_slice(content);
        } else {
            let place = self.out.reserve(content.len());
            self.out.fill(place, borrow()?);
        }
        Ok(())
    }

    fn ext(&mut self, code: i8, body: &[u8]) -> Walked {
        Head::Ext(code, wire::length("extension", body.len())?).write(self.out.headers());
        self.out.headers().extend_from_slice(body);
        Ok(())
    }

    fn array(
        &mut self,
        array: &Bound<'py, PyUntypedArray>,
        code: i8,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        let dtype = self.dtype(&array.dtype())?;
        let mut array = Cow::Borrowed(array);
        if !(array.is_c_contiguous() && self.dtypes[dtype].native) {
            let copy = self.hooks.to_contiguous.bind(self.py).call1((&*array,))?;
            array = Cow::Owned(copy.cast_into().map_err(PyErr::from)?);
        }
        let header = Array {
            code,
            shape: array.shape(),
            dtype: &self.dtypes[dtype].name,
            itemsize: self.dtypes[dtype].itemsize,
        };
        let nbytes = header.nbytes();
        let memory = memory::Borrowed::array(&array, nbytes);
        let py = self.py;
        frame(
            &mut self.out,
            key,
            &header,
            self.options.framing,
            place,
            |out, range| {
                if range.len() <= INLINE_MAX_BYTES {
                    out.headers().extend_from_slice(&memory.as_ref()[range]);
                } else {
                    let place = out.reserve(range.len());
                    out.fill(place, memory.part(py, range));
                }
            },
        )
    }

    /// Notes a jax array and leaves room for its bytes.
    fn jax_array(&mut self, array: &Bound<'py, PyAny>, key: Option<&str>, place: Place) -> Walked {
        let py = self.py;
        let is = |name| array.getattr(name).and_then(|answer| answer.is_truthy());
        if !is(intern!(py, "is_fully_addressable"))? && !is(intern!(py, "is_fully_replicated"))? {
            return Err(Failure::Tree(
                "the array has shards on devices of other processes; gather it to this process \
                 first, for example with jax.experimental.multihost_utils.process_allgather"
                    .into(),
            ));
        }
        if array.call_method0(intern!(py, "is_deleted"))?.is_truthy()? {
            return Err(Failure::Tree(
                "the array has been deleted or donated".into(),
            ));
        }
        let dtype = array.getattr(intern!(py, "dtype"))?;
        let dtype = self.dtype(dtype.cast()?)?;
        let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
        let header = Array {
            code: wire::EXT_NDARRAY,
            shape: &shape,
            dtype: &self.dtypes[dtype].name,
            itemsize: self.dtypes[dtype].itemsize,
        };
        let nbytes = header.nbytes();
        let mut parts = Vec::with_capacity(1);
        frame(
            &mut self.out,
            key,
            &header,
            self.options.framing,
            place,
            |out, range| {
                parts.push((out.reserve(range.len()), range));
            },
        )?;
        self.on_device.push(OnDevice {
            array: array.clone(),
            nbytes,
            parts,
        });
        Ok(())
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

    /// The index of the dtype in `self.dtypes`; asked about once a walk.
    fn dtype(&mut self, dtype: &Bound<'py, PyArrayDescr>) -> Walked<usize> {
        if let Some(known) = self.dtypes.iter().position(|known| known.object.is(dtype)) {
            return Ok(known);
        }
        let answer = self.hooks.describe_dtype.bind(self.py).call1((dtype,))?;
        let (name, native): (Option<String>, bool) = answer.extract()?;
        let Some(name) = name else {
            return Err(Failure::Leaf(format!(
                "cannot serialize an array of dtype {}: only numeric, boolean and date dtypes \
                 can be stored",
                dtype.repr()?
            )));
        };
        self.dtypes.push(Dtype {
            itemsize: numpy::PyArrayDescrMethods::itemsize(dtype),
            object: dtype.clone(),
            name,
            native,
        });
        Ok(self.dtypes.len() - 1)
    }

    /// Gets the bytes of all jax arrays, their transfers started together.
    fn fetch(&mut self) -> Walked {
        if self.on_device.is_empty() {
            return Ok(());
        }
        let noted = std::mem::take(&mut self.on_device);
        let arrays = PyList::new(self.py, noted.iter().map(|noted| &noted.array))?;
        let fetched = self.hooks.to_host.bind(self.py).call1((arrays,))?;
        let fetched = fetched.cast::<PyList>()?;
        if fetched.len() != noted.len() {
            return Err(
                PyRuntimeError::new_err("to_host returned another number of arrays").into(),
            );
        }
        for (noted, host) in noted.into_iter().zip(fetched.iter()) {
            let host = host.cast::<PyUntypedArray>()?;
            let itemsize = numpy::PyArrayDescrMethods::itemsize(&host.dtype());
            if host.len() * itemsize != noted.nbytes || !host.is_c_contiguous() {
                return Err(PyRuntimeError::new_err("to_host returned another array").into());
            }
            let memory = Borrowed::array(host, noted.nbytes);
            for (place, range) in noted.parts {
                self.out.fill(place, memory.part(self.py, range));
            }
        }
        Ok(())
    }
}

/// Writes the headers of an array at the end of the layout.
fn frame(
    out: &mut LayoutBuilder<Borrowed>,
    key: Option<&str>,
    header: &Array<'_>,
    framing: Framing,
    place: Place,
    payload: impl FnMut(&mut LayoutBuilder<Borrowed>, std::ops::Range<usize>),
) -> Walked {
    let framing = Framing {
        may_box: !place.in_list,
        ..framing
    };
    array::frame(out, key, header, &framing, payload).map_err(Failure::from)
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
