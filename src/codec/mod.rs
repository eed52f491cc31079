//! Compression, numbers included; differences between trees; digests.

pub(crate) mod zlib;

pub mod gzip;

pub mod delta;

pub mod digest;
