//! Compresses a source: independent blocks in one member, then their index.
//!
//! Blocks end at byte boundaries and never refer back, so the output does not depend on the number
//! of threads.

use std::num::NonZero;
use std::sync::Mutex;

use crc32fast::Hasher;

use super::block::{self, Coder, Encoded, Method};
use super::format::{BLOCK_BYTES, END_BYTES, HEADER, NUMBERS_HEADER};
use super::index::{self, BlockEntries};
use super::numbers;
use crate::base::append::Append;
use crate::base::source::{Source, read_to};
use crate::base::watch::Watch;
use crate::{Result, base::parallel};

pub fn bound(bytes: usize) -> usize {
    let count = bytes.div_ceil(BLOCK_BYTES);
    let blocks = count * (block::bound(BLOCK_BYTES) - BLOCK_BYTES) + bytes;
    HEADER.len() + blocks + END_BYTES + index::index_bytes(count)
}

fn window(threads: NonZero<usize>) -> usize {
    /// Memory limit of waiting blocks.
    const WAITING_BYTES: usize = 32 << 20;
    threads
        .get()
        .saturating_mul(2)
        .max(WAITING_BYTES / BLOCK_BYTES)
}

struct Piece {
    memory: Vec<u8>,
    encoded: Encoded,
    checksum: Hasher,
}

#[derive(Default)]
struct Worker {
    coder: Coder,
    numbers: numbers::Coder,
    /// A copy: the block is read several times, and the original may change.
    block: Vec<u8>,
}

pub fn compress(
    source: &dyn Source,
    method: Method,
    threads: NonZero<usize>,
    out: &mut impl Append,
    watch: &dyn Watch,
) -> Result<()> {
    let bytes = source.len();
    let count = bytes.div_ceil(BLOCK_BYTES);
    out.append(match method {
        Method::Numbers => &NUMBERS_HEADER,
        _ => &HEADER,
    })?;
    let spare = Mutex::new(Vec::new());
    let work = |worker: &mut Worker, index: usize| {
        let begin = index * BLOCK_BYTES;
        let len = BLOCK_BYTES.min(bytes - begin);
        worker.block.clear();
        read_to(source, begin..begin + len, &mut worker.block)?;
        let mut checksum = Hasher::new();
        checksum.update(&worker.block);
        let mut memory = spare
            .lock()
            .expect(parallel::NO_PANIC)
            .pop()
            .unwrap_or_default();
        let Worker { coder, block, .. } = worker;
        let encoded = if method == Method::Numbers {
            let phase = source.phase(begin..begin + len);
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
            spare.lock().expect(parallel::NO_PANIC).push(piece.memory);
            checksum.combine(&piece.checksum);
            watch.done(bytes.min((index + 1) * BLOCK_BYTES))
        },
    )?;
    let mut end = Vec::with_capacity(END_BYTES);
    end.extend_from_slice(&[3, 0]);
    end.extend_from_slice(&checksum.finalize().to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as in the format
    end.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.append(&end)?;
    out.append(&entries.members(bytes, BLOCK_BYTES)?)?;
    watch.done(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::base::raw::{Uninit, zeroed};

    struct Zeros<'a> {
        len: usize,
        blocks: &'a AtomicUsize,
    }

    impl Source for Zeros<'_> {
        fn len(&self) -> usize {
            self.len
        }

        fn read_at<'t>(&self, _: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
            self.blocks.fetch_add(1, Ordering::Relaxed);
            Ok(zeroed(target))
        }
    }

    /// Delays the first two blocks until all threads have other work or are done.
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

    const HANG: Duration = Duration::from_mins(10);

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn there_is_work_for_all_threads_at_every_size() {
        for threads in [2, 8, 100] {
            let begun = AtomicUsize::new(0);
            let zeros = Zeros {
                len: 300 * BLOCK_BYTES,
                blocks: &begun,
            };
            let mut out = Slow {
                begun: &begun,
                threads,
                taken: 0,
                most_waiting: 0,
            };
            let threads = NonZero::new(threads).unwrap();
            compress(&zeros, Method::Adaptive, threads, &mut out, &()).unwrap();
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
