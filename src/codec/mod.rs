//! Compression, numbers included; differences between arrays. Bytes in, bytes out.

pub(crate) mod zlib;

pub mod gzip;

pub mod delta;
