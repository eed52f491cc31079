//! States of libraries for DEFLATE, which panic where there is no memory for them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result, grow};

/// More than any state takes.
const STATE_BYTES: usize = 512 << 10;

/// Makes a state, or something with one state in it.
///
/// What would panic is not begun without memory: in a panic, the hook that prints it takes memory,
/// too, and with `RUST_BACKTRACE=1` may wait for itself. One thread at a time looks whether there
/// is some, and uses it. That nobody else takes it in between cannot be had, so a panic is caught.
pub fn state<T>(make: impl FnOnce() -> T) -> Result<T> {
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _guard = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    grow::check_room(STATE_BYTES)?;
    catch_unwind(AssertUnwindSafe(make)).map_err(|_| Error::OutOfMemory)
}
