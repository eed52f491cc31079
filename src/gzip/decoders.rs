//! What decodes blocks, kept by a thread.

use std::hash::{BuildHasher, RandomState};
use std::mem;

use libdeflater::Decompressor;

use super::interleaved::Interleaved;
use super::streams;
use crate::{Result, grow, zlib};

/// Decoders, made when they are needed.
#[derive(Default)]
pub struct Decoders {
    interleaved: Option<Interleaved>,
    streams: Option<streams::Decoder>,
    made: Vec<u8>,
    other: Option<(Decompressor, Probe)>,
    input: Vec<u8>,
    block: Vec<u8>,
}

impl Decoders {
    /// For blocks of literals alone.
    pub fn interleaved(&mut self) -> Result<&mut Interleaved> {
        Ok(match &mut self.interleaved {
            Some(known) => known,
            none => none.insert(Interleaved::new()?),
        })
    }

    /// For planes of numbers.
    pub fn streams(&mut self) -> Result<&mut streams::Decoder> {
        Ok(match &mut self.streams {
            Some(known) => known,
            none => none.insert(streams::Decoder::new()?),
        })
    }

    /// Memory for what is decoded, with anything in it, which `keep` takes back.
    pub fn memory(&mut self) -> Vec<u8> {
        mem::take(&mut self.made)
    }

    /// Keeps memory to be used again.
    pub fn keep(&mut self, memory: Vec<u8>) {
        self.made = memory;
    }

    /// Inflates a piece of a stream that has to become `len` bytes, and to end where a block
    /// ends and another one may begin.
    ///
    /// That is what makes the pieces mean the same by themselves as in a row. It is tried
    /// out: a stored block of what no stream can foresee must come out as it is.
    pub fn inflate(&mut self, piece: &[u8], len: usize) -> Result<Option<&[u8]>> {
        #[allow(clippy::cast_possible_truncation)]
        const LEN: [u8; 2] = (PROBE_BYTES as u16).to_le_bytes();
        let (other, probe) = match &mut self.other {
            Some(known) => known,
            none => none.insert((zlib::state(Decompressor::new)?, new_probe())),
        };
        self.input.clear();
        self.input.try_reserve(piece.len() + 5 + PROBE_BYTES)?;
        self.input.extend_from_slice(piece);
        // The last block, stored. Five bits of its first byte mean nothing. They are set, so that
        // nothing that is left open can go on with them and still find the block.
        let header = [0b1111_1001, LEN[0], LEN[1], !LEN[0], !LEN[1]];
        self.input.extend_from_slice(&header);
        self.input.extend_from_slice(probe);
        grow::resize(&mut self.block, len + PROBE_BYTES, 0)?;
        let made = other.deflate_decompress(&self.input, &mut self.block);
        let (block, rest) = self.block.split_at(len);
        Ok((made == Ok(len + PROBE_BYTES) && rest == probe).then_some(block))
    }
}

const PROBE_BYTES: usize = 1024;

/// What no stream can foresee.
type Probe = [u8; PROBE_BYTES];

fn new_probe() -> Probe {
    let state = RandomState::new();
    std::array::from_fn(|index| state.hash_one(index).to_le_bytes()[0])
}
