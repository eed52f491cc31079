//! Compression, numbers included, and differences between trees.

pub(crate) mod zlib;

pub mod gzip;

pub mod delta;
