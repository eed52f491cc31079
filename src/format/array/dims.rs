//! Reads an array's shape and checks it against the payload.

use smallvec::SmallVec;

use super::MAX_NDIM;
use crate::format::wire::{Cursor, Head};
use crate::{Error, Result};

/// A shape; one dimension may be −1, inferred from the payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dims(SmallVec<[isize; 6]>);

impl Dims {
    #[inline]
    pub fn as_slice(&self) -> &[isize] {
        &self.0
    }

    pub fn push(&mut self, head: Head, offset: usize) -> Result<()> {
        let value = match head {
            Head::Int(value) => isize::try_from(value).ok(),
            Head::Uint(value) => isize::try_from(value).ok(),
            _ => None,
        };
        let value = value
            .ok_or_else(|| Error::malformed(offset, "an array's shape must consist of integers"))?;
        if value < -1 {
            let reason = format!("negative dimension {value}");
            return Err(Error::malformed(offset, reason));
        }
        if self.0.len() == MAX_NDIM {
            let reason = format!("an array of more than {MAX_NDIM} dimensions");
            return Err(Error::malformed(offset, reason));
        }
        self.0.push(value);
        Ok(())
    }

    pub fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut dims = Self::default();
        let offset = cursor.offset();
        match cursor.head()? {
            Head::Array(count) => {
                for _ in 0..count {
                    let offset = cursor.offset();
                    dims.push(cursor.head()?, offset)?;
                }
            }
            head => dims.push(head, offset)?,
        }
        Ok(dims)
    }
}

/// Infers −1 and checks that the elements take `nbytes` bytes.
pub fn resolve(
    dims: &[isize],
    nbytes: usize,
    itemsize: usize,
    offset: usize,
) -> Result<SmallVec<[usize; 6]>> {
    let fail = || {
        Error::malformed(
            offset,
            format!(
                "an array of shape {dims:?} with {itemsize} bytes per element does not fit \
                 its {nbytes} bytes of data"
            ),
        )
    };
    if itemsize == 0 || !nbytes.is_multiple_of(itemsize) {
        return Err(fail());
    }
    let mut shape = SmallVec::with_capacity(dims.len());
    let mut product: u64 = 1;
    // NumPy requires the product to fit even where another dimension is zero.
    let mut size = itemsize;
    let mut open = None;
    for (axis, &dim) in dims.iter().enumerate() {
        let Ok(dim) = usize::try_from(dim) else {
            if open.replace(axis).is_some() {
                return Err(fail());
            }
            shape.push(0);
            continue;
        };
        shape.push(dim);
        product = if dim == 0 {
            0
        } else {
            product.saturating_mul(dim as u64)
        };
        size = size.saturating_mul(dim.max(1));
    }
    if isize::try_from(size).is_err() {
        return Err(fail());
    }
    let total = (nbytes / itemsize) as u64;
    match open {
        None if product == total => Ok(shape),
        Some(axis) if product > 0 && total.is_multiple_of(product) => {
            shape[axis] = usize::try_from(total / product).map_err(|_| fail())?;
            Ok(shape)
        }
        _ => Err(fail()),
    }
}
