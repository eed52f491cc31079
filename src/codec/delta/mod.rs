//! Differences: the encoding of a tree as a patch of another one.
//!
//! A patch keeps the encoding except the elements of arrays that a base has with the same path,
//! dtype and shape.
//!
//! ```text
//! layout, base ──make──▶ layout of the patch        patch, base ──join──▶ encoding
//! ```
//!
//! | file | content |
//! |---|---|
//! | `sparse/` | few changes: gaps and differences, coded by frequency |
//! | `elements.rs` | elements as integers, and their differences |
//! | `order.rs` | differences in the order of exponents |
//! | `block.rs` | blocks of an array, each in the smallest kind |
//! | `patch.rs` | the format of a patch |
//! | `base.rs` | the arrays of a base, by their paths |
//! | `make.rs` | making a patch of a layout |
//! | `join.rs` | making the encoding of a patch |
//! | `apply.rs` | the same in the memory of the base |

mod apply;
mod base;
mod block;
mod elements;
mod join;
mod make;
mod order;
mod patch;
mod sparse;

pub use apply::apply;
pub use base::Base;
pub use block::BLOCK_BYTES;
pub use join::Join;
pub use make::{Headers, make};
pub use patch::{Patch, is_patch, record_of, value_len};
