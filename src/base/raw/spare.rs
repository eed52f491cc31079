//! Keeps the memory of one buffer for the next one.

use std::mem;
use std::sync::Mutex;

/// A forked process never waits for its lock.
pub(super) static SPARE: Spare = Spare(Mutex::new(Vec::new()));

/// A single buffer bounds the memory of the whole process.
pub(super) struct Spare(Mutex<Vec<u8>>);

impl Spare {
    /// The allocator finds less memory quickly.
    const MIN_BYTES: usize = 64 << 10;

    const MAX_BYTES: usize = 64 << 20;

    pub fn take(&self) -> Vec<u8> {
        let mut kept = self.0.try_lock();
        kept.as_deref_mut().map(mem::take).unwrap_or_default()
    }

    pub fn give(&self, mut memory: Vec<u8>) {
        memory.clear();
        if !(Self::MIN_BYTES..=Self::MAX_BYTES).contains(&memory.capacity()) {
            return;
        }
        if let Ok(mut kept) = self.0.try_lock()
            && kept.capacity() < memory.capacity()
        {
            mem::swap(&mut *kept, &mut memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_kept_within_bounds() {
        let spare = Spare(Mutex::new(Vec::new()));
        let kept = |give: usize| {
            spare.give(Vec::with_capacity(give));
            spare.0.lock().unwrap().capacity()
        };
        assert_eq!(kept(Spare::MIN_BYTES - 1), 0);
        assert_eq!(kept(Spare::MIN_BYTES), Spare::MIN_BYTES);
        assert_eq!(kept(1 << 20), 1 << 20);
        assert_eq!(kept(1 << 19), 1 << 20);
        assert_eq!(kept(Spare::MAX_BYTES + 1), 1 << 20);
    }

    #[test]
    fn it_is_taken_once_and_empty() {
        let spare = Spare(Mutex::new(Vec::new()));
        let mut memory = Vec::with_capacity(1 << 20);
        memory.push(7);
        let place = memory.as_ptr();
        spare.give(memory);
        let taken = spare.take();
        assert_eq!((taken.len(), taken.as_ptr()), (0, place));
        assert_eq!(spare.take().capacity(), 0);
    }

    #[test]
    fn a_held_lock_is_not_waited_for() {
        let spare = Spare(Mutex::new(Vec::with_capacity(1 << 20)));
        let held = spare.0.lock().unwrap();
        assert_eq!(spare.take().capacity(), 0);
        spare.give(Vec::with_capacity(1 << 21));
        assert_eq!(held.capacity(), 1 << 20);
    }
}
