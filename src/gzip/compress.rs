//! Compressing a layout: blocks by themselves, joined to one member.
//!
//! Blocks end at byte boundaries and refer to nothing before them, so that threads can
//! work on them. The bytes do not depend on how many threads there are.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::num::NonZero;
use std::sync::Mutex;

use crc32fast::Hasher;
use memmap2::MmapMut;

use super::block::{Coder, Encoded, Method};
use super::index;
use crate::layout::{Layout, LayoutBuilder, Payload};
use crate::mapping::fresh_pages;
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

/// A member in memory; see [`compress`].
pub fn compress_to_memory<P: Payload + Sync>(
    layout: &Layout<P>,
    method: Method,
    threads: NonZero<usize>,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Layout<Slab>> {
    let mut slabs = Slabs::new(layout.len());
    compress(layout, method, threads, &mut slabs, done)?;
    let mut member = LayoutBuilder::default();
    for slab in slabs.slabs {
        member.push(slab);
    }
    Ok(member.finish())
}

/// Where a member goes, in pieces; the first is known for good when all others are.
pub trait Output {
    /// Adds a piece at the end.
    fn append(&mut self, piece: &[u8]) -> Result<()>;

    /// Puts another piece of the same length in place of the first.
    fn replace_first(&mut self, piece: &[u8]) -> Result<()>;
}

/// A part of a member: fresh pages, huge ones where the system has them, since small ones
/// cost more than what is written to them.
pub struct Slab {
    pages: MmapMut,
    len: usize,
}

impl Payload for Slab {
    fn len(&self) -> usize {
        self.len
    }

    fn run(&self, offset: usize) -> &[u8] {
        &self.pages[offset..self.len]
    }
}

/// A member that grows.
struct Slabs {
    slabs: Vec<Slab>,
    slab_bytes: usize,
}

impl Slabs {
    /// For the member of so many bytes of data.
    fn new(bytes: usize) -> Self {
        /// Pages that are not written to take no memory, but have addresses.
        const MAX_BYTES: usize = 64 << 20;
        Self {
            slabs: Vec::new(),
            slab_bytes: bytes.saturating_add(64 << 10).min(MAX_BYTES),
        }
    }
}

impl Output for Slabs {
    fn append(&mut self, mut piece: &[u8]) -> Result<()> {
        while !piece.is_empty() {
            let slab = match self.slabs.last_mut() {
                Some(slab) if slab.len < slab.pages.len() => slab,
                _ => {
                    let pages = fresh_pages(self.slab_bytes)?;
                    self.slabs.push(Slab { pages, len: 0 });
                    continue;
                }
            };
            let (now, later) = piece.split_at(piece.len().min(slab.pages.len() - slab.len));
            slab.pages[slab.len..][..now.len()].copy_from_slice(now);
            slab.len += now.len();
            piece = later;
        }
        Ok(())
    }

    fn replace_first(&mut self, mut piece: &[u8]) -> Result<()> {
        for slab in &mut self.slabs {
            let (now, later) = piece.split_at(piece.len().min(slab.len));
            slab.pages[..now.len()].copy_from_slice(now);
            piece = later;
        }
        Ok(())
    }
}

/// A file that is empty, and in which one can go back.
impl Output for File {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        Ok(self.write_all(piece)?)
    }

    fn replace_first(&mut self, piece: &[u8]) -> Result<()> {
        let end = self.stream_position()?;
        self.rewind()?;
        self.write_all(piece)?;
        self.seek(SeekFrom::Start(end))?;
        Ok(())
    }
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
    /// The block: a copy, since it is read several times, and others may change it meanwhile.
    block: Vec<u8>,
}

/// Writes all of `layout` to `out` as one gzip member.
///
/// `done` is told how many bytes of the layout have been written, and can stop the work.
///
/// # Panics
/// If a thread has panicked.
pub fn compress<P: Payload + Sync>(
    layout: &Layout<P>,
    method: Method,
    threads: NonZero<usize>,
    out: &mut impl Output,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let bytes = layout.len();
    let block_bytes = index::block_bytes(bytes);
    let count = bytes.div_ceil(block_bytes);
    let mut blocks = vec![(0, false); count];
    out.append(&index::header(bytes, block_bytes, &blocks)?)?;
    // Memory that has been handed over and can be used again.
    let spare = Mutex::new(Vec::new());
    let mut checksum = Hasher::new();
    let work = |worker: &mut Worker, index: usize| {
        let begin = index * block_bytes;
        worker.block.clear();
        for slice in layout.slices(begin..bytes.min(begin + block_bytes)) {
            worker.block.extend_from_slice(slice);
        }
        let mut checksum = Hasher::new();
        checksum.update(&worker.block);
        let mut memory = spare.lock().expect(NO_PANIC).pop().unwrap_or_default();
        let encoded = worker.coder.encode(&worker.block, method, &mut memory)?;
        Ok(Piece {
            memory,
            encoded,
            checksum,
        })
    };
    parallel::in_order(
        count,
        threads,
        index::ahead(block_bytes),
        work,
        |index, piece: Result<Piece>| {
            let piece = piece?;
            let Encoded { len, literal } = piece.encoded;
            blocks[index] = (len, literal);
            out.append(&piece.memory[..len])?;
            spare.lock().expect(NO_PANIC).push(piece.memory);
            checksum.combine(&piece.checksum);
            done(bytes.min((index + 1) * block_bytes))
        },
    )?;
    if count == 0 {
        done(0)?;
    }
    let mut end = vec![3, 0]; // an empty last block
    end.extend_from_slice(&checksum.finalize().to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as the format has it
    end.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.append(&end)?;
    if count > 1 {
        out.replace_first(&index::header(bytes, block_bytes, &blocks)?)?;
    }
    Ok(())
}
