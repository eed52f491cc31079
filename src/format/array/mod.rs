//! Encodes arrays, each as one extension or a map of chunks, and divides them.
//!
//! `frame` chooses an array's `headers`: smallest, widened (`align`), or copied from `recent` ones.
//! `dims` reads a shape. `shards` is an array in several blocks of memory, `grid` finds the shards
//! that overlap a box, and `runs` reads a box, `transposed` if memory has another order of
//! dimensions. `pointwise` converts numbers.

mod align;
mod dims;
mod frame;
pub(crate) mod grid;
mod headers;
pub mod pointwise;
mod recent;
mod runs;
mod shards;
mod strides;
mod transposed;

pub use dims::{Dims, resolve};
pub(crate) use frame::HEADERS_MAX_BYTES;
pub(crate) use frame::frame_like;
pub use frame::{ALIGN_MIN_BYTES, Alignment, ChunkLimit, Framing, KeyPlace, frame};
pub use grid::{ShardGrid, ShardPart, ShardParts};
pub use headers::Array;
pub(crate) use recent::Like;
pub use recent::RecentHeaders;
pub use runs::{Bounds, Runs};
pub use shards::{Shard, Sharded};

pub const MAX_NDIM: usize = 64;
