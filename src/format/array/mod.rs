//! Encodes arrays, each as one extension or a map of chunks.
//!
//! `frame` chooses an array's `headers`: smallest, widened (`align`), or copied from `recent` ones.
//! `dims` reads a shape.

mod align;
mod dims;
mod frame;
mod headers;
mod recent;

pub use dims::{Dims, resolve};
pub(crate) use frame::HEADERS_MAX_BYTES;
pub(crate) use frame::frame_like;
pub use frame::{ALIGN_MIN_BYTES, Alignment, ChunkLimit, Framing, KeyPlace, frame};
pub use headers::Array;
pub(crate) use recent::Like;
pub use recent::RecentHeaders;

pub const MAX_NDIM: usize = 64;
