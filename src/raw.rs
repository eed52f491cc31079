//! Memory that somebody else may change meanwhile.
//!
//! Python may run, and other processes may write to mapped files, while bytes are being
//! saved or parsed. Rust's `&[u8]` promises that nobody writes, so such memory is never lent
//! as a slice: it is copied, and only the copy is looked at. What is copied while others write
//! is a mix of old and new bytes, as with `memcpy` in any other program.
//!
//! And memory that is being filled: whoever fills a part returns it as bytes, so that what counts as
//! filled is filled, whoever it was.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::Result;

/// A run of memory that can be read for `'a`, and that others may change.
#[derive(Debug, Clone, Copy)]
pub struct RawBytes<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: the memory may be read by any thread; nothing is written through this.
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
    /// The `len` bytes from `start` on.
    ///
    /// # Safety
    /// They must stay readable for `'a`. Their content may change.
    #[inline]
    #[must_use]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self {
            start,
            len,
            lifetime: PhantomData,
        }
    }

    /// How many bytes there are.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Where the first byte is.
    #[inline]
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// A part of these bytes.
    ///
    /// # Panics
    /// If `range` is not inside them.
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

    /// Whether some of this memory is part of the other.
    #[must_use]
    pub fn overlaps(self, other: RawBytes<'_>) -> bool {
        let (ours, theirs) = (self.start.addr(), other.start.addr());
        ours < theirs + other.len && theirs < ours + self.len
    }

    /// Copies all bytes to `target`, and returns them there.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_to(self, target: &mut [MaybeUninit<u8>]) -> &mut [u8] {
        assert_eq!(target.len(), self.len);
        // SAFETY: both have `len` bytes, of which those of `target` are ours alone, and so
        // apart from these. All of it is written.
        unsafe {
            ptr::copy_nonoverlapping(self.start, target.as_mut_ptr().cast(), self.len);
            target.assume_init_mut()
        }
    }

    /// A copy of the `N` bytes from `at` on, or `None` if there are fewer.
    #[inline]
    #[must_use]
    pub fn load<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        if self.len < N || at > self.len - N {
            return None;
        }
        let mut copy = [0; N];
        // SAFETY: `N` bytes from `at` on are inside the memory, and `copy` has as many.
        unsafe { ptr::copy_nonoverlapping(self.start.add(at), copy.as_mut_ptr(), N) };
        Some(copy)
    }

    /// Appends a copy of all bytes to a vector.
    pub fn append_to(self, target: &mut Vec<u8>) -> Result<()> {
        append_with(target, self.len, |place| Ok(self.copy_to(place)))
    }

    /// Copies `rows` rows of `row_bytes` bytes each to `target`, where one begins every
    /// `stride` bytes. Here they lie one after the other.
    ///
    /// # Panics
    /// If there are not as many bytes, or not as much room.
    pub fn copy_rows(self, row_bytes: usize, target: &mut [u8], stride: usize) {
        let rows = self.len / row_bytes;
        assert!(rows * row_bytes == self.len && row_bytes <= stride);
        assert!(rows == 0 || (rows - 1) * stride + row_bytes <= target.len());
        let to = target.as_mut_ptr();
        // SAFETY: in each step as many bytes are copied as there are on both sides, which was
        // checked for the last row. Elements of the usual sizes are a load and a store.
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

/// Memory that can be copied from as long as this lives.
pub trait AsRaw {
    /// All of it.
    fn as_raw(&self) -> RawBytes<'_>;
}

impl AsRaw for Vec<u8> {
    fn as_raw(&self) -> RawBytes<'_> {
        self.as_slice().into()
    }
}

/// Appends `len` bytes that `fill` writes and returns, all of them or none.
///
/// # Panics
/// If it returns others.
pub(crate) fn append_with(
    target: &mut Vec<u8>,
    len: usize,
    fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]>,
) -> Result<()> {
    target.try_reserve(len)?;
    let before = target.len();
    let mut filling = Filling::new(&mut target.spare_capacity_mut()[..len]);
    filling.fill(len, fill)?;
    // SAFETY: there is room for them, and they have been written.
    unsafe { target.set_len(before + len) };
    Ok(())
}

/// Fills memory with zeros.
pub fn zeroed(memory: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    memory.fill(MaybeUninit::new(0));
    // SAFETY: all of it is zero.
    unsafe { memory.assume_init_mut() }
}

/// Memory that is filled from its start on. Whoever writes to it shows what has been written, so that
/// nobody has to be trusted.
pub struct Filling<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    filled: usize,
}

impl<'a> Filling<'a> {
    /// Begins at the start.
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Self {
        Self { memory, filled: 0 }
    }

    /// How many bytes are still to be filled.
    #[must_use]
    pub fn left(&self) -> usize {
        self.memory.len() - self.filled
    }

    /// Copies these bytes to where the next ones are.
    ///
    /// # Panics
    /// If there is less room.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        self.memory[self.filled..][..bytes.len()].write_copy_of_slice(bytes);
        self.filled += bytes.len();
    }

    /// Has the next `len` bytes filled.
    ///
    /// # Panics
    /// If there is less room, or if what is returned are other bytes.
    #[inline]
    pub fn fill(
        &mut self,
        len: usize,
        fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]>,
    ) -> Result<()> {
        let part = &mut self.memory[self.filled..][..len];
        self.filled += filled_of(part, fill)?;
        Ok(())
    }

    /// Has as many of the next bytes filled as somebody has for them, and tells how many.
    ///
    /// # Panics
    /// If what is returned does not begin where it should.
    pub fn fill_some(
        &mut self,
        fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]>,
    ) -> Result<usize> {
        let part = &mut self.memory[self.filled..];
        let (start, len) = (part.as_ptr().addr(), part.len());
        let found = fill(part)?;
        assert!(found.is_empty() || (found.as_ptr().addr() == start && found.len() <= len));
        let found = found.len();
        self.filled += found;
        Ok(found)
    }

    /// What has been filled.
    #[must_use]
    pub fn finish(self) -> &'a mut [u8] {
        // SAFETY: as many bytes have been written from the start on.
        unsafe { self.memory[..self.filled].assume_init_mut() }
    }
}

/// Has all of some memory filled, and tells how much it is.
#[inline]
fn filled_of(
    part: &mut [MaybeUninit<u8>],
    fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]>,
) -> Result<usize> {
    let (start, len) = (part.as_ptr().addr(), part.len());
    let filled = fill(part)?;
    // A reference to bytes is to bytes that are there.
    assert!(
        filled.as_ptr().addr() == start && filled.len() == len,
        "what was to be filled is what was filled"
    );
    Ok(len)
}

/// Memory of which several threads fill parts, and how much of it they have filled together.
pub struct Room<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    filled: &'a AtomicUsize,
}

impl Room<'_> {
    /// Lets `work` fill memory, and returns what it tells, and the memory if all of it was filled.
    pub fn share<T>(
        memory: &mut [MaybeUninit<u8>],
        work: impl FnOnce(Room<'_>) -> Result<T>,
    ) -> Result<(T, Option<&mut [u8]>)> {
        let filled = AtomicUsize::new(0);
        let told = work(Room {
            memory,
            filled: &filled,
        })?;
        // Rooms do not overlap, and each gets smaller by what was filled of it.
        let whole = filled.into_inner() == memory.len();
        // SAFETY: every byte has been written.
        Ok((told, whole.then(|| unsafe { memory.assume_init_mut() })))
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether nothing is left to be filled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Its first `len` bytes, and those after them.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn split(self, len: usize) -> (Self, Self) {
        let filled = self.filled;
        let (now, later) = self.memory.split_at_mut(len);
        let room = |memory| Self { memory, filled };
        (room(now), room(later))
    }

    /// Rooms of so many bytes each, but for the last.
    pub fn chunks(self, len: usize) -> impl Iterator<Item = Self> {
        let filled = self.filled;
        let chunks = self.memory.chunks_mut(len);
        chunks.map(move |memory| Self { memory, filled })
    }

    /// Has all of it filled.
    ///
    /// # Panics
    /// If what is returned are other bytes.
    pub fn fill(
        self,
        fill: impl for<'t> FnOnce(&'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]>,
    ) -> Result<()> {
        self.filled
            .fetch_add(filled_of(self.memory, fill)?, Relaxed);
        Ok(())
    }

    /// Copies these bytes to where the room begins, which is smaller then.
    ///
    /// # Panics
    /// If there is less room.
    pub fn write(&mut self, bytes: &[u8]) {
        let (now, later) = mem::take(&mut self.memory).split_at_mut(bytes.len());
        now.write_copy_of_slice(bytes);
        self.memory = later;
        self.filled.fetch_add(bytes.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
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
    fn memory_overlaps_where_it_does() {
        let bytes = RawBytes::from(&b"abcdef"[..]);
        assert!(bytes.slice(0..3).overlaps(bytes.slice(2..4)));
        assert!(bytes.slice(2..4).overlaps(bytes));
        assert!(!bytes.slice(0..3).overlaps(bytes.slice(3..6)));
        assert!(!bytes.slice(3..6).overlaps(bytes.slice(0..3)));
    }

    #[test]
    fn what_is_filled_is_known() {
        let mut memory = [MaybeUninit::uninit(); 9];
        let mut filling = Filling::new(&mut memory);
        filling.write(b"ab");
        filling
            .fill(3, |part| Ok(part.write_copy_of_slice(b"cde")))
            .unwrap();
        let some = filling.fill_some(|part| Ok(part[..2].write_copy_of_slice(b"fg")));
        assert_eq!((some.unwrap(), filling.left()), (2, 2));
        assert_eq!(filling.finish(), b"abcdefg");
    }

    #[test]
    #[should_panic(expected = "what was to be filled")]
    fn who_fills_less_is_found_out() {
        let mut out = Vec::new();
        let _ = append_with(&mut out, 3, |part| Ok(zeroed(&mut part[..2])));
    }

    #[test]
    #[should_panic(expected = "what was to be filled")]
    fn who_fills_something_else_is_found_out() {
        let mut out = Vec::new();
        let _ = append_with(&mut out, 3, |_| Ok(vec![0; 3].leak()));
    }

    #[test]
    fn memory_that_threads_share_is_whole_once_all_is_filled() {
        for missing in [false, true] {
            let mut memory = [MaybeUninit::uninit(); 10];
            let shared = Room::share(&mut memory, |room| {
                std::thread::scope(|scope| {
                    for (index, mut part) in room.chunks(4).enumerate() {
                        scope.spawn(move || match index {
                            0 => part.fill(|part| Ok(zeroed(part))).unwrap(),
                            1 => part.write(b"abcd"),
                            _ if missing => part.write(b"x"),
                            _ => part.write(b"xy"),
                        });
                    }
                });
                Ok(7)
            });
            let (told, whole) = shared.unwrap();
            assert_eq!(told, 7);
            assert_eq!(
                whole.map(|it| &*it),
                (!missing).then_some(&b"\0\0\0\0abcdxy"[..])
            );
        }
    }
}
