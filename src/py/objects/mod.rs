//! Makes Python objects from events.
//!
//! An array is a view of the input if its payload is aligned for its dtype. Otherwise a small array
//! is copied at once, and large ones together at the end, in parallel and detached.
//!
//! | file | contents |
//! |---|---|
//! | `values.rs` | objects from single events |
//! | `arrays.rs`, `copies.rs` | arrays; copying large arrays at the end |
//! | `keys.rs` | map keys |
//! | `encoded.rs`, `listed.rs` | encoded bytes as cursors for records, for templates |

mod arrays;
mod copies;
mod encoded;
mod keys;
mod listed;
mod values;

pub use self::encoded::build_recorded;
pub use self::listed::{Like, build_like};
pub use self::values::{CopyMode, Objects};
