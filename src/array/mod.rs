//! How an array is written: as one extension, or as a map of chunks.
//!
//! `frame` decides the `headers` of an array, at their smallest or widened so
//! that the payload begins at an aligned offset (see `align`), or copied from those written
//! last (`recent`); `dims` is its shape as it is
//! read back. `shards` is an array that lies in several places, `grid` tells
//! which shards of one have a box, and `runs` are a box of one.

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

/// The largest number of dimensions that NumPy allows.
pub const MAX_NDIM: usize = 64;
