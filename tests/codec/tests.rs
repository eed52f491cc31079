//! The codec against other libraries, and by properties.

mod gzip;
mod numbers;
mod streams;
