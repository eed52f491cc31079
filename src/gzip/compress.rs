//! Compressing a layout: blocks by themselves, joined to one member.
//!
//! Blocks end at byte boundaries and refer to nothing before them, so that threads can
//! work on them. The bytes do not depend on how many threads there are.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::sync::Mutex;

use crc32fast::Hasher;

use super::block::{self, Coder, Encoded, Method};
use super::index;
use crate::layout::{Layout, Payload};
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

/// How many bytes the member of so many has at most.
///
/// # Panics
/// If that is more than there is room for.
#[must_use]
pub fn bound(bytes: usize) -> usize {
    let block_bytes = index::block_bytes(bytes);
    let count = bytes.div_ceil(block_bytes);
    let most = index::header_bound(count) + count * block::bound(block_bytes) + END_BYTES;
    // The last block is shorter.
    most - (count * block_bytes - bytes)
}

/// Where a member goes, in pieces; the first is known for good when all others are.
pub trait Output {
    /// Adds a piece at the end.
    fn append(&mut self, piece: &[u8]) -> Result<()>;

    /// Puts another piece of the same length in place of the first.
    fn replace_first(&mut self, piece: &[u8]) -> Result<()>;
}

impl Output for Vec<u8> {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.extend_from_slice(piece);
        Ok(())
    }

    fn replace_first(&mut self, piece: &[u8]) -> Result<()> {
        self[..piece.len()].copy_from_slice(piece);
        Ok(())
    }
}

/// Memory with room for [`bound`] bytes, filled from its start.
pub struct Place<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    filled: usize,
}

impl<'a> Place<'a> {
    /// Begins at the start.
    pub fn new(memory: &'a mut [MaybeUninit<u8>]) -> Self {
        Self { memory, filled: 0 }
    }

    /// How many bytes have been filled.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }
}

impl Output for Place<'_> {
    fn append(&mut self, piece: &[u8]) -> Result<()> {
        self.memory[self.filled..][..piece.len()].write_copy_of_slice(piece);
        self.filled += piece.len();
        Ok(())
    }

    fn replace_first(&mut self, piece: &[u8]) -> Result<()> {
        self.memory[..piece.len()].write_copy_of_slice(piece);
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

/// What blocks that wait to be handed over may take in all.
const WAITING_BYTES: usize = 32 << 20;

/// An empty last block, the checksum and the size.
const END_BYTES: usize = 2 + 4 + 4;

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
        (WAITING_BYTES / block_bytes).max(2),
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
    let mut end = Vec::with_capacity(END_BYTES);
    end.extend_from_slice(&[3, 0]); // an empty last block
    end.extend_from_slice(&checksum.finalize().to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as the format has it
    end.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.append(&end)?;
    if count > 1 {
        out.replace_first(&index::header(bytes, block_bytes, &blocks)?)?;
    }
    Ok(())
}
