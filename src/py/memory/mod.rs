//! Memory that belongs to Python or NumPy: the only place with `unsafe` for it.
//!
//! **Policy.** Any thread that runs Python can change Python's memory, and others run while this
//! crate is detached. The promises:
//!
//! 1. Borrowed memory is kept by a reference to its owner, and a buffer by an export that forbids
//!    resizing it. Addresses stay valid.
//! 2. Such memory is never lent as a slice (see [`crate::raw`]): it is copied, or written to a file
//!    by the system. Only copies are parsed. The content of `bytes` and `str` objects never
//!    changes, and is lent.
//! 3. Lengths are computed here or compared with the memory's, never trusted.
//!
//! A program that changes an array while it is being saved gets a mix of old and new bytes in that
//! array, as with `arr.tobytes()` in a thread, never a damaged file or a crash.
//!
//! Memory *written* here is fresh (no other code has seen the object yet), or a caller's of
//! `pack_into`, who must keep others from using it.
//!
//! | file | content |
//! |---|---|
//! | `create.rs` | objects, without a panic where there is no memory |
//! | `pages.rs` | pages that many arrays share |
//! | `arrays.rs` | NumPy arrays: views, and fresh ones |
//! | `borrowed.rs` | reading memory of Python objects |
//! | `writable.rs` | writing to a buffer of the caller |
//! | `bytes.rs` | `bytes` objects that are filled after their creation |
//! | `reserve.rs` | a reserve of memory for errors |
//! | `detached.rs` | work while other threads run Python |
//! | `dict.rs` | iterating over a dict |
//! | `alike.rs` | arrays of a dict with the same dtype and shape |
#![allow(unsafe_code)]

mod alike;
mod arrays;
mod borrowed;
mod bytes;
mod create;
mod detached;
mod dict;
mod pages;
mod reserve;
mod writable;

pub use alike::write_alike;
pub use arrays::{Alike, ArrayParts, FreshArray, Owned, SmallCopies, fresh_memory, view};
pub use borrowed::{Borrowed, exported};
pub use bytes::{
    BytesLender, copied, lent_bytes, new_bytes, new_bytes_at_most, new_bytes_elsewhere,
    remember_size,
};
pub use create::{
    list_of_results, new_complex, new_dict, new_float, new_int, new_list, new_list_of, new_string,
    new_tuple_of, new_uint, sizes,
};
pub use detached::detached;
pub use dict::{dict_next, has_string_keys};
pub use pages::FreshPages;
pub use reserve::keep as keep_reserve;
pub use writable::Writable;
