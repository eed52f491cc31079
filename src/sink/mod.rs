//! Where a [`crate::layout::Layout`] is poured: memory, or a file. (For gzip see [`crate::gzip`].)
//!
//! | file | what is there |
//! |---|---|
//! | `buffer.rs` | filling memory, in parallel |
//! | `replace.rs` | replacing a file whole or not at all |
//! | `temporary.rs` | the temporary file of that, and those that dead writers left |
//! | `output.rs` | writing to a file or a pipe, so that the caller can stop it |

mod buffer;
mod output;
mod replace;
mod temporary;

pub use buffer::{Target, pour};
pub use output::Output;
pub use replace::{
    Durability, Replacement, make_directories, replace_file, sync_directory, write_pipe,
};
pub use temporary::remove_if_dead;
