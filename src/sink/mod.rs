//! Where a [`crate::layout::Layout`] is poured: memory, a file, a gzip stream.

mod file;
mod memory;

pub use file::{Durability, write_file, write_layout};
pub use memory::{Target, pour, pour_range};
