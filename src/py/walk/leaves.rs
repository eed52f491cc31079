//! Writes leaves without a dtype: numbers, strings, bytes.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyString};
use pyo3::{PyTypeInfo, ffi};

use super::super::failure::{Failure, Walked};
use super::super::memory::Borrowed;
use super::payload::LeafPayload;
use super::state::Walk;
use crate::format::layout::LayoutBuilder;
use crate::format::structure::Kind;
use crate::format::wire::{self, Head};

/// Smaller blobs are copied among the headers, because a payload takes more memory.
const INLINE_MAX_BYTES: usize = 64;

impl<'py> Walk<'py> {
    /// Writes a plain leaf; returns false for other values.
    #[inline(never)]
    pub fn plain(
        &mut self,
        value: &Bound<'py, PyAny>,
        class: *mut ffi::PyTypeObject,
    ) -> Walked<bool> {
        let py = self.py;
        if class == PyString::type_object_raw(py) {
            self.string(value.cast_exact()?)?;
        } else if class == PyBool::type_object_raw(py) {
            self.out
                .plain(Head::Bool(value.cast_exact::<PyBool>()?.is_true()))?;
        } else if class == PyInt::type_object_raw(py) {
            self.int(value)?;
        } else if class == PyFloat::type_object_raw(py) {
            self.out
                .plain(Head::Float(value.cast_exact::<PyFloat>()?.value()))?;
        } else if value.is_none() {
            self.out.plain(Head::Nil)?;
        } else if class == PyBytes::type_object_raw(py) {
            self.bytes(value.cast_exact()?, Kind::Plain)?;
        } else if class == PyComplex::type_object_raw(py) {
            let value = value.cast_exact::<PyComplex>()?;
            let value = wire::Complex(value.real(), value.imag());
            self.out.complex(value)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    #[inline(never)]
    fn string(&mut self, value: &Bound<'py, PyString>) -> Walked {
        let text = value.to_str()?.as_bytes();
        let borrowed = borrow(text, || Borrowed::string(value))?;
        Ok(self.out.str(text.len(), |out| put(out, text, borrowed))?)
    }

    #[inline]
    fn int(&mut self, value: &Bound<'py, PyAny>) -> Walked {
        if let Ok(value) = value.extract::<u64>() {
            self.out.plain(Head::Uint(value))?;
        } else if let Ok(value) = value.extract::<i64>() {
            self.out.plain(Head::Int(value))?;
        } else if self.out.is_described() {
            self.large_int(value)?;
        } else {
            return Err(Failure::overflow(
                "Integer value out of range: msgpack holds -2**63 to 2**64-1; treepack.save and \
                 treepack.dumps accept others",
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

    #[inline(never)]
    pub fn bytes(&mut self, value: &Bound<'py, PyBytes>, kind: Kind) -> Walked {
        let content = value.as_bytes();
        let borrowed = borrow(content, || Ok(Borrowed::bytes(value)))?;
        let put = |out: &mut LayoutBuilder<LeafPayload>| put(out, content, borrowed);
        Ok(self.out.bin(content.len(), kind, put)?)
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
