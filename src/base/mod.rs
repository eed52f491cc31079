//! What every room stands on: errors, interruption, memory, threads, system calls, encoded bytes.

pub(crate) mod error;

pub mod watch;

pub(crate) mod grow;

pub mod raw;

mod fold;

pub mod digest;

pub(crate) mod system;

pub mod source;

pub mod pages;

pub mod append;

pub(crate) mod parallel;

pub(crate) mod stream;
