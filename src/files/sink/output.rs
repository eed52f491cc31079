//! Writes to a file or a pipe, with a watch that can stop it.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;

use crate::base::append::Append;
use crate::base::digest::Digest;
use crate::base::raw::{Fill, RawBytes, append_with};
use crate::base::watch::Watch;
use crate::format::footer::{PartialSums, Seal, Sums};
use crate::format::layout::{Caching, Layout, Payload, Slice};
use crate::{Result, base::grow, base::parallel, base::system};

/// Smaller pieces are joined: copying is cheaper than a system call.
const JOIN_BYTES: usize = 64 << 10;

/// The most bytes of a call, so that the watch is checked often.
const WRITE_BYTES: usize = 8 << 20;

/// Bytes copied at a time, which stay in the caches until they are written.
const BLOCK_BYTES: usize = 1 << 20;

/// Blocks read ahead of the disk where nothing is summed: arrays that are computed whole when their
/// first bytes are read take as long as many blocks.
const AHEAD: usize = 16;

/// Bytes copied and summed at a time, in the caches of one core.
const SUM_BYTES: usize = 128 << 10;

pub struct Output<'a> {
    file: &'a File,
    joined: Vec<u8>,
    /// Whether it may accept no bytes for a while, as a pipe does.
    may_block: bool,
    /// Whether the disk starts on written ranges at once.
    write_back: bool,
    written: u64,
    watch: &'a dyn Watch,
}

impl<'a> Output<'a> {
    pub fn new(file: &'a File, may_block: bool, write_back: bool, watch: &'a dyn Watch) -> Self {
        Self {
            file,
            joined: Vec::new(),
            may_block,
            write_back,
            written: 0,
            watch,
        }
    }

    /// Writes a layout. `threads` threads sum its leaves, and read those that are not in memory while
    /// others are written.
    pub fn layout<P: Payload + Sync>(
        &mut self,
        layout: &Layout<P>,
        threads: NonZero<usize>,
    ) -> Result<()> {
        let is_in_memory = || layout.payloads().all(|payload| payload.memory().is_some());
        if layout.seal().is_none() && is_in_memory() {
            self.in_memory(layout)?;
        } else {
            append_blocks(layout, threads, self, self.watch)?;
        }
        self.flush()?;
        self.watch.done(layout.len())
    }

    fn in_memory<P: Payload>(&mut self, layout: &Layout<P>) -> Result<()> {
        let mut position = 0;
        for slice in layout.slices(0..layout.len()) {
            let len = slice.len();
            let memory = slice.memory().filter(|_| len >= JOIN_BYTES);
            let most = memory.map_or(BLOCK_BYTES, |_| WRITE_BYTES);
            for part in parallel::blocks(0..len, most) {
                let Range { start, end } = part;
                match memory {
                    Some(memory) => self.direct(memory.slice(part))?,
                    None => self.join(part.len(), |target| slice.copy_to(start, target))?,
                }
                self.watch.done(position + end)?;
            }
            position += len;
        }
        Ok(())
    }

    fn join(&mut self, len: usize, fill: impl Fill) -> Result<()> {
        append_with(&mut self.joined, len, fill)?;
        if self.joined.len() >= JOIN_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<()> {
        let joined = std::mem::take(&mut self.joined);
        self.write(joined.as_slice().into())?;
        self.joined = joined;
        self.joined.clear();
        Ok(())
    }

    fn direct(&mut self, bytes: RawBytes<'_>) -> Result<()> {
        self.flush()?;
        self.write(bytes)
    }

    pub fn finish(mut self) -> Result<u64> {
        self.flush()?;
        Ok(self.written)
    }

    fn write(&mut self, mut bytes: RawBytes<'_>) -> Result<()> {
        while !bytes.is_empty() {
            if self.may_block {
                system::wait(self.file, &system::Ready::Output, self.watch)?;
            }
            match system::write(self.file, bytes) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => {
                    bytes = bytes.slice(written..bytes.len());
                    if self.write_back {
                        system::write_back(self.file, self.written, written as u64);
                    }
                    self.written += written as u64;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => self.watch.check()?,
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }
}

impl Append for Output<'_> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() >= JOIN_BYTES {
            return self.direct(bytes.into());
        }
        self.join(bytes.len(), |target| Ok(target.write_copy_of_slice(bytes)))
    }
}

/// The digests and sizes of the payloads in a part of a layout, with the numbers of their regions.
fn digests_in<P: Payload>(
    layout: &Layout<P>,
    start: usize,
    part: &[u8],
) -> Result<Vec<(usize, Digest, u64)>> {
    let regions = &layout.seal().expect("a seal for the regions").regions;
    let (mut digests, mut at) = (Vec::new(), 0);
    for slice in layout.slices(start..start + part.len()) {
        let bytes = &part[at..at + slice.len()];
        if let (Slice::Payload(..), Some((region, _))) =
            (slice, regions.parts(start + at..start + at + 1).next())
        {
            grow::push(
                &mut digests,
                (region, Digest::of(bytes), bytes.len() as u64),
            )?;
        }
        at += bytes.len();
    }
    Ok(digests)
}

/// Appends a layout block by block; if it has a seal, sums the same copies.
pub fn append_blocks<P: Payload + Sync>(
    layout: &Layout<P>,
    threads: NonZero<usize>,
    out: &mut impl Append,
    watch: &dyn Watch,
) -> Result<()> {
    let seal = layout.seal();
    let digest_count = seal.map_or(0, |seal| seal.digests);
    let seal_bytes = seal.map_or(0, |seal| Seal::bytes(seal.regions.len()));
    let end = layout.len() - seal_bytes - Digest::BYTES * digest_count;
    let part_bytes = seal.map_or(BLOCK_BYTES, |_| SUM_BYTES);
    let spare = Mutex::new(Vec::new());
    let work = |(): &mut (), index: usize| {
        let mut block: Vec<u8> = spare
            .lock()
            .expect(parallel::NO_PANIC)
            .pop()
            .unwrap_or_default();
        block.clear();
        let (mut sums, mut digests) = (Vec::new(), Vec::new());
        let start = index * BLOCK_BYTES;
        let stop = end.min(start + BLOCK_BYTES);
        block.try_reserve(stop - start)?;
        for Range { start, end } in parallel::blocks(start..stop, part_bytes) {
            let before = block.len();
            append_with(&mut block, end - start, |target| {
                layout.copy_to(start, target, Caching::Usual)
            })?;
            let part = &block[before..];
            if let Some(seal) = seal {
                grow::add_all(&mut sums, seal.regions.sum(start, part)?)?;
            }
            if digest_count > 0 {
                grow::add_all(&mut digests, digests_in(layout, start, part)?)?;
            }
        }
        Ok((block, sums, digests))
    };
    let mut sums = Sums::default();
    let mut digests = grow::filled(Digest::default(), digest_count)?;
    let each = |index: usize, done: Result<(Vec<u8>, PartialSums, Vec<_>)>| {
        let (block, parts, more) = done?;
        sums.add(parts)?;
        for (region, digest, nbytes) in more {
            let before: &mut Digest = &mut digests[region];
            *before = before.join(digest, nbytes);
        }
        out.append(&block)?;
        spare.lock().expect(parallel::NO_PANIC).push(block);
        watch.done(end.min((index + 1) * BLOCK_BYTES))
    };
    let near = threads.get().saturating_mul(4);
    let ahead = seal.map_or(near.max(AHEAD), |_| near);
    parallel::in_order(end.div_ceil(BLOCK_BYTES), threads, ahead, work, each)?;
    let Some(seal) = seal else { return Ok(()) };
    out.append(&seal.close(&sums.finish(seal.regions.len())?, &digests)?)
}
