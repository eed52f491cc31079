//! The codec against other libraries, and by properties.

mod content;
mod gzip;
mod numbers;
mod streams;
