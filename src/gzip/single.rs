//! Inflating a stream of one member into memory of the size that it claims.

use std::mem::MaybeUninit;

use flate2::{Decompress, FlushDecompress, Status};

use super::index::MAX_EXPANSION;

/// How many bytes the stream says that it has, if that can be so; 0 tells nothing.
#[must_use]
pub fn claimed_size(stream: &[u8]) -> usize {
    let size = stream
        .last_chunk::<4>()
        .map_or(0, |size| u32::from_le_bytes(*size) as usize);
    if size <= stream.len().saturating_mul(MAX_EXPANSION) {
        size
    } else {
        0
    }
}

/// Fills `out` with what the stream contains, and returns the checksum that it should
/// have. `None` if the stream is anything but one member of just this size.
#[must_use]
pub fn inflate(stream: &[u8], out: &mut [MaybeUninit<u8>]) -> Option<u32> {
    let body = after_header(stream)?;
    let (body, trailer) = body.split_last_chunk::<8>()?;
    let mut zlib = Decompress::new(false);
    let (mut taken, mut made) = (0, 0);
    loop {
        let status =
            zlib.decompress_uninit(&body[taken..], &mut out[made..], FlushDecompress::Finish);
        let before = (taken, made);
        taken = usize::try_from(zlib.total_in()).ok()?;
        made = usize::try_from(zlib.total_out()).ok()?;
        match status.ok()? {
            Status::StreamEnd => break,
            _ if (taken, made) == before => return None,
            _ => {}
        }
    }
    let whole = taken == body.len() && made == out.len();
    whole.then(|| u32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]))
}

/// What comes after a header (RFC 1952, section 2.3), of which nothing but the method matters.
fn after_header(stream: &[u8]) -> Option<&[u8]> {
    let (fixed, mut rest) = stream.split_at_checked(10)?;
    if fixed[..3] != [super::MAGIC[0], super::MAGIC[1], 8] {
        return None;
    }
    let flag = |bit: u8| fixed[3] & 1 << bit != 0;
    if flag(2) {
        let (len, after) = rest.split_first_chunk::<2>()?;
        rest = after.get(usize::from(u16::from_le_bytes(*len))..)?;
    }
    for text in [flag(3), flag(4)] {
        if text {
            let end = rest.iter().position(|&byte| byte == 0)?;
            rest = &rest[end + 1..];
        }
    }
    if flag(1) {
        rest = rest.get(2..)?;
    }
    Some(rest)
}
