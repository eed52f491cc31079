//! `src/codec` on `src/base`, and nothing else of the core.

// The core uses more of `base`.
#![allow(dead_code, unused_imports)]

#[path = "../../src/base/mod.rs"]
pub mod base;

#[path = "../../src/codec/mod.rs"]
pub mod codec;

pub use base::error::{Error, Path, Result};
