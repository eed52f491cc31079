//! Compressing a layout: blocks by themselves, joined to one member.
//!
//! Blocks end at byte boundaries and refer to nothing before them, so that threads can
//! work on them. The bytes do not depend on how many threads there are.

use std::io::{Seek, SeekFrom, Write};
use std::num::NonZero;

use crc32fast::Hasher;

use super::block::{Coder, Method};
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

/// Writes all of `layout` to `out` as one gzip member, from where `out` is.
///
/// `done` is told how many bytes of the layout have been written, and can stop the work.
pub fn compress<P: Payload + Sync>(
    layout: &Layout<P>,
    method: Method,
    threads: NonZero<usize>,
    out: &mut (impl Write + Seek),
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let bytes = layout.len();
    let block_bytes = index::block_bytes(bytes);
    let count = bytes.div_ceil(block_bytes);
    let mut blocks = vec![(0, false); count];
    let start = out.stream_position()?;
    out.write_all(&index::header(bytes, block_bytes, &blocks)?)?;
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
            out.write_all(&piece.bytes)?;
            blocks[index] = (piece.bytes.len(), piece.literal);
            checksum.combine(&piece.checksum);
            done(bytes.min((index + 1) * block_bytes))
        },
    )?;
    out.write_all(&[3, 0])?; // an empty last block
    out.write_all(&checksum.finalize().to_le_bytes())?;
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as the format has it
    out.write_all(&(bytes as u32).to_le_bytes())?;
    if count > 1 {
        let end = out.stream_position()?;
        out.seek(SeekFrom::Start(start))?;
        out.write_all(&index::header(bytes, block_bytes, &blocks)?)?;
        out.seek(SeekFrom::Start(end))?;
    }
    out.flush()?;
    Ok(())
}
