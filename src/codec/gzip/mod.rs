//! Compresses bytes as one gzip member, and inflates any gzip stream.
//!
//! | file | content |
//! |---|---|
//! | `format.rs` | headers and sizes of both formats |
//! | `bits.rs`, `huffman.rs` | bits and codes of DEFLATE |
//! | `literal.rs` | encoding literals-only blocks |
//! | `runs.rs` | encoding blocks of literals and runs |
//! | `block.rs` | choosing the coding of a block |
//! | `index.rs` | index of the blocks, at the end of the stream |
//! | `planes.rs` | splitting elements into planes of bytes |
//! | `interleaved.rs` | decoding several literals-only blocks at once |
//! | `streams.rs` | a plane of numbers in four streams of one code |
//! | `decoders.rs` | per-thread block decoders |
//! | `numbers.rs` | blocks of numbers |
//! | `compress.rs` | compressing blocks in parallel |
//! | `indexed.rs` | inflating with the index, in parallel or a range |
//! | `foreign.rs` | inflating any stream, and explaining errors |
//! | `mended.rs` | streams with a damaged header |

mod bits;
mod block;
mod compress;
mod decoders;
mod foreign;
mod format;
mod huffman;
mod index;
mod indexed;
mod interleaved;
mod literal;
mod mended;
pub(super) mod numbers;
mod planes;
mod runs;
mod streams;

pub use block::Method;
pub use compress::{bound, compress};
pub use foreign::Stream;
pub use format::BLOCK_BYTES;
pub use indexed::Indexed;
pub use mended::{Contained, mended};

// Of the codes of DEFLATE, for differences.
pub(super) use bits::{BitReader, BitWriter};
pub(super) use block::Coder as BlockCoder;
pub(super) use decoders::Decoders;
pub(super) use huffman::{bits as code_bits, code_lengths, codes};
pub(super) use interleaved::fill_table;
pub(super) use literal::MAX_BITS;

#[cfg(test)]
mod oracle {
    use std::io::{Read, Write};

    pub fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    pub fn inflate_some(block: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 << 16);
        let mut zlib = flate2::Decompress::new(false);
        (zlib.decompress_vec(block, &mut out, flate2::FlushDecompress::None)).unwrap();
        out
    }

    pub fn inflate(blocks: &[u8]) -> std::io::Result<Vec<u8>> {
        let stream = [blocks, &[3, 0]].concat();
        let mut out = Vec::new();
        flate2::read::DeflateDecoder::new(&stream[..]).read_to_end(&mut out)?;
        Ok(out)
    }
}
