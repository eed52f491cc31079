//! Compressing a layout: blocks by themselves, joined to one member, and their index after it.
//!
//! Blocks end at byte boundaries and refer to nothing before them, so that threads can
//! work on them. The bytes do not depend on how many threads there are.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;

use crc32fast::Hasher;

use super::block::{self, Coder, Encoded, Method};
use super::index::{self, BLOCK_BYTES, BlockEntries, END_BYTES, HEADER};
use super::numbers;
use crate::layout::{Caching, Layout, Payload, Slice};
use crate::raw::{Filling, append_with};
use crate::sink::Output;
use crate::watch::Watch;
use crate::{Error, Result, parallel};

/// The method for a `level`, from 0 (stored) to 9 (smallest), or for none.
pub fn method(level: Option<i64>) -> Result<Method> {
    match level.map(u32::try_from) {
        None => Ok(Method::Adaptive),
        Some(Ok(level @ 0..=9)) => Ok(Method::Level(level)),
        Some(_) => Err(Error::Option(format!(
            "level must be from 0 to 9, got {}",
            level.unwrap_or_default()
        ))),
    }
}

/// How many bytes the stream of so many has at most.
///
/// # Panics
/// If that is more than there is room for.
#[must_use]
pub fn bound(bytes: usize) -> usize {
    let count = bytes.div_ceil(BLOCK_BYTES);
    let blocks = count * (block::bound(BLOCK_BYTES) - BLOCK_BYTES) + bytes;
    HEADER.len() + blocks + END_BYTES + index::index_bytes(count)
}

/// Where a stream goes, piece by piece.
pub trait Append {
    /// Adds a piece at the end.
    fn append(&mut self, piece: &[u8]) -> Result<()>;
}

impl Append for Vec<u8> {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.try_reserve(piece.len())?;
        self.extend_from_slice(piece);
        Ok(())
    }
}

impl Append for Output<'_> {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.bytes(piece)
    }
}

/// There must be room for all that is appended.
impl Append for Filling<'_> {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.write(piece);
        Ok(())
    }
}

/// How many blocks may be worked on or wait to be handed over.
fn window(threads: NonZero<usize>) -> usize {
    /// What blocks that wait may take in all, where there are few threads.
    const WAITING_BYTES: usize = 32 << 20;
    threads
        .get()
        .saturating_mul(2)
        .max(WAITING_BYTES / BLOCK_BYTES)
}

const NO_PANIC: &str = "nothing panics while it holds the lock";

/// What comes of a block.
struct Piece {
    /// The first `encoded.len` bytes count.
    memory: Vec<u8>,
    encoded: Encoded,
    checksum: Hasher,
}

/// What a thread keeps.
#[derive(Default)]
struct Worker {
    coder: Coder,
    numbers: numbers::Coder,
    /// The block: a copy, since it is read several times, and others may change it meanwhile.
    block: Vec<u8>,
}

/// Writes all of `layout` to `out` as gzip, or as numbers. `watch` is told how many bytes of the layout have
/// been written.
///
/// # Panics
/// If a thread has panicked.
pub fn compress<P: Payload + Sync>(
    layout: &Layout<P>,
    method: Method,
    threads: NonZero<usize>,
    out: &mut impl Append,
    watch: &dyn Watch,
) -> Result<()> {
    let bytes = layout.len();
    let count = bytes.div_ceil(BLOCK_BYTES);
    out.append(match method {
        Method::Numbers => &numbers::HEADER,
        _ => &HEADER,
    })?;
    // Memory that has been handed over and can be used again.
    let spare = Mutex::new(Vec::new());
    let work = |worker: &mut Worker, index: usize| {
        let begin = index * BLOCK_BYTES;
        let len = BLOCK_BYTES.min(bytes - begin);
        worker.block.clear();
        append_with(&mut worker.block, len, |target| {
            layout.copy_to(begin, target, Caching::Usual)
        })?;
        let mut checksum = Hasher::new();
        checksum.update(&worker.block);
        let mut memory = spare.lock().expect(NO_PANIC).pop().unwrap_or_default();
        let Worker { coder, block, .. } = worker;
        let encoded = if method == Method::Numbers {
            let phase = phase(layout, begin..begin + len);
            let checksum = checksum.clone().finalize();
            (worker.numbers).encode(block, phase, checksum, coder, &mut memory)?
        } else {
            coder.encode(block, method, &mut memory)?
        };
        Ok(Piece {
            memory,
            encoded,
            checksum,
        })
    };
    let mut checksum = Hasher::new();
    let mut entries = BlockEntries::default();
    parallel::in_order(
        count,
        threads,
        window(threads),
        work,
        |index, piece: Result<Piece>| {
            let piece = piece?;
            let Encoded { len, literal } = piece.encoded;
            entries.push(len, literal, piece.checksum.clone().finalize())?;
            out.append(&piece.memory[..len])?;
            spare.lock().expect(NO_PANIC).push(piece.memory);
            checksum.combine(&piece.checksum);
            watch.done(bytes.min((index + 1) * BLOCK_BYTES))
        },
    )?;
    let mut end = Vec::with_capacity(END_BYTES);
    end.extend_from_slice(&[3, 0]); // an empty last block
    end.extend_from_slice(&checksum.finalize().to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as the format has it
    end.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.append(&end)?;
    out.append(&entries.members(bytes, BLOCK_BYTES)?)?;
    watch.done(bytes)
}

/// Where elements of up to eight bytes begin in a range: those of the payload that has most of it.
fn phase<P: Payload>(layout: &Layout<P>, range: Range<usize>) -> usize {
    let (mut at, mut most, mut phase) = (0_usize, 0, 0);
    for slice in layout.slices(range) {
        if let Slice::Payload(_, _, within) = &slice
            && within.len() > most
        {
            most = within.len();
            phase = at.wrapping_sub(within.start) % 8;
        }
        at += slice.len();
    }
    phase
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use std::mem::MaybeUninit;

    use super::*;
    use crate::layout::LayoutBuilder;
    use crate::raw::zeroed;

    /// Zeros, of which it is counted how many blocks have been copied from.
    struct Zeros<'a> {
        len: usize,
        blocks: &'a AtomicUsize,
    }

    impl Payload for Zeros<'_> {
        fn len(&self) -> usize {
            self.len
        }

        fn copy_to<'t>(&self, _: usize, target: &'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]> {
            self.blocks.fetch_add(1, Ordering::Relaxed);
            Ok(zeroed(target))
        }
    }

    /// Takes the first two blocks when there is work for all threads beyond them, or never will be.
    struct Slow<'a> {
        begun: &'a AtomicUsize,
        threads: usize,
        taken: usize,
        most_waiting: usize,
    }

    impl Append for Slow<'_> {
        fn append(&mut self, _: &[u8]) -> Result<()> {
            let waiting = |taken| self.begun.load(Ordering::Relaxed).saturating_sub(taken);
            self.taken += 1;
            if let 2 | 3 = self.taken {
                let begin = Instant::now();
                while waiting(self.taken) < self.threads && begin.elapsed() < HANG {
                    std::thread::yield_now();
                }
            }
            self.most_waiting = self.most_waiting.max(waiting(self.taken));
            Ok(())
        }
    }

    /// After so long, what is waited for does not happen.
    const HANG: Duration = Duration::from_mins(10);

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn there_is_work_for_all_threads_at_every_size() {
        for threads in [2, 8, 100] {
            let begun = AtomicUsize::new(0);
            let mut builder = LayoutBuilder::default();
            builder
                .push(Zeros {
                    len: 300 * BLOCK_BYTES,
                    blocks: &begun,
                })
                .unwrap();
            let mut out = Slow {
                begun: &begun,
                threads,
                taken: 0,
                most_waiting: 0,
            };
            let threads = NonZero::new(threads).unwrap();
            compress(&builder.finish(), Method::Adaptive, threads, &mut out, &()).unwrap();
            let (least, most) = (threads.get(), window(threads));
            assert!(most >= 2 * threads.get());
            assert!(
                (least..=most).contains(&out.most_waiting),
                "{}",
                out.most_waiting
            );
        }
    }
}
