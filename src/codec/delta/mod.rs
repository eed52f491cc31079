//! Differences between arrays of numbers, block by block.
//!
//! | file | content |
//! |---|---|
//! | `sparse/` | few changes: gaps and differences, coded by frequency |
//! | `elements.rs` | elements as integers, and their differences |
//! | `order.rs` | differences in the order of exponents |
//! | `block.rs` | blocks of an array, each in the smallest kind |

mod block;
mod elements;
mod order;
mod sparse;

pub use block::{BLOCK_BYTES, Block, Decoder, Encoded, Encoder, Kind};
pub use elements::Elements;
