//! Allocates the states of DEFLATE libraries, which panic when out of memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::{Error, Result, grow};

/// More than a state and other threads take.
const ROOM_BYTES: usize = 2 << 20;

/// Makes a state, or a value that contains one.
///
/// A panic out of memory allocates, and may deadlock with `RUST_BACKTRACE=1`, so one thread at a
/// time checks for memory. Other code may take it, so panics are caught.
pub fn state<T>(make: impl FnOnce() -> T) -> Result<T> {
    static ONE_BY_ONE: Turns = Turns(AtomicU32::new(0));
    let _turn = ONE_BY_ONE.take();
    grow::check_room(ROOM_BYTES)?;
    catch_unwind(AssertUnwindSafe(make)).map_err(|_| Error::OutOfMemory)
}

/// A lock for short work: the process that holds it, or 0.
///
/// A fork may inherit it held by a thread that does not exist in the child, which a mutex would not
/// show.
struct Turns(AtomicU32);

struct Turn<'t>(&'t Turns);

impl Turns {
    fn take(&self) -> Turn<'_> {
        let this = process::id();
        loop {
            let holder = self.0.load(Ordering::Relaxed);
            let is_free = holder != this;
            let taken = || {
                self.0
                    .compare_exchange(holder, this, Ordering::Acquire, Ordering::Relaxed)
            };
            if is_free && taken().is_ok() {
                return Turn(self);
            }
            thread::yield_now();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn one_thread_at_a_time_has_a_turn() {
        let (turns, busy) = (Turns(AtomicU32::new(0)), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = turns.take();
                        assert!(!busy.swap(true, Ordering::Relaxed));
                        thread::yield_now();
                        busy.store(false, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(turns.0.into_inner(), 0);
    }

    #[test]
    fn a_turn_of_another_process_is_over() {
        let turns = Turns(AtomicU32::new(process::id() + 1));
        drop(turns.take());
        assert_eq!(turns.0.into_inner(), 0);
    }
}
