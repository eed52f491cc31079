//! Inflating a stream of one member into memory of the size that it claims.

use std::mem::MaybeUninit;

use flate2::{Decompress, FlushDecompress, Status};

use super::decompress::STEP_BYTES;
use super::index::MAX_EXPANSION;
use crate::Result;

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
///
/// `done` is told how many bytes of the stream have been read, and can stop the work.
pub fn inflate(
    stream: &[u8],
    out: &mut [MaybeUninit<u8>],
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Option<u32>> {
    let body = after_header(stream).and_then(<[u8]>::split_last_chunk::<8>);
    let Some((body, trailer)) = body else {
        return Ok(None);
    };
    let before_body = stream.len() - body.len();
    let mut zlib = Decompress::new(false);
    let (mut taken, mut made) = (0, 0);
    loop {
        let part = &body[taken..body.len().min(taken + STEP_BYTES)];
        let status = zlib.decompress_uninit(part, &mut out[made..], FlushDecompress::None);
        let before = (taken, made);
        let totals = (
            usize::try_from(zlib.total_in()),
            usize::try_from(zlib.total_out()),
        );
        let (Ok(status), (Ok(now_taken), Ok(now_made))) = (status, totals) else {
            return Ok(None);
        };
        (taken, made) = (now_taken, now_made);
        match status {
            Status::StreamEnd => break,
            _ if (taken, made) == before => return Ok(None),
            _ => done(before_body + taken)?,
        }
    }
    let whole = taken == body.len() && made == out.len();
    let checksum = [trailer[0], trailer[1], trailer[2], trailer[3]];
    Ok(whole.then(|| u32::from_le_bytes(checksum)))
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
