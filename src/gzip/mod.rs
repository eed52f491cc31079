//! Gzip: a layout compressed as one member, and any gzip stream read back.
//!
//! The time stamp is zero, so that the same input gives the same bytes.

mod compress;
mod decompress;

pub use compress::{DEFAULT_LEVEL, Level, compress};
pub use decompress::decompress;

/// The first bytes of every gzip stream.
pub const MAGIC: [u8; 2] = [0x1f, 0x8b];
