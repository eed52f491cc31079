//! Gzip: a layout compressed as one member, and any gzip stream read back.
//!
//! | file | what is there |
//! |---|---|
//! | `compress.rs` | blocks in parallel, joined to a member, and their index after it |
//! | `block.rs` | how a block is coded, chosen by its content |
//! | `literal.rs` | encoding blocks of literals alone |
//! | `runs.rs` | encoding blocks of literals and runs |
//! | `interleaved.rs` | decoding blocks of literals alone, several at a time |
//! | `huffman.rs`, `bits.rs` | the codes and the order of bits of DEFLATE |
//! | `index.rs` | where the blocks are, told at the end of the stream |
//! | `numbers.rs` | blocks of numbers, in place of those of gzip |
//! | `streams.rs` | a plane of them in four streams of one code |
//! | `planes.rs` | the bytes of elements apart, and together again |
//! | `decoders.rs` | what decodes blocks, kept by a thread |
//! | `indexed.rs` | inflating a stream that has an index, in parallel or a range of it |
//! | `foreign.rs` | inflating any other stream, and telling what is wrong |

mod bits;
mod block;
mod compress;
mod decoders;
mod foreign;
mod huffman;
mod index;
mod indexed;
mod interleaved;
mod literal;
#[cfg(feature = "python")]
mod mended;
mod numbers;
mod planes;
mod runs;
mod streams;

pub use block::Method;
pub use compress::{Append, bound, compress, method};
pub use foreign::{claimed_size, inflate_at_once, inflate_in_steps, salvage};
pub(crate) use index::has_traces;
pub use indexed::Indexed;
#[cfg(feature = "python")]
pub(crate) use mended::{Contained, mended};
pub(crate) use numbers::HEADER as NUMBERS_MAGIC;

/// From how many bytes on several threads pay.
pub(crate) const MIN_PARALLEL_BYTES: usize = 1 << 20;

/// The first bytes of every gzip stream.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How many bytes tell whether data are compressed.
pub(crate) const MAGIC_BYTES: usize = numbers::HEADER.len();

/// Whether data that begin so are gzip, or compressed as numbers.
pub(crate) fn is_compressed(start: &[u8]) -> bool {
    start.starts_with(&MAGIC) || start == numbers::HEADER
}

#[cfg(test)]
mod oracle {
    use std::io::{Read, Write};

    /// What zlib makes of data, as a stream with a header.
    pub fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    /// What comes out before the input is at its end.
    pub fn inflate_some(block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 << 16);
        let mut zlib = flate2::Decompress::new(false);
        (zlib.decompress_vec(block, &mut out, flate2::FlushDecompress::None)).unwrap();
        out
    }

    /// What zlib makes of blocks of which none is the last.
    pub fn inflate(blocks: &[u8]) -> std::io::Result<Vec<u8>> {
        let stream = [blocks, &[3, 0]].concat();
        let mut out = Vec::new();
        flate2::read::DeflateDecoder::new(&stream[..]).read_to_end(&mut out)?;
        Ok(out)
    }
}
