//! Writes leaves: numbers, strings, bytes, and values of rare classes.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyString};

use super::super::classes::Class;
use super::super::errors;
use super::super::failure::{Failure, Walked};
use super::super::memory::Borrowed;
use super::payload::LeafPayload;
use super::state::Walk;
use crate::layout::LayoutBuilder;
use crate::structure::Kind;
use crate::wire;

/// Smaller blobs are copied among the headers, because a payload takes more memory.
const INLINE_MAX_BYTES: usize = 64;

impl<'py> Walk<'py> {
    pub fn int(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        if let Ok(value) = value.extract::<u64>() {
            self.out.uint(value)?;
        } else if let Ok(value) = value.extract::<i64>() {
            self.out.int(value)?;
        } else if self.out.is_described() {
            self.large_int(value)?;
        } else {
            return Err(Failure::overflow(
                "Integer value out of range: msgpack holds -2**63 to 2**64-1; treepack.save and \
                 treepack.dumps take others",
            ));
        }
        Ok(())
    }

    #[inline(never)]
    fn large_int(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        let py = self.py;
        let bits: usize = value.call_method0(intern!(py, "bit_length"))?.extract()?;
        let options = PyDict::new(py);
        options.set_item(intern!(py, "signed"), true)?;
        let body = (bits / 8 + 1, intern!(py, "big"));
        let body = value.call_method(intern!(py, "to_bytes"), body, Some(&options))?;
        let body = body.cast::<PyBytes>()?;
        Ok(self.out.ext(wire::EXT_INT, body.as_bytes())?)
    }

    pub fn string(&mut self, value: &Bound<'py, PyString>) -> Walked {
        let text = value.to_str()?.as_bytes();
        let borrowed = borrow(text, || Borrowed::string(value))?;
        Ok(self.out.str(text.len(), |out| put(out, text, borrowed))?)
    }

    pub fn bytes(&mut self, value: &Bound<'py, PyBytes>, kind: Kind) -> Walked {
        let content = value.as_bytes();
        let borrowed = borrow(content, || Ok(Borrowed::bytes(value)))?;
        let put = |out: &mut LayoutBuilder<LeafPayload>| put(out, content, borrowed);
        Ok(self.out.bin(content.len(), kind, put)?)
    }

    #[inline(never)]
    pub(super) fn other(&mut self, class: Class, value: &Bound<'py, PyAny>) -> Walked {
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
                let plain = self.hooks.to_contiguous.bind(py).call1((value,));
                let plain = plain.map_err(|error| self.unsupported(error))?;
                self.array(plain.cast()?, wire::EXT_NDARRAY)?;
            }
            Class::JaxArray => self.jax_array(value)?,
            Class::Deferred => self.deferred_array(value)?,
            Class::PrngKey => self.prng_key(value)?,
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

    #[inline(never)]
    fn prng_key(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        let answer = self.hooks.unwrap_key.bind(self.py).call1((value,))?;
        let (name, data): (Bound<'py, PyString>, Bound<'py, PyAny>) = answer.extract()?;
        self.split(value)?;
        self.out.prng_key(name.to_str()?)?;
        self.jax_array(&data)?;
        Ok(self.out.end_prng_key()?)
    }
}

fn borrow(
    content: &[u8],
    borrow: impl FnOnce() -> PyResult<Borrowed>,
) -> PyResult<Option<Borrowed>> {
    (content.len() > INLINE_MAX_BYTES).then(borrow).transpose()
}

fn put(
    out: &mut LayoutBuilder<LeafPayload>,
    content: &[u8],
    borrowed: Option<Borrowed>,
) -> crate::Result<()> {
    match borrowed {
        Some(borrowed) => out.push(LeafPayload::Memory(borrowed)),
        None => out.extend(content),
    }
}
