//! The bytes of an array to write.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::layout::Payload;
use crate::raw::{RawBytes, Uninit};
use crate::view::ArrayView;

/// Bytes of an array to write: borrowed, owned, shared, or of an array in a [`File`](crate::File).
/// [`Writer::array`](crate::Writer::array) converts its argument into `Bytes`.
#[derive(Debug, Clone)]
pub struct Bytes<'a>(Inner<'a>);

#[derive(Debug, Clone)]
enum Inner<'a> {
    Memory(Cow<'a, [u8]>),
    Shared(Arc<[u8]>),
    View(ArrayView<'a>),
}

impl Bytes<'_> {
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Memory(bytes) => bytes.len(),
            Inner::Shared(bytes) => bytes.len(),
            Inner::View(array) => array.nbytes(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn memory(&self) -> Option<&[u8]> {
        match &self.0 {
            Inner::Memory(bytes) => Some(bytes),
            Inner::Shared(bytes) => Some(bytes),
            Inner::View(_) => None,
        }
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Inner::Memory(bytes.into()))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Bytes<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl<const N: usize> From<[u8; N]> for Bytes<'_> {
    fn from(bytes: [u8; N]) -> Self {
        bytes.to_vec().into()
    }
}

impl<'a> From<&'a Vec<u8>> for Bytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

impl<'a> From<Cow<'a, [u8]>> for Bytes<'a> {
    fn from(bytes: Cow<'a, [u8]>) -> Self {
        Self(Inner::Memory(bytes))
    }
}

impl From<Vec<u8>> for Bytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Inner::Memory(bytes.into()))
    }
}

impl From<Arc<[u8]>> for Bytes<'_> {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self(Inner::Shared(bytes))
    }
}

impl<'a> From<ArrayView<'a>> for Bytes<'a> {
    fn from(array: ArrayView<'a>) -> Self {
        Self(Inner::View(array))
    }
}

/// A part of the bytes of an array.
pub(crate) struct PayloadRange<'t> {
    pub bytes: &'t Bytes<'t>,
    pub range: Range<usize>,
}

impl Payload for PayloadRange<'_> {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let start = self.range.start + start;
        match &self.bytes.0 {
            Inner::View(array) => array.copy_to(start, target),
            Inner::Memory(bytes) => Ok(target.write_copy_of_slice(&bytes[start..][..target.len()])),
            Inner::Shared(bytes) => Ok(target.write_copy_of_slice(&bytes[start..][..target.len()])),
        }
    }

    fn memory(&self) -> Option<RawBytes<'_>> {
        let memory = self.bytes.memory()?;
        Some(memory[self.range.clone()].into())
    }
}
