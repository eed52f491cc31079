//! Spreading work over threads that live only as long as the work.
//!
//! No pool is kept: starting a thread costs some 50 µs, which is nothing beside
//! the copies that are worth more than one thread, and a process may fork
//! before or after without a thought.

use std::mem::MaybeUninit;
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

/// Below so many bytes, copying with one thread is faster.
pub const MIN_BYTES: usize = 16 << 20;

/// The unit of copying that a thread takes at a time.
pub const BLOCK: usize = 4 << 20;

/// Calls `work` on every item, on all cores if `bytes` makes that worth while.
///
/// # Panics
/// If `work` panics.
pub fn for_each<T: Send>(items: Vec<T>, bytes: usize, work: impl Fn(T) + Sync) {
    let threads = match bytes {
        0..MIN_BYTES => 1,
        _ => thread::available_parallelism()
            .map_or(1, NonZero::get)
            .min(items.len()),
    };
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
pub fn copy_all(copies: Vec<(&[u8], &mut [MaybeUninit<u8>])>) {
    let bytes = copies.iter().map(|(source, _)| source.len()).sum();
    let blocks = copies
        .into_iter()
        .flat_map(|(source, target)| {
            assert_eq!(source.len(), target.len());
            source.chunks(BLOCK).zip(target.chunks_mut(BLOCK))
        })
        .collect();
    for_each(blocks, bytes, |(source, target)| {
        target.write_copy_of_slice(source);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once() {
        for bytes in [0, MIN_BYTES] {
            let sum = AtomicUsize::new(0);
            for_each((1..=1000).collect(), bytes, |item| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 500_500);
        }
    }
}
