//! Inflating any gzip stream, with the behaviour of Python's `gzip.decompress`.

use std::io::{self, Read};

use flate2::bufread::GzDecoder;

use super::MAGIC;
use crate::{Error, Result};

/// After how many bytes the caller is told how far the work has come.
pub(super) const STEP_BYTES: usize = 4 << 20;

/// All members of `data`, one after the other; zero bytes after a member are ignored.
///
/// Room is made as bytes come out, never on the word of the stream. `done` is told how many
/// bytes of the stream have been read, and can stop the work.
pub fn decompress(
    data: &[u8],
    max_size: Option<usize>,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = data;
    while !rest.is_empty() {
        if !MAGIC.starts_with(&rest[..rest.len().min(2)]) {
            return Err(Error::Gzip(format!(
                "not a gzip stream at byte {}: it starts with {}",
                data.len() - rest.len(),
                rest[..rest.len().min(2)].escape_ascii()
            )));
        }
        let mut member = GzDecoder::new(rest);
        loop {
            // One byte more than there may be, to notice it.
            let room = max_size.map_or(usize::MAX, |max_size| {
                (max_size - out.len()).saturating_add(1)
            });
            let step = room.min(STEP_BYTES) as u64;
            let found = member.by_ref().take(step).read_to_end(&mut out);
            let found = found.map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => Error::GzipTruncated,
                io::ErrorKind::OutOfMemory => Error::Io(error),
                _ => Error::Gzip(error.to_string()),
            })?;
            if let Some(max_size) = max_size
                && out.len() > max_size
            {
                return Err(Error::OutputLimit { max_size });
            }
            if found == 0 {
                break;
            }
            done(data.len() - member.get_ref().len())?;
        }
        let after = member.into_inner();
        let padding = after.iter().take_while(|&&byte| byte == 0).count();
        rest = &after[padding..];
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gzip::oracle::gzip;

    #[test]
    fn members_are_joined_and_zero_padding_is_ignored() {
        let stream = [gzip(b"one"), vec![0; 5], gzip(b""), gzip(b" two"), vec![0]].concat();
        assert_eq!(decompress(&stream, None, |_| Ok(())).unwrap(), b"one two");
        assert_eq!(decompress(b"", None, |_| Ok(())).unwrap(), b"");
    }

    #[test]
    fn every_truncation_is_noticed() {
        let stream = gzip(b"some text, some text");
        for end in 1..stream.len() {
            let error = decompress(&stream[..end], None, |_| Ok(())).unwrap_err();
            assert!(matches!(error, Error::GzipTruncated), "{end}: {error:?}");
        }
    }

    #[test]
    fn garbage_is_an_error() {
        assert!(matches!(
            decompress(b"hello", None, |_| Ok(())),
            Err(Error::Gzip(_))
        ));
        let stream = [gzip(b"one"), b"junk".to_vec()].concat();
        assert!(matches!(
            decompress(&stream, None, |_| Ok(())),
            Err(Error::Gzip(_))
        ));
    }

    #[test]
    fn the_output_is_bounded() {
        let stream = gzip(&[7; 1000]);
        assert_eq!(
            decompress(&stream, Some(1000), |_| Ok(())).unwrap().len(),
            1000
        );
        let error = decompress(&stream, Some(999), |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::OutputLimit { max_size: 999 }));
    }
}
