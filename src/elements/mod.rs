//! The elements of arrays in memory: boxes of them, other orders of dimensions, other numbers.
//!
//! `grid` finds the shards that overlap a box, and `runs` reads a box, `transposed` if memory has
//! another order of dimensions. `pointwise` converts numbers.

pub(crate) mod grid;
pub mod pointwise;
mod runs;
mod strides;
mod transposed;

pub use grid::{ShardGrid, ShardPart, ShardParts};
pub use runs::{Bounds, Runs};
