//! Inflating a stream of one member into memory of the size that it claims.

use std::mem::MaybeUninit;

use flate2::{Decompress, FlushDecompress, Status};
use libdeflate_sys as libdeflate;

use super::decompress::STEP_BYTES;
use super::index::MAX_EXPANSION;
use crate::Result;

/// How many bytes are made at a time.
const PLACE_BYTES: usize = 1 << 20;

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

/// Fills `out` with what the stream contains, in one go, and compares the checksum. Returns
/// false, with anything in `out`, if the stream is anything but one member of just this size.
///
/// A code of a single symbol is read whatever its bit, which zlib finds damaged if it is 1.
#[must_use]
#[allow(unsafe_code)] // the safe binding does not tell how much of the stream has been read
pub fn inflate_at_once(stream: &[u8], out: &mut [MaybeUninit<u8>]) -> bool {
    let (mut taken, mut made) = (0, 0);
    // SAFETY: the decompressor is used here alone and freed once. The function reads no more
    // than the length of the stream, and writes to `out`, which it does not read before,
    // no more than its length. Bytes that change meanwhile make it read other symbols;
    // each is loaded once and checked then.
    let status = unsafe {
        let decompressor = libdeflate::libdeflate_alloc_decompressor();
        if decompressor.is_null() {
            return false;
        }
        let status = libdeflate::libdeflate_gzip_decompress_ex(
            decompressor,
            stream.as_ptr().cast(),
            stream.len(),
            out.as_mut_ptr().cast(),
            out.len(),
            &raw mut taken,
            &raw mut made,
        );
        libdeflate::libdeflate_free_decompressor(decompressor);
        status
    };
    status == libdeflate::libdeflate_result_LIBDEFLATE_SUCCESS
        && taken == stream.len()
        && made == out.len()
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
        // It is zeroed before, and should still be in the cache when it is filled.
        let end = out.len().min(made + PLACE_BYTES);
        let status = zlib.decompress_uninit(part, &mut out[made..end], FlushDecompress::None);
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

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::gzip::oracle::gzip;

    fn at_once(stream: &[u8]) -> (bool, Vec<u8>) {
        let mut out = vec![0; claimed_size(stream)];
        let mut place: Vec<_> = out.iter().copied().map(MaybeUninit::new).collect();
        let whole = inflate_at_once(stream, &mut place);
        for (byte, made) in out.iter_mut().zip(place) {
            // SAFETY: all of it was made of bytes.
            *byte = unsafe { made.assume_init() };
        }
        (whole, out)
    }

    /// What the stream is by the size that it claims, both ways.
    fn inflate_both(stream: &[u8]) -> Option<Vec<u8>> {
        let mut in_steps = vec![MaybeUninit::new(0); claimed_size(stream)];
        let (whole, at_once) = at_once(stream);
        let checksum = inflate(stream, &mut in_steps, |_| Ok(())).unwrap();
        let sound = checksum.is_some_and(|sum| sum == crc32fast::hash(&at_once));
        assert_eq!(whole, sound);
        whole.then_some(at_once)
    }

    #[test]
    fn one_member_is_inflated_and_nothing_else() {
        let (data, other) = (
            b"some text, some text".repeat(9),
            b"other text, abcd".repeat(9),
        );
        let (stream, other) = (gzip(&data), gzip(&other[..data.len().min(other.len())]));
        assert_eq!(inflate_both(&stream).unwrap(), data);
        // Others of the same size, and even of the same checksum, must not get lost.
        let same_size = gzip(&data.iter().rev().copied().collect::<Vec<_>>());
        for after in [&stream, &other, &same_size] {
            assert_eq!(inflate_both(&[&stream[..], after].concat()), None);
            let padded = [&stream[..], &[0; 9], after].concat();
            assert_eq!(inflate_both(&padded), None);
        }
        let (before, trailer) = stream.split_at(stream.len() - 8);
        for inserted in [&b"x"[..], trailer, b"12345678"] {
            assert_eq!(inflate_both(&[before, inserted, trailer].concat()), None);
        }
        for after in [&trailer[4..], trailer, &[0; 4]] {
            assert_eq!(inflate_both(&[&stream[..], after].concat()), None);
        }
    }

    #[test]
    fn no_damage_is_overlooked() {
        let data = b"some text, some text, and more".repeat(3);
        let stream = gzip(&data);
        for end in 0..stream.len() {
            assert_eq!(inflate_both(&stream[..end]), None, "{end}");
        }
        for at in (0..stream.len()).filter(|at| !(4..10).contains(at)) {
            for flipped in 1..=255 {
                let mut stream = stream.clone();
                stream[at] ^= flipped;
                // Bit 0 of the flags says that this is text, which makes no difference.
                let (sound, out) = at_once(&stream);
                assert!(!sound || out == data, "{at} {flipped}");
            }
        }
    }
}
