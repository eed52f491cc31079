//! Headers of safetensors files (<https://huggingface.co/docs/safetensors>).
//!
//! | file | contents |
//! |---|---|
//! | `json.rs` | JSON of headers |
//! | `header.rs` | the arrays in a file, checked as the reader of safetensors checks them |
//! | `tree.rs` | names such as `a.b.c` as a tree for an encoder |

mod header;
mod json;
mod tree;

pub use header::{DTYPES, Header, Tensor};
pub use tree::encode;
