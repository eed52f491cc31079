//! Allocates the states of DEFLATE libraries, which panic when out of memory.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

use crate::{Error, Result, base::grow};

/// More than a state takes.
const ROOM_BYTES: usize = 2 << 20;

thread_local! {
    static MAKES_STATE: Cell<bool> = const { Cell::new(false) };
}

/// Makes a state, or a value that contains one.
///
/// Other threads may take the memory that was free, so panics are caught.
pub fn state<T>(make: impl FnOnce() -> T) -> Result<T> {
    grow::check_room(ROOM_BYTES)?;
    MAKES_STATE.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(make));
    MAKES_STATE.set(false);
    outcome.map_err(|_| Error::OutOfMemory)
}

/// Prints nothing of panics in `state`: a backtrace allocates, and without memory waits for itself.
pub fn silence_panics() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !MAKES_STATE.get() {
            print(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn only_panics_of_states_are_silent() {
        let (this, count) = (thread::current().id(), Arc::new(AtomicUsize::new(0)));
        let (printed, print) = (count.clone(), panic::take_hook());
        panic::set_hook(Box::new(move |info| {
            if thread::current().id() == this {
                printed.fetch_add(1, Ordering::Relaxed);
            } else {
                print(info);
            }
        }));
        silence_panics();
        let result = state(|| -> () { panic!("no memory") });
        assert!(matches!(result, Err(Error::OutOfMemory)));
        assert_eq!(count.load(Ordering::Relaxed), 0);
        assert!(catch_unwind(|| panic!("a fault")).is_err());
        assert_eq!(count.load(Ordering::Relaxed), 1);
        drop(panic::take_hook());
    }
}
