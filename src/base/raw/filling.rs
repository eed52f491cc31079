//! Tracks memory that is being filled.
//!
//! Code that fills a part returns it as bytes, which proves that they were written.

use std::mem::{self, MaybeUninit};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::Result;

/// Memory to fill, whose bytes may be uninitialized.
pub type Uninit = [MaybeUninit<u8>];

/// Writes memory from its start on, and returns what it wrote.
pub trait Fill: for<'t> FnOnce(&'t mut Uninit) -> Result<&'t mut [u8]> {}

impl<F: for<'t> FnOnce(&'t mut Uninit) -> Result<&'t mut [u8]>> Fill for F {}

/// Appends the `len` bytes that `fill` writes and returns, all or none.
///
/// # Panics
/// If `fill` returns other bytes.
pub(crate) fn append_with(target: &mut Vec<u8>, len: usize, fill: impl Fill) -> Result<()> {
    target.try_reserve(len)?;
    let before = target.len();
    let mut filling = Filling::new(&mut target.spare_capacity_mut()[..len]);
    filling.fill(len, fill)?;
    // SAFETY: the vector has room for `len` more bytes, and they have been written.
    unsafe { target.set_len(before + len) };
    Ok(())
}

pub fn zeroed(memory: &mut Uninit) -> &mut [u8] {
    memory.fill(MaybeUninit::new(0));
    // SAFETY: all of it is zero.
    unsafe { memory.assume_init_mut() }
}

/// Memory filled from its start on. Safe for any writer: it must return the bytes that it wrote.
pub struct Filling<'a> {
    memory: &'a mut Uninit,
    filled: usize,
}

impl<'a> Filling<'a> {
    pub fn new(memory: &'a mut Uninit) -> Self {
        Self { memory, filled: 0 }
    }

    pub fn left(&self) -> usize {
        self.memory.len() - self.filled
    }

    /// # Panics
    /// If the room is smaller.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        self.memory[self.filled..][..bytes.len()].write_copy_of_slice(bytes);
        self.filled += bytes.len();
    }

    /// Lets `fill` write the next `len` bytes.
    ///
    /// # Panics
    /// If the room is smaller, or `fill` returns other bytes.
    #[inline]
    pub fn fill(&mut self, len: usize, fill: impl Fill) -> Result<()> {
        let part = &mut self.memory[self.filled..][..len];
        assert_eq!(filled_of(part, fill)?, len, "{WHOLE}");
        self.filled += len;
        Ok(())
    }

    /// Lets `fill` write any number of bytes; returns that number.
    ///
    /// # Panics
    /// If `fill` returns other bytes.
    pub fn fill_some(&mut self, fill: impl Fill) -> Result<usize> {
        let len = filled_of(&mut self.memory[self.filled..], fill)?;
        self.filled += len;
        Ok(len)
    }

    pub fn finish(self) -> &'a mut [u8] {
        // SAFETY: `filled` bytes have been written from the start on.
        unsafe { self.memory[..self.filled].assume_init_mut() }
    }
}

#[inline]
fn filled_of(part: &mut Uninit, fill: impl Fill) -> Result<usize> {
    let (start, len) = (part.as_ptr().addr(), part.len());
    // A reference to bytes proves that they are initialized.
    let filled = fill(part)?;
    assert!(filled.is_empty() || (filled.as_ptr().addr() == start && filled.len() <= len));
    Ok(filled.len())
}

const WHOLE: &str = "`fill` must return all of its memory";

/// A part of memory that several threads fill, with the shared total.
pub struct Room<'a> {
    memory: &'a mut Uninit,
    filled: &'a AtomicUsize,
}

impl Room<'_> {
    pub fn share<T>(
        memory: &mut Uninit,
        work: impl FnOnce(Room<'_>) -> Result<T>,
    ) -> Result<(T, Option<&mut [u8]>)> {
        let filled = AtomicUsize::new(0);
        let result = work(Room {
            memory,
            filled: &filled,
        })?;
        // Rooms do not overlap, and each shrinks by its filled bytes.
        let whole = filled.into_inner() == memory.len();
        // SAFETY: every byte has been written.
        Ok((result, whole.then(|| unsafe { memory.assume_init_mut() })))
    }

    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// # Panics
    /// If there are fewer than `len` bytes.
    pub fn split(self, len: usize) -> (Self, Self) {
        let filled = self.filled;
        let (now, later) = self.memory.split_at_mut(len);
        let room = |memory| Self { memory, filled };
        (room(now), room(later))
    }

    /// The last room may be shorter.
    pub fn chunks(self, len: usize) -> impl Iterator<Item = Self> {
        let filled = self.filled;
        let chunks = self.memory.chunks_mut(len);
        chunks.map(move |memory| Self { memory, filled })
    }

    /// Lets `fill` write the whole room.
    ///
    /// # Panics
    /// If `fill` returns other bytes.
    pub fn fill(self, fill: impl Fill) -> Result<()> {
        let len = self.len();
        assert_eq!(filled_of(self.memory, fill)?, len, "{WHOLE}");
        self.filled.fetch_add(len, Relaxed);
        Ok(())
    }

    /// Copies `bytes` to its start, and shrinks by them.
    ///
    /// # Panics
    /// If the room is smaller.
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
    fn what_is_zeroed_is_zero() {
        let mut memory = [MaybeUninit::new(7_u8); 9];
        assert_eq!(zeroed(&mut memory), [0; 9]);
    }

    #[test]
    #[should_panic(expected = "must return all of its memory")]
    fn who_fills_less_is_found_out() {
        let mut out = Vec::new();
        let _ = append_with(&mut out, 3, |part| Ok(zeroed(&mut part[..2])));
    }

    #[test]
    #[should_panic(expected = "its memory")]
    fn who_fills_something_else_is_found_out() {
        let mut out = Vec::new();
        let _ = append_with(&mut out, 3, |_| Ok(&mut []));
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
            let (result, whole) = shared.unwrap();
            assert_eq!(result, 7);
            assert_eq!(
                whole.map(|bytes| &*bytes),
                (!missing).then_some(&b"\0\0\0\0abcdxy"[..])
            );
        }
    }
}
