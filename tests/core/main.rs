//! The core against other libraries, and by properties: one program, which is linked once.

mod arrays;
mod catalog;
mod delta;
#[cfg(unix)]
mod files;
mod opened;
mod reader;
mod round_trip;
