//! An array's header fields, and their smallest encoding.

use crate::Result;
use crate::base::raw::Buffer;
use crate::format::wire::{Head, length};

#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    /// [`crate::format::wire::EXT_NDARRAY`] or [`crate::format::wire::EXT_NPSCALAR`].
    pub code: i8,
    pub shape: &'a [usize],
    pub dtype: &'a str,
    pub itemsize: usize,
}

impl Array<'_> {
    /// The size of all elements.
    ///
    /// # Panics
    /// If it exceeds a `usize`.
    pub fn nbytes(&self) -> usize {
        let mut shape = self.shape.iter();
        let nbytes = shape.try_fold(self.itemsize, |sum, &dim| sum.checked_mul(dim));
        nbytes.unwrap_or_else(|| {
            assert!(self.shape.contains(&0), "an array larger than any memory");
            0
        })
    }
}

/// `ext(code, [shape, dtype, bin` at the smallest widths.
pub(super) fn write_ext(out: &mut Buffer, array: &Array<'_>) -> Result<()> {
    let nbytes = array.nbytes();
    let bin = Head::Bin(length("array", nbytes)?);
    let ndim = Head::Array(length("shape", array.shape.len())?);
    let dtype = Head::Str(length("dtype name", array.dtype.len())?);
    let dims: usize = array
        .shape
        .iter()
        .map(|&d| Head::Uint(d as u64).width())
        .sum();
    let body = 1 + ndim.width() + dims + dtype.width() + array.dtype.len() + bin.width() + nbytes;
    Head::Ext(array.code, length("array", body)?).write(out);
    Head::Array(3).write(out);
    ndim.write(out);
    for &dim in array.shape {
        Head::Uint(dim as u64).write(out);
    }
    dtype.write(out);
    out.extend_from_slice(array.dtype.as_bytes());
    bin.write(out);
    Ok(())
}
