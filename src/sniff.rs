//! Telling what a file is that turned out not to be msgpack.

use crate::source::{Source, read_to};
use crate::{Error, gzip};

/// As many bytes of the start of a file tell what it is.
const ENOUGH_BYTES: usize = 512;

/// Adds what the data seems to be instead of msgpack.
pub fn explain(error: Error, source: &dyn Source) -> Error {
    let (error, path) = error.split();
    let error = explain_here(error, source);
    match path {
        Some(path) => Error::At {
            path,
            error: Box::new(error),
        },
        None => error,
    }
}

fn explain_here(error: Error, source: &dyn Source) -> Error {
    if let (Some(offset), true) = (error.offset(), source.is_empty()) {
        return Error::malformed(offset, "the data is empty (0 bytes)");
    }
    let mut start = Vec::new();
    let len = source.len().min(ENOUGH_BYTES);
    if read_to(source, 0..len, &mut start).is_err() {
        return error;
    }
    match (error.offset(), describe(&start)) {
        (Some(offset), Some(what)) => Error::malformed(
            offset,
            format!("the data looks like {what}; {}", error.reason()),
        ),
        _ => error,
    }
}

/// A short description of well-known content that is often met in place of a checkpoint.
fn describe(data: &[u8]) -> Option<&'static str> {
    let start = data.trim_ascii_start();
    let lower = start[..start.len().min(16)].to_ascii_lowercase();
    let known: [(&[u8], &str); 10] = [
        (
            &gzip::MAGIC,
            "gzip data: use from_compressed_bytes, or load_from_file",
        ),
        (
            b"version https://git-lfs",
            "a git-LFS pointer: run `git lfs pull` to get the real file",
        ),
        (
            b"PK\x03\x04",
            "a zip archive, such as .npz or a PyTorch checkpoint",
        ),
        (b"\x28\xb5\x2f\xfd", "Zstandard data"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"\x93NUMPY", "a .npy file"),
        (b"\x80\x02", "a Python pickle"),
        (b"\x80\x03", "a Python pickle"),
        (b"\x80\x04\x95", "a Python pickle"),
        (b"\x80\x05\x95", "a Python pickle"),
    ];
    if lower.starts_with(b"<!doctype") || lower.starts_with(b"<html") {
        Some("an HTML page: the download went wrong")
    } else if lower.starts_with(b"<?xml") {
        Some("an XML document: the download went wrong")
    } else if data.get(8..10) == Some(b"{\"") {
        Some("a safetensors file")
    } else if start.starts_with(b"{\"") || start.starts_with(b"[{") {
        Some("JSON text")
    } else {
        known
            .iter()
            .find(|(magic, _)| data.starts_with(magic))
            .map(|(_, what)| *what)
    }
}
