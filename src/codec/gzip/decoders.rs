//! Keeps a block decoder per thread.

use std::hash::{BuildHasher, RandomState};

use libdeflater::Decompressor;

use super::interleaved::Interleaved;
use super::streams;
use crate::{Result, base::grow, codec::zlib};

#[derive(Default)]
pub struct Decoders {
    interleaved: Option<Interleaved>,
    streams: Option<streams::Decoder>,
    /// With arbitrary content.
    pub scratch: Vec<u8>,
    other: Option<(Decompressor, Probe)>,
    input: Vec<u8>,
    block: Vec<u8>,
}

impl Decoders {
    pub fn interleaved(&mut self) -> Result<&mut Interleaved> {
        grow::kept(&mut self.interleaved, Interleaved::new)
    }

    pub fn streams(&mut self) -> Result<&mut streams::Decoder> {
        grow::kept(&mut self.streams, streams::Decoder::new)
    }

    /// Inflates a piece of a stream that must yield `len` bytes and end at a block boundary, so
    /// that it means the same alone as in sequence: an appended stored block of random bytes must
    /// come out unchanged.
    pub fn inflate(&mut self, piece: &[u8], len: usize) -> Result<Option<&[u8]>> {
        #[allow(clippy::cast_possible_truncation)]
        const LEN: [u8; 2] = (PROBE_BYTES as u16).to_le_bytes();
        let (other, probe) = grow::kept(&mut self.other, || {
            Ok((zlib::state(Decompressor::new)?, new_probe()))
        })?;
        self.input.clear();
        self.input.try_reserve(piece.len() + 5 + PROBE_BYTES)?;
        self.input.extend_from_slice(piece);
        // A final stored block. Its five unused bits are set, so that an unfinished code of the
        // piece cannot absorb them and still find the block.
        let header = [0b1111_1001, LEN[0], LEN[1], !LEN[0], !LEN[1]];
        self.input.extend_from_slice(&header);
        self.input.extend_from_slice(probe);
        grow::resize(&mut self.block, len + PROBE_BYTES, 0)?;
        let inflated = other.deflate_decompress(&self.input, &mut self.block);
        let (block, rest) = self.block.split_at(len);
        Ok((inflated == Ok(len + PROBE_BYTES) && rest == probe).then_some(block))
    }
}

const PROBE_BYTES: usize = 1024;

/// Random bytes, which no stream can foresee.
type Probe = [u8; PROBE_BYTES];

fn new_probe() -> Probe {
    let state = RandomState::new();
    std::array::from_fn(|index| state.hash_one(index).to_le_bytes()[0])
}
