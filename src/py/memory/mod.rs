//! Memory that belongs to Python or NumPy: the only `unsafe` code for it.
//!
//! **Policy.** Any thread that runs Python can change Python's memory, and other threads run while
//! this crate is detached. The promises:
//!
//! 1. A reference to the owner keeps borrowed memory, and an export keeps a buffer from being
//!    resized. Addresses stay valid.
//! 2. Such memory is never lent as a slice (see [`crate::base::raw`]): it is copied, or the system writes
//!    it to a file. Only copies are parsed. The content of `bytes` and `str` never changes, and is
//!    lent.
//! 3. Lengths are computed here or compared with the memory, never trusted.
//!
//! Memory *written* here is fresh, or a caller's buffer (`Writable`), which others must not use during
//! the call, and which has no bytes that are read: the function that fills it checks that, or copies
//! them first.
//!
//! | file | contents |
//! |---|---|
//! | `create.rs`, `bytes.rs` | creating objects; filling `bytes` |
//! | `arrays.rs`, `pages.rs` | NumPy arrays: views, and fresh ones; their pages |
//! | `borrowed.rs`, `writable.rs` | reading memory of objects; writing to a caller's buffer |
//! | `dict.rs`, `batch.rs` | iterating over dicts; similar arrays in them |
//! | `detached.rs`, `collector.rs` | running without Python; without its collector of cycles |
//! | `reserve.rs` | a reserve for errors |
#![allow(unsafe_code)]

mod arrays;
mod batch;
mod borrowed;
mod bytes;
mod collector;
mod create;
mod detached;
mod dict;
mod pages;
mod reserve;
mod writable;

pub use arrays::{Alike, ArrayParts, FreshArray, Owned, SmallCopies, fresh_memory, view};
pub use batch::write_alike;
pub use borrowed::{Borrowed, exported};
pub use bytes::{
    copied, lend_bytes, lent_bytes, new_bytes, new_bytes_at_most, new_bytes_elsewhere,
    remember_size,
};
pub use collector::Uncollected;
pub(crate) use create::row;
pub use create::{
    Item, decoded, list_of, list_of_results, new_complex, new_dict, new_float, new_int, new_list,
    new_list_of, new_string, new_tuple, new_tuple_of, new_uint,
};
pub use detached::detached;
pub use dict::{dict_next, has_string_keys};
pub use pages::FreshPages;
pub use reserve::{exists as has_reserve, keep as keep_reserve};
pub use writable::Writable;
