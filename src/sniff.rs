//! Telling what a file is that turned out not to be msgpack.

/// As many bytes of the start of a file tell what it is.
pub const ENOUGH_BYTES: usize = 512;

/// A short description of well-known content that is often met in place of a checkpoint.
#[must_use]
pub fn describe(data: &[u8]) -> Option<&'static str> {
    let start = data.trim_ascii_start();
    let lower = start[..start.len().min(16)].to_ascii_lowercase();
    let known: [(&[u8], &str); 10] = [
        (
            &crate::gzip::MAGIC,
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
