//! Spreading work over threads that live only as long as the work.
//!
//! No pool is kept: starting a thread costs some 50 µs, which is nothing beside
//! the copies that are worth more than one thread, and a process may fork
//! before or after without a thought.

use std::mem::MaybeUninit;
use std::num::NonZero;
use std::sync::Mutex;
use std::{env, thread};

use crate::{Error, Result};

/// Below so many bytes, copying with one thread is faster.
pub const MIN_BYTES: usize = 16 << 20;

/// The unit of copying that a thread takes at a time.
pub const BLOCK: usize = 4 << 20;

/// The environment variable that sets how many threads work where nobody says.
pub const NUM_THREADS: &str = "TREEPACK_NUM_THREADS";

/// How many threads should work on `bytes`: one if that is little; otherwise as many as
/// are requested, or as [`NUM_THREADS`] tells, or as there are cores for this process.
///
/// Reads the environment, which must not be changed by another thread meanwhile.
pub fn threads(requested: Option<i64>, bytes: usize) -> Result<NonZero<usize>> {
    let positive = |count: Option<usize>| count.and_then(NonZero::new);
    let requested = match requested {
        Some(count) => Some(
            positive(usize::try_from(count).ok())
                .ok_or_else(|| Error::Option(format!("threads must be at least 1, got {count}")))?,
        ),
        None => None,
    };
    if bytes < MIN_BYTES {
        return Ok(NonZero::<usize>::MIN);
    }
    if let Some(count) = requested {
        return Ok(count);
    }
    match env::var_os(NUM_THREADS) {
        None => Ok(thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)),
        Some(text) => {
            let count = text.to_str().and_then(|text| text.trim().parse().ok());
            positive(count).ok_or_else(|| {
                let text = text.to_string_lossy();
                Error::Option(format!(
                    "{NUM_THREADS} must be a positive integer, got {text:?}"
                ))
            })
        }
    }
}

/// Calls `work` on every item, on so many threads.
///
/// # Panics
/// If `work` panics.
pub fn for_each<T: Send>(items: Vec<T>, threads: NonZero<usize>, work: impl Fn(T) + Sync) {
    let threads = threads.get().min(items.len());
    let queue = Mutex::new(items.into_iter());
    let run = || {
        while let Some(item) = {
            queue
                .lock()
                .expect("no work panics while it holds the lock")
                .next()
        } {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that cannot be started leaves its share to the others.
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
}

/// Copies every source into its destination.
///
/// # Panics
/// If the lengths of a pair differ.
pub fn copy_all(copies: Vec<(&[u8], &mut [MaybeUninit<u8>])>, threads: NonZero<usize>) {
    let blocks = copies
        .into_iter()
        .flat_map(|(source, target)| {
            assert_eq!(source.len(), target.len());
            source.chunks(BLOCK).zip(target.chunks_mut(BLOCK))
        })
        .collect();
    for_each(blocks, threads, |(source, target)| {
        target.write_copy_of_slice(source);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in 1..4 {
            let sum = AtomicUsize::new(0);
            let threads = NonZero::new(threads).unwrap();
            for_each((1..=1000).collect(), threads, |item| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 500_500);
        }
    }

    #[test]
    fn the_number_of_threads_is_what_is_asked_for_where_it_is_worth_it() {
        assert_eq!(threads(Some(5), MIN_BYTES).unwrap().get(), 5);
        assert_eq!(threads(Some(5), MIN_BYTES - 1).unwrap().get(), 1);
        assert!(threads(Some(0), 0).is_err());
        assert!(threads(Some(-1), MIN_BYTES).is_err());
    }
}
