//! Constants of both formats: gzip, and blocks of numbers.

pub const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The gzip header: no flags, no time, no extra flags, unknown system.
pub const HEADER: [u8; 10] = [MAGIC[0], MAGIC[1], 8, 0, 0, 0, 0, 0, 0, 255];

/// The header of a stream of numbers. No MessagePack begins with its first byte.
pub const NUMBERS_HEADER: [u8; HEADER.len()] = *b"\xc1treepack\x01";

/// Input of each block but the last.
pub const BLOCK_BYTES: usize = 256 << 10;

pub const MAX_EXPANSION: usize = 1032;

/// After the blocks: an empty final block, the checksum and the size.
pub const END_BYTES: usize = 2 + 4 + 4;
