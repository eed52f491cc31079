//! Compressing a layout: blocks by themselves, joined to one member.
//!
//! Blocks end at byte boundaries and refer to nothing before them, so that threads can
//! work on them. The bytes do not depend on how many threads there are.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::num::NonZero;

use crc32fast::Hasher;

use super::block::{Coder, Method};
use super::index;
use crate::layout::{Layout, LayoutBuilder, Payload};
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

/// A member in memory.
pub fn compress_to_memory<P: Payload + Sync>(
    layout: &Layout<P>,
    method: Method,
    threads: NonZero<usize>,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<Layout<Vec<u8>>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    compress(layout, method, threads, &mut pieces, done)?;
    let mut member = LayoutBuilder::default();
    for piece in pieces {
        member.push(piece);
    }
    Ok(member.finish())
}

/// Where a member goes, in pieces; the first is known for good when all others are.
pub trait Output {
    /// Adds a piece at the end.
    fn append(&mut self, piece: Vec<u8>) -> Result<()>;

    /// Puts another piece of the same length in place of the first.
    fn replace_first(&mut self, piece: Vec<u8>) -> Result<()>;
}

impl Output for Vec<Vec<u8>> {
    fn append(&mut self, piece: Vec<u8>) -> Result<()> {
        self.push(piece);
        Ok(())
    }

    fn replace_first(&mut self, piece: Vec<u8>) -> Result<()> {
        self[0] = piece;
        Ok(())
    }
}

/// A file that is empty, and in which one can go back.
impl Output for File {
    fn append(&mut self, piece: Vec<u8>) -> Result<()> {
        Ok(self.write_all(&piece)?)
    }

    fn replace_first(&mut self, piece: Vec<u8>) -> Result<()> {
        let end = self.stream_position()?;
        self.rewind()?;
        self.write_all(&piece)?;
        self.seek(SeekFrom::Start(end))?;
        Ok(())
    }
}

/// What comes of a block.
struct Piece {
    bytes: Vec<u8>,
    literal: bool,
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
    out.append(index::header(bytes, block_bytes, &blocks)?)?;
    let mut checksum = Hasher::new();
    let work = |worker: &mut Worker, index: usize| {
        let begin = index * block_bytes;
        worker.block.clear();
        for slice in layout.slices(begin..bytes.min(begin + block_bytes)) {
            worker.block.extend_from_slice(slice);
        }
        let mut piece = Piece {
            bytes: Vec::new(),
            literal: false,
            checksum: Hasher::new(),
        };
        piece.checksum.update(&worker.block);
        piece.literal = worker
            .coder
            .encode(&worker.block, method, &mut piece.bytes)?;
        Ok(piece)
    };
    parallel::in_order(
        count,
        threads,
        index::ahead(block_bytes),
        work,
        |index, piece: Result<Piece>| {
            let piece = piece?;
            blocks[index] = (piece.bytes.len(), piece.literal);
            out.append(piece.bytes)?;
            checksum.combine(&piece.checksum);
            done(bytes.min((index + 1) * block_bytes))
        },
    )?;
    let mut end = vec![3, 0]; // an empty last block
    end.extend_from_slice(&checksum.finalize().to_le_bytes());
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as the format has it
    end.extend_from_slice(&(bytes as u32).to_le_bytes());
    out.append(end)?;
    if count > 1 {
        out.replace_first(index::header(bytes, block_bytes, &blocks)?)?;
    }
    Ok(())
}
