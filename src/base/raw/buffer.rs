//! A growable buffer in reused or borrowed memory.
//!
//! Page faults of fresh memory cost several times the copying of small arrays. Bytes written into
//! the returned object's memory need no copy.

use std::any::Any;
use std::fmt;
use std::mem;
use std::ops::{Deref, Range};
use std::ptr::{self, NonNull};
use std::slice;

use super::RawBytes;
use super::spare::SPARE;
use crate::Result;

pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    room: usize,
    memory: Memory,
    is_large: bool,
    lender: Option<Lender>,
}

enum Memory {
    /// The vector itself stays empty.
    Own(Vec<u8>),
    Lent(Loan),
}

/// Lends at least as much memory, or none.
pub type Lender = Box<dyn FnOnce(usize) -> Option<Loan> + Send + Sync>;

pub struct Loan {
    start: NonNull<u8>,
    len: usize,
    owner: Box<dyn Any + Send + Sync>,
}

impl Loan {
    /// Lends `len` bytes at `start`, which may be uninitialised.
    ///
    /// # Safety
    /// The bytes must stay in place until `owner` is dropped. Only the holder of the loan may write
    /// them; other code may only read them, and only after they are written.
    pub(crate) unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { start, len, owner }
    }
}

// SAFETY: only this buffer writes to its memory, owned or lent; `Loan::new` requires it.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Default for Buffer {
    fn default() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            room: 0,
            memory: Memory::Own(Vec::new()),
            is_large: false,
            lender: None,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Own(memory) = &mut self.memory {
            SPARE.give(mem::take(memory));
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes have been written there, and writing others needs `&mut self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Buffer {
    /// The allocator finds less memory quickly, so it is neither borrowed nor reused.
    pub(crate) const SMALL: usize = 64 << 10;

    const FIRST: usize = 512;

    pub(crate) fn borrow_from(&mut self, lender: Lender) {
        self.lender = Some(lender);
    }

    pub(crate) fn owner(&self) -> Option<&(dyn Any + Send + Sync)> {
        match &self.memory {
            Memory::Own(_) => None,
            Memory::Lent(loan) => Some(&*loan.owner),
        }
    }

    #[inline]
    pub fn try_reserve(&mut self, more: usize) -> Result<()> {
        if more > self.room - self.len {
            return self.grow(more);
        }
        Ok(())
    }

    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.tail().append(bytes.into());
    }

    /// # Panics
    /// If the range exceeds the buffer.
    #[inline]
    pub fn extend_from_within(&mut self, range: Range<usize>) {
        self.reserve(range.len());
        self.tail().extend_from_within(range);
    }

    #[inline]
    pub fn append(&mut self, bytes: RawBytes<'_>) -> Result<()> {
        self.try_reserve(bytes.len())?;
        self.tail().append(bytes);
        Ok(())
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Like a `Vec`, aborts if out of memory.
    #[inline]
    fn reserve(&mut self, more: usize) {
        if more > self.room - self.len {
            self.grow(more).expect("memory for a header");
        }
    }

    #[inline]
    pub(crate) fn tail(&mut self) -> Tail<'_> {
        Tail {
            start: self.start,
            len: self.len,
            room: self.room,
            buffer: self,
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize) -> Result<()> {
        let least = self.len.saturating_add(more);
        if least > Self::SMALL && !self.is_large {
            self.is_large = true;
            let lent = self.lender.take().and_then(|lender| lender(least));
            match lent {
                Some(loan) if loan.len >= least => return self.move_to(Memory::Lent(loan)),
                _ => self.move_to(Memory::Own(SPARE.take()))?,
            }
        } else if matches!(self.memory, Memory::Lent(_)) {
            self.move_to(Memory::Own(SPARE.take()))?;
        }
        if let Memory::Own(memory) = &mut self.memory
            && self.room < least
        {
            // SAFETY: `len` bytes have been written there. They move with the vector, which then
            // lends its memory anew.
            unsafe { memory.set_len(self.len) };
            let grown = memory.try_reserve(more.max(Self::FIRST));
            self.start = NonNull::new(memory.as_mut_ptr()).unwrap_or(NonNull::dangling());
            self.room = memory.capacity();
            memory.clear();
            grown?;
        }
        Ok(())
    }

    fn move_to(&mut self, mut memory: Memory) -> Result<()> {
        let (start, room) = match &mut memory {
            Memory::Own(memory) => {
                memory.try_reserve(self.len)?;
                let start = NonNull::new(memory.as_mut_ptr()).unwrap_or(NonNull::dangling());
                (start, memory.capacity())
            }
            Memory::Lent(loan) => (loan.start, loan.len),
        };
        assert!(self.len <= room);
        // SAFETY: `len` bytes have been written here, and `start` has room for them.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr(), start.as_ptr(), self.len) };
        (self.start, self.room, self.memory) = (start, room, memory);
        Ok(())
    }
}

/// The room at the end of a buffer, for many small appends.
///
/// It keeps the buffer's fields in registers, which makes arrays of 1,020 bytes a third faster.
pub(crate) struct Tail<'b> {
    start: NonNull<u8>,
    len: usize,
    room: usize,
    buffer: &'b mut Buffer,
}

impl Drop for Tail<'_> {
    #[inline]
    fn drop(&mut self) {
        self.buffer.len = self.len;
    }
}

impl Tail<'_> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn room(&self) -> usize {
        self.room - self.len
    }

    /// # Panics
    /// If `bytes` do not fit.
    #[inline]
    pub fn append(&mut self, bytes: RawBytes<'_>) {
        assert!(bytes.len() <= self.room());
        // SAFETY: the assertion proves the room after all written bytes; it belongs only to the
        // buffer, which is borrowed mutably.
        let target = unsafe {
            let start = self.start.add(self.len).cast();
            slice::from_raw_parts_mut(start.as_ptr(), bytes.len())
        };
        bytes.copy_to(target);
        self.len += bytes.len();
    }

    /// # Panics
    /// If the range exceeds the buffer, or the copy does not fit.
    #[inline]
    pub fn extend_from_within(&mut self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range is written, and the appended bytes are written after it.
        let bytes = unsafe { RawBytes::new(self.start.as_ptr().add(range.start), range.len()) };
        self.append(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn once(room: usize) -> Lender {
        Box::new(move |least| {
            if room < least {
                return None;
            }
            let mut owner = Vec::<u8>::with_capacity(room);
            let start = NonNull::new(owner.as_mut_ptr()).unwrap();
            // SAFETY: the vector is not touched before it is dropped.
            Some(unsafe { Loan::new(start, room, Box::new(owner)) })
        })
    }

    #[derive(Debug, Clone)]
    enum Step {
        Push(u8),
        Extend(usize),
        Within(usize, usize),
        Append(usize),
        Tail(usize, usize),
        Truncate(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let large = Buffer::SMALL;
        prop_oneof![
            any::<u8>().prop_map(Step::Push),
            (0..large).prop_map(Step::Extend),
            (0..large, 0..large).prop_map(|(a, b)| Step::Within(a, b)),
            (0..large).prop_map(Step::Append),
            (0..large, 0..large).prop_map(|(a, b)| Step::Tail(a, b)),
            (0..2 * large).prop_map(Step::Truncate),
        ]
    }

    proptest! {
        #[test]
        fn it_grows_as_a_vector_does(
            steps in prop::collection::vec(step(), 0..12),
            lent in prop::option::of(0..4 * Buffer::SMALL),
        ) {
            let mut buffer = Buffer::default();
            if let Some(lent) = lent {
                buffer.borrow_from(once(lent));
            }
            let mut vector = Vec::new();
            for (at, step) in steps.into_iter().enumerate() {
                let byte = u8::try_from(at).unwrap();
                match step {
                    Step::Push(byte) => {
                        buffer.extend_from_slice(&[byte]);
                        vector.push(byte);
                    }
                    Step::Extend(len) => {
                        buffer.extend_from_slice(&vec![byte; len]);
                        vector.extend_from_slice(&vec![byte; len]);
                    }
                    Step::Within(a, b) => {
                        let (a, b) = (a.min(vector.len()), b.min(vector.len()));
                        buffer.extend_from_within(a.min(b)..a.max(b));
                        vector.extend_from_within(a.min(b)..a.max(b));
                    }
                    Step::Append(len) => {
                        buffer.append(vec![byte; len].as_slice().into()).unwrap();
                        vector.extend_from_slice(&vec![byte; len]);
                    }
                    Step::Tail(a, b) => {
                        let (a, b) = (a.min(vector.len()), b.min(vector.len()));
                        let range = a.min(b)..a.max(b);
                        let mut tail = buffer.tail();
                        prop_assert_eq!(tail.len(), vector.len());
                        if range.len() < tail.room() {
                            tail.extend_from_within(range.clone());
                            tail.append([byte].as_slice().into());
                            vector.extend_from_within(range);
                            vector.push(byte);
                        }
                    }
                    Step::Truncate(len) => {
                        buffer.truncate(len);
                        vector.truncate(len);
                    }
                }
                prop_assert!(*buffer == *vector);
            }
        }
    }

    #[test]
    fn what_fits_stays_in_the_memory_that_is_lent() {
        for (lent, len, stays) in [
            (200_000, 200_000, true),
            (200_000, 200_001, false),
            (200_000, Buffer::SMALL, false),
            (70_000, Buffer::SMALL + 1, true),
        ] {
            let mut buffer = Buffer::default();
            buffer.borrow_from(once(lent));
            for at in 0..len {
                buffer.extend_from_slice(&at.to_le_bytes()[..1]);
            }
            assert_eq!(buffer.owner().is_some(), stays, "{lent} {len}");
            assert!(
                buffer
                    .iter()
                    .enumerate()
                    .all(|(at, &byte)| byte == at.to_le_bytes()[0])
            );
        }
    }

    #[test]
    #[should_panic(expected = "range.end <= self.len")]
    fn what_is_not_written_is_not_copied() {
        let mut buffer = Buffer::default();
        buffer.extend_from_slice(&[1]);
        buffer.extend_from_within(0..2);
    }
}
