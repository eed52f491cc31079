//! Open files, their pages, and replacing files.

pub(crate) mod handle;

pub mod mapping;

pub mod sink;
