//! The core against other libraries, and by properties: one program, which is linked once.

mod arrays;
mod delta;
mod face;
#[cfg(unix)]
mod files;
mod gzip;
mod numbers;
mod reader;
mod round_trip;
mod streams;
