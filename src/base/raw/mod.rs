//! Memory that other code may change at any time.
//!
//! Python may run, and other processes may write to mapped files, while bytes are saved or parsed.
//! Rust's `&[u8]` promises that nothing writes. So such memory is never lent as a slice: it is
//! copied, and only the copy is used. A copy during a write mixes old and new bytes.
#![allow(unsafe_code)]

mod buffer;
mod filling;
mod spare;

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

pub use self::buffer::Buffer;
pub(crate) use self::buffer::Tail;
pub(crate) use self::buffer::{Lender, Loan};
pub(crate) use self::filling::append_with;
pub use self::filling::{Fill, Filling, Room, Uninit, zeroed};

use crate::Result;

/// Memory that is readable for `'a`, and that other code may change.
#[derive(Debug, Clone, Copy)]
pub struct RawBytes<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: any thread may read the memory, and this type does not write to it.
unsafe impl Send for RawBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for RawBytes<'_> {}

impl<'a> From<&'a [u8]> for RawBytes<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            start: bytes.as_ptr(),
            len: bytes.len(),
            lifetime: PhantomData,
        }
    }
}

impl RawBytes<'_> {
    /// Refers to `len` bytes at `start`.
    ///
    /// # Safety
    /// They must stay readable for `'a`. Their content may change.
    #[inline]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self {
            start,
            len,
            lifetime: PhantomData,
        }
    }

    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// # Panics
    /// If `range` exceeds the memory.
    #[inline]
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len);
        Self {
            // SAFETY: the range is inside the memory.
            start: unsafe { self.start.add(range.start) },
            len: range.len(),
            lifetime: PhantomData,
        }
    }

    pub fn overlaps(self, other: RawBytes<'_>) -> bool {
        let (ours, theirs) = (self.start.addr(), other.start.addr());
        ours < theirs + other.len && theirs < ours + self.len
    }

    /// Copies all bytes to `target`, and returns it.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(self, target: &mut Uninit) -> &mut [u8] {
        assert_eq!(target.len(), self.len);
        // SAFETY: both have `len` bytes, all of which are written. `target` is borrowed mutably, so
        // they do not overlap.
        unsafe {
            ptr::copy_nonoverlapping(self.start, target.as_mut_ptr().cast(), self.len);
            target.assume_init_mut()
        }
    }

    /// Copies `N` bytes at `at`; `None` if there are fewer.
    #[inline]
    pub fn load<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        if self.len < N || at > self.len - N {
            return None;
        }
        let mut copy = [0; N];
        // SAFETY: `N` bytes from `at` on are inside the memory, and `copy` has the same length.
        unsafe { ptr::copy_nonoverlapping(self.start.add(at), copy.as_mut_ptr(), N) };
        Some(copy)
    }

    pub fn append_to(self, target: &mut Vec<u8>) -> Result<()> {
        append_with(target, self.len, |place| Ok(self.copy_to(place)))
    }

    /// Copies `rows` consecutive rows of `row_bytes` bytes to `target`, one every `stride` bytes.
    ///
    /// # Panics
    /// If there are too few bytes, or too little room.
    pub fn copy_rows(self, row_bytes: usize, target: &mut [u8], stride: usize) {
        let rows = self.len / row_bytes;
        assert!(rows * row_bytes == self.len && row_bytes <= stride);
        let end = rows
            .checked_sub(1)
            .and_then(|before| before.checked_mul(stride)?.checked_add(row_bytes));
        assert!(rows == 0 || end.is_some_and(|end| end <= target.len()));
        let to = target.as_mut_ptr();
        // SAFETY: each step copies bytes inside both, as checked for the last row. Elements of the
        // usual sizes are a load and a store.
        unsafe {
            macro_rules! copy {
                ($len:expr) => {
                    for row in 0..rows {
                        let from = self.start.add(row * row_bytes);
                        ptr::copy_nonoverlapping(from, to.add(row * stride), $len);
                    }
                };
            }
            match row_bytes {
                1 => copy!(1),
                2 => copy!(2),
                4 => copy!(4),
                8 => copy!(8),
                16 => copy!(16),
                _ => copy!(row_bytes),
            }
        }
    }
}

pub trait AsRaw {
    fn as_raw(&self) -> RawBytes<'_>;
}

impl AsRaw for RawBytes<'_> {
    fn as_raw(&self) -> RawBytes<'_> {
        *self
    }
}

impl AsRaw for Vec<u8> {
    fn as_raw(&self) -> RawBytes<'_> {
        self.as_slice().into()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn what_is_outside_is_not_loaded() {
        let bytes = RawBytes::from(&b"abcdef"[..]);
        assert_eq!(bytes.load(2), Some(*b"cdef"));
        assert_eq!(bytes.load::<4>(3), None);
        assert_eq!(bytes.load::<7>(0), None);
        assert_eq!(bytes.load::<1>(usize::MAX), None);
        assert_eq!(bytes.load(6), Some([]));
    }

    #[test]
    fn rows_are_spread() {
        for row_bytes in 1..20 {
            let source: Vec<u8> = (1..=5 * row_bytes)
                .map(|i| u8::try_from(i).unwrap())
                .collect();
            let stride = row_bytes + 3;
            let mut target = vec![0; 4 * stride + row_bytes];
            source.as_raw().copy_rows(row_bytes, &mut target, stride);
            for (row, expected) in source.chunks(row_bytes).enumerate() {
                assert_eq!(&target[row * stride..][..row_bytes], expected);
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows")]
    fn rows_beyond_the_target_are_refused() {
        vec![0; 6].as_raw().copy_rows(3, &mut [0; 7], 5);
    }

    #[test]
    #[should_panic(expected = "rows == 0")]
    fn rows_beyond_all_addresses_are_refused() {
        vec![0; 3]
            .as_raw()
            .copy_rows(1, &mut [0; 3], usize::MAX / 2 + 1);
    }

    #[test]
    fn a_part_is_inside() {
        let bytes = RawBytes::from(&[1, 2, 3][..]);
        assert_eq!(bytes.slice(1..3).len(), 2);
        #[allow(clippy::reversed_empty_ranges)]
        for outside in [0..4, 4..4, 2..1] {
            assert!(std::panic::catch_unwind(|| bytes.slice(outside).len()).is_err());
        }
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn what_is_copied_has_the_length_of_its_target() {
        RawBytes::from(&[1, 2, 3][..]).copy_to(&mut [MaybeUninit::uninit(); 2]);
    }

    #[test]
    fn memory_overlaps_where_it_does() {
        let bytes = RawBytes::from(&b"abcdef"[..]);
        assert!(bytes.slice(0..3).overlaps(bytes.slice(2..4)));
        assert!(bytes.slice(2..4).overlaps(bytes));
        assert!(!bytes.slice(0..3).overlaps(bytes.slice(3..6)));
        assert!(!bytes.slice(3..6).overlaps(bytes.slice(0..3)));
    }
}
