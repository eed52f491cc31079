//! Spreads work over short-lived threads.
//!
//! Without a pool, a process can fork. Starting a thread takes some 50 µs.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;
use std::sync::{Condvar, Mutex, mpsc};
use std::time::Duration;
use std::{env, thread};

use crate::base::watch::Watch;
use crate::{Error, Result, base::grow};

/// Smaller copies are faster with one thread.
pub const MIN_COPY_BYTES: usize = 16 << 20;

pub const BLOCK: usize = 4 << 20;

/// Divides a range into blocks of `size`, of which the last may be shorter.
pub fn blocks(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    let starts = range.step_by(size);
    starts.map(move |start| start..end.min(start.saturating_add(size)))
}

/// The environment variable for the default number of threads.
pub const NUM_THREADS: &str = "TREEPACK_NUM_THREADS";

const MOST_THREADS: usize = 1 << 16;

/// The number of threads for `bytes`: one below `min_bytes`; otherwise the requested number, or
/// [`NUM_THREADS`], or the available cores.
///
/// Must be called attached to Python: it reads the environment.
pub fn threads(requested: Option<i64>, bytes: usize, min_bytes: usize) -> Result<NonZero<usize>> {
    let positive = |count: Option<usize>| count.and_then(NonZero::new);
    let checked = |count: i64| {
        let checked = positive(usize::try_from(count).ok());
        let refused = || format!("threads must be from 1 to {MOST_THREADS}, got {count}");
        checked
            .filter(|count| count.get() <= MOST_THREADS)
            .ok_or_else(|| Error::Option(refused()))
    };
    let requested = requested.map(checked).transpose()?;
    if bytes < min_bytes {
        return Ok(NonZero::<usize>::MIN);
    }
    if let Some(count) = requested {
        return Ok(count);
    }
    match env::var_os(NUM_THREADS).filter(|text| !text.is_empty()) {
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

pub fn worth(threads: NonZero<usize>, bytes: usize, min_bytes: usize) -> NonZero<usize> {
    if bytes < min_bytes {
        NonZero::<usize>::MIN
    } else {
        threads
    }
}

/// Calls `work` on every item, on `threads` threads including this one, which calls `check` after
/// each item. The first error of either stops the work.
///
/// # Panics
/// If `work` panics.
pub fn for_each<T: Send>(
    items: Vec<T>,
    threads: NonZero<usize>,
    work: impl Fn(T) -> Result<()> + Sync,
    check: impl FnMut() -> Result<()>,
) -> Result<()> {
    for_each_with(items, threads, |(): &mut (), item| work(item), check)
}

/// [`for_each`], with state of each thread.
pub fn for_each_with<S: Default, T: Send>(
    items: Vec<T>,
    threads: NonZero<usize>,
    work: impl Fn(&mut S, T) -> Result<()> + Sync,
    mut check: impl FnMut() -> Result<()>,
) -> Result<()> {
    let count = items.len();
    let queue = Mutex::new(items.into_iter());
    let step = |state: &mut S, _| {
        let item = queue.lock().expect(NO_PANIC).next();
        item.map_or(Ok(()), |item| work(state, item))
    };
    let each = |_, done: Result<()>| done.and_then(|()| check());
    in_order(count, threads, count, step, each)
}

/// Calls `work` on all numbers below `count`, on `threads` threads including this one, which calls
/// `each` on the results in order. At most `ahead` results are in progress or waiting.
///
/// An error of `each` stops the work.
///
/// # Panics
/// If `work` or `each` panics.
pub fn in_order<S: Default, T: Send>(
    count: usize,
    threads: NonZero<usize>,
    ahead: usize,
    work: impl Fn(&mut S, usize) -> T + Sync,
    mut each: impl FnMut(usize, T) -> Result<()>,
) -> Result<()> {
    let window = ahead.max(1);
    let threads = threads.get().min(count).min(window);
    if threads <= 1 {
        let mut state = S::default();
        return (0..count).try_for_each(|index| each(index, work(&mut state, index)));
    }
    let shared = Shared {
        count,
        window,
        state: Mutex::new(State {
            next: 0,
            done: 0,
            stopped: false,
            ready: BTreeMap::new(),
        }),
        moved: Condvar::new(),
    };
    let run = || {
        let _guard = StopOnPanic(&shared);
        let mut state = S::default();
        while let Next::Index(index) = shared.next(None) {
            let result = work(&mut state, index);
            shared.change(|state| state.ready.insert(index, result));
        }
    };
    thread::scope(|scope| {
        let _guard = StopOnPanic(&shared);
        for _ in 1..threads {
            // If a thread cannot be started, the others do its share.
            if !has_room_for_thread() {
                break;
            }
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        let mut state = S::default();
        for expected in 0..count {
            let result = loop {
                match shared.next(Some(expected)) {
                    Next::Result(result) => break result,
                    Next::Index(index) => {
                        let result = work(&mut state, index);
                        shared.change(|state| state.ready.insert(index, result));
                    }
                    // A thread panicked; the scope passes the panic on.
                    Next::End => return Ok(()),
                }
            };
            let done = each(expected, result);
            shared.change(|state| {
                state.done += 1;
                state.stopped |= done.is_err();
            });
            done?;
        }
        Ok(())
    })
}

/// The work of [`in_order`].
struct Shared<T> {
    count: usize,
    window: usize,
    state: Mutex<State<T>>,
    moved: Condvar,
}

struct State<T> {
    next: usize,
    done: usize,
    stopped: bool,
    ready: BTreeMap<usize, T>,
}

enum Next<T> {
    Index(usize),
    Result(T),
    End,
}

impl<T> Shared<T> {
    /// Waits for the `expected` result or a number to work on.
    fn next(&self, expected: Option<usize>) -> Next<T> {
        let mut state = self.state.lock().expect(NO_PANIC);
        loop {
            if let Some(result) = expected.and_then(|index| state.ready.remove(&index)) {
                return Next::Result(result);
            }
            if state.stopped || expected.is_none() && state.next == self.count {
                return Next::End;
            }
            if state.next < self.count.min(state.done + self.window) {
                state.next += 1;
                return Next::Index(state.next - 1);
            }
            state = self.moved.wait(state).expect(NO_PANIC);
        }
    }

    fn change<R>(&self, change: impl FnOnce(&mut State<T>) -> R) {
        change(&mut self.state.lock().expect(NO_PANIC));
        self.moved.notify_all();
    }
}

struct StopOnPanic<'a, T>(&'a Shared<T>);

impl<T> Drop for StopOnPanic<'_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.change(|state| state.stopped = true);
        }
    }
}

/// Runs work that cannot be stopped in another thread. If `watch` stops the wait, the work
/// continues there and its result is dropped.
///
/// # Panics
/// If `work` panics.
pub fn elsewhere<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
    work: W,
    watch: &dyn Watch,
) -> Result<T> {
    const OFTEN: Duration = Duration::from_millis(30);
    let (give, given) = mpsc::sync_channel(1);
    let (sender, receiver) = mpsc::sync_channel(1);
    let run = move || drop(given.recv().map(|work: W| sender.send(work())));
    if !spawn(run) {
        return Ok(work());
    }
    drop(give.send(work));
    loop {
        match receiver.recv_timeout(OFTEN) {
            Ok(done) => return Ok(done),
            Err(mpsc::RecvTimeoutError::Timeout) => watch.check()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("work in another thread panicked"),
        }
    }
}

/// Runs work in another thread, and does not wait for it. Returns false, and drops the work, if
/// there can be no thread.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> bool {
    has_room_for_thread() && thread::Builder::new().spawn(work).is_ok()
}

/// Returns whether there is memory for another thread. A thread that gets the last page cannot
/// allocate its bookkeeping, and aborts the process.
fn has_room_for_thread() -> bool {
    /// Mostly its stack.
    const THREAD_BYTES: usize = 3 << 20;
    grow::check_room(THREAD_BYTES).is_ok()
}

pub const NO_PANIC: &str = "nothing panics while it holds the lock";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in 1..4 {
            let sum = AtomicUsize::new(0);
            let threads = NonZero::new(threads).unwrap();
            let add = |item| {
                sum.fetch_add(item, Ordering::Relaxed);
                Ok(())
            };
            for_each((1..=1000).collect(), threads, add, || Ok(())).unwrap();
            assert_eq!(sum.swap(0, Ordering::Relaxed), 500_500);

            let fail = |item| match item {
                7 => Err(Error::Option("stop".into())),
                _ => add(item),
            };
            let result = for_each((1..=1000).collect(), threads, fail, || Ok(()));
            assert!(matches!(result, Err(Error::Option(_))));
            let (caller, begun) = (thread::current().id(), AtomicBool::new(false));
            let wait = |item| {
                while thread::current().id() != caller && !begun.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                begun.store(true, Ordering::Relaxed);
                add(item)
            };
            let result = for_each((1..=1000).collect(), threads, wait, || Err(Error::Stopped));
            assert!(matches!(result, Err(Error::Stopped)));
        }
    }

    #[test]
    fn results_come_in_order_and_an_error_ends_the_work() {
        let count = if cfg!(miri) { 50 } else { 1000 };
        for threads in 1..5 {
            let threads = NonZero::new(threads).unwrap();
            let worked_on = AtomicUsize::new(0);
            let work = |state: &mut usize, index: usize| {
                *state += 1;
                worked_on.fetch_add(1, Ordering::Relaxed);
                if index.is_multiple_of(7) {
                    thread::yield_now();
                }
                index * 3
            };
            let mut results = Vec::new();
            in_order(count, threads, 8, work, |index, result| {
                results.push((index, result));
                Ok(())
            })
            .unwrap();
            assert!(results.iter().copied().eq((0..count).map(|i| (i, 3 * i))));
            assert_eq!(worked_on.swap(0, Ordering::Relaxed), count);

            let error = in_order(count, threads, 8, work, |index, _| match index {
                10 => Err(Error::Option("stop".into())),
                _ => Ok(()),
            });
            assert!(error.is_err());
            assert!(worked_on.load(Ordering::Relaxed) <= 11 + 8);
            in_order(0, threads, 8, work, |_, _| Ok(())).unwrap();
        }
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_of_another_thread_is_passed_on() {
        let (here, begun) = (thread::current().id(), AtomicBool::new(false));
        let work = |(): &mut (), _| {
            begun.fetch_or(thread::current().id() != here, Ordering::Relaxed);
            assert_eq!(thread::current().id(), here);
            while !begun.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        };
        let _ = in_order(1000, NonZero::new(3).unwrap(), 8, work, |_, ()| Ok(()));
    }

    #[test]
    #[should_panic(expected = "of work here")]
    fn a_panic_of_this_thread_is_passed_on() {
        let (here, begun) = (thread::current().id(), AtomicBool::new(false));
        let work = |(): &mut (), _| {
            begun.fetch_or(thread::current().id() == here, Ordering::Relaxed);
            assert_ne!(thread::current().id(), here, "of work here");
            while !begun.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        };
        let _ = in_order(1000, NonZero::new(3).unwrap(), 8, work, |_, ()| Ok(()));
    }

    #[test]
    #[should_panic(expected = "of each")]
    fn a_panic_where_results_arrive_is_passed_on() {
        let work = |(): &mut (), _| ();
        let _ = in_order(1000, NonZero::new(3).unwrap(), 8, work, |index, ()| {
            // The other threads would wait for room forever.
            assert_ne!(index, 2, "of each");
            Ok(())
        });
    }

    #[test]
    fn large_work_gets_the_requested_threads() {
        assert_eq!(threads(Some(5), 10, 10).unwrap().get(), 5);
        assert_eq!(threads(Some(5), 9, 10).unwrap().get(), 1);
        assert!(threads(Some(0), 0, 10).is_err());
        assert!(threads(Some(-1), 10, 10).is_err());
        assert!(threads(Some(i64::MAX), 0, 10).is_err());
    }
}
