//! How an array is written: as one extension, or as a map of chunks.
//!
//! `frame` chooses the `headers` of an array: at their smallest, widened so that the payload is
//! aligned (`align`), or copied from recent ones (`recent`). `dims` is a shape as it is read.
//! `shards` is an array in several places, `grid` finds the shards that overlap a box, and `runs`
//! are the bytes of a box.

mod align;
mod dims;
mod frame;
pub(crate) mod grid;
mod headers;
mod recent;
mod runs;
mod shards;

pub use dims::{Dims, resolve};
#[cfg(feature = "python")]
pub(crate) use frame::HEADERS_MAX_BYTES;
pub(crate) use frame::frame_like;
pub use frame::{ALIGN_MIN_BYTES, Alignment, ChunkLimit, Framing, KeyPlace, frame};
pub use grid::{Halves, ShardGrid, ShardPart, ShardParts, boxes_of_range};
pub use headers::Array;
pub(crate) use recent::Like;
pub use recent::RecentHeaders;
pub use runs::{Bounds, Runs};
pub use shards::{Shard, Sharded};

pub const MAX_NDIM: usize = 64;
