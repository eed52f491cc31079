//! Leaves without a dtype: numbers, strings, bytes.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use super::super::memory::Borrowed;
use super::source::Source;
use super::walk::{Walk, Walked};
use crate::wire::{self, Head};

/// Blobs and arrays of at most so many bytes are copied among the headers: a
/// piece of their own would take more room.
pub const INLINE_MAX_BYTES: usize = 64;

impl<'py> Walk<'_, 'py> {
    pub fn key(&mut self, key: Option<&str>) -> Walked {
        if let Some(key) = key {
            Head::Str(wire::length("string", key.len())?).write(self.out.headers());
            self.out.headers().extend_from_slice(key.as_bytes());
        }
        Ok(())
    }

    pub fn int(&mut self, value: &Bound<'py, PyAny>) -> Walked {
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

    pub fn string(&mut self, value: &Bound<'py, PyString>) -> Walked {
        let text = value.to_str()?;
        Head::Str(wire::length("string", text.len())?).write(self.out.headers());
        self.blob(text.as_bytes(), || Borrowed::string(value))
    }

    pub fn bytes(&mut self, value: &Bound<'py, PyBytes>) -> Walked {
        let content = value.as_bytes();
        Head::Bin(wire::length("byte string", content.len())?).write(self.out.headers());
        self.blob(content, || Ok(Borrowed::bytes(value)))
    }

    /// Bytes that never change: a few are copied, many are borrowed.
    pub fn blob(&mut self, content: &[u8], borrow: impl FnOnce() -> PyResult<Borrowed>) -> Walked {
        if content.len() <= INLINE_MAX_BYTES {
            self.out.headers().extend_from_slice(content);
        } else {
            self.out.push(Source::Block(borrow()?));
        }
        Ok(())
    }

    pub fn ext(&mut self, code: i8, body: &[u8]) -> Walked {
        Head::Ext(code, wire::length("extension", body.len())?).write(self.out.headers());
        self.out.headers().extend_from_slice(body);
        Ok(())
    }
}
