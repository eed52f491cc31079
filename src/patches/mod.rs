//! Patches: the encoding of a tree as differences from another one.
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
//! | `patch.rs` | the format of a patch |
//! | `base.rs` | the arrays of a base, by their paths |
//! | `make.rs` | making a patch of a layout |
//! | `join.rs` | making the encoding of a patch |
//! | `apply.rs` | the same in the memory of the base |

mod apply;
mod base;
mod join;
mod make;
mod patch;

pub use apply::apply;
pub use base::Base;
pub use join::Join;
pub use make::{Headers, make};
pub use patch::{Patch, is_patch, record_of, value_len};
