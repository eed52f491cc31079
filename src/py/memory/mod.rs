//! Memory that belongs to Python or NumPy: the only place with `unsafe` for it.
//!
//! **Policy.** Python memory can be changed by any thread that runs Python, and
//! while this crate is detached others do run. What is promised here:
//!
//! 1. Everything borrowed is kept alive by a reference to its owner, and every
//!    buffer by an export that forbids resizing it. Addresses stay valid.
//! 2. Such memory is never lent as a slice (see [`crate::raw`]): it is copied, or written to a
//!    file by the system. What is parsed is a copy. The content of `bytes` and `str` objects
//!    never changes, and is lent.
//! 3. Lengths are computed here or compared with what is there, never trusted.
//!
//! A program that changes an array while it is being saved therefore gets a mix
//! of old and new bytes in that array's place, as with `arr.tobytes()` in a
//! thread; it never gets a damaged file or a crash.
//!
//! Memory that is *written* here is fresh (no other code has seen the object yet), or
//! is that of a caller of `pack_into`, who has to keep others from using it meanwhile.
//!
//! | file | what is there |
//! |---|---|
//! | `borrowed.rs` | reading memory of Python objects |
//! | `writable.rs` | writing to a buffer of the caller |
//! | `bytes.rs` | `bytes` objects that are filled after they were made |
//! | `create.rs` | other objects, without a panic where there is no memory |
//! | `reserve.rs` | memory for the moment when there is none |
//! | `pages.rs` | pages that many arrays share |
//! | `arrays.rs` | arrays of NumPy: over memory that is there, and fresh ones |
//! | `detached.rs` | working while other threads run Python |
//! | `dict.rs` | going through a dict |
//! | `alike.rs` | arrays of a dict that are like one another |
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
pub use arrays::{Alike, ArrayParts, FreshArray, Owned, SmallCopies, view};
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
pub use pages::{FreshPages, fresh_memory};
pub use reserve::keep as keep_reserve;
pub use writable::Writable;
