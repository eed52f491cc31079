//! Writes a [`crate::format::layout::Layout`] to memory or a file.
//!
//! | file | content |
//! |---|---|
//! | `buffer.rs` | filling memory, in parallel |
//! | `output.rs` | writing to a file or a pipe, with a watch |
//! | `temporary.rs` | temporary files, and removing those of dead writers |
//! | `replace.rs` | replacing a file atomically |

mod buffer;
mod output;
mod replace;
mod temporary;

pub use buffer::pour;
pub use output::{Output, append_blocks};
pub use replace::{Replacement, make_directories, replace_file, sync_directory, write_pipe};
pub use temporary::remove_if_dead;
