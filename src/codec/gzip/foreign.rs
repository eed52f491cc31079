//! Inflates gzip streams of other writers.
//!
//! One member of known size in stable memory is inflated in one call, which is fastest; all others
//! in steps, as by Python's `gzip.decompress`, errors included.

use std::io::{self, BufRead, Read};
use std::mem::MaybeUninit;

use flate2::bufread::DeflateDecoder;
use libdeflate_sys as libdeflate;

use super::format::{MAGIC, MAX_EXPANSION, NUMBERS_HEADER};
use super::numbers;
use crate::base::error::mismatch;
use crate::base::pages::Pages;
use crate::base::raw::Uninit;
use crate::base::source::{Source, bytes_of, read_to};
use crate::base::watch::Watch;
use crate::{Error, Result, codec::zlib};

/// A compressed stream of any writer, or perhaps one.
#[derive(Clone, Copy)]
pub struct Stream<'a>(pub &'a dyn Source);

impl Stream<'_> {
    /// Returns whether it starts as compressed ones do.
    pub fn is_compressed(self) -> Result<bool> {
        // A read, since a page fault in a mapping would read many pages ahead.
        let mut start = [MaybeUninit::uninit(); NUMBERS_HEADER.len()];
        let len = start.len().min(self.0.len());
        let start = self.0.read_at(0, &mut start[..len])?;
        Ok(start.starts_with(&MAGIC) || *start == NUMBERS_HEADER)
    }

    /// The size that the stream claims, if plausible; otherwise 0.
    pub fn claimed_size(self) -> Result<usize> {
        let len = self.0.len();
        let end = bytes_of(self.0, len.saturating_sub(4)..len)?;
        let size = end
            .first_chunk()
            .map(|size| u32::from_le_bytes(*size) as usize);
        let size = size.filter(|size| *size <= len.saturating_mul(MAX_EXPANSION));
        Ok(size.unwrap_or(0))
    }

    /// Inflates one member in immutable memory into `out`, and compares the checksum. Returns
    /// `None`, with `out` undefined, for any other stream.
    ///
    /// In a code of a single symbol, libdeflate accepts both bits; zlib rejects a 1.
    #[allow(unsafe_code)] // the safe binding hides the number of consumed bytes
    pub fn inflate_at_once(self, out: &mut Uninit) -> Option<&mut [u8]> {
        let stream = self.0.stable()?;
        let (mut taken, mut written) = (0, 0);
        // SAFETY: only this call uses the decompressor, and frees it once. The function reads at most
        // the length of the stream, which never changes, and writes at most the length of `out` without
        // reading it first.
        let status = unsafe {
            let decompressor = libdeflate::libdeflate_alloc_decompressor();
            if decompressor.is_null() {
                return None;
            }
            let status = libdeflate::libdeflate_gzip_decompress_ex(
                decompressor,
                stream.as_ptr().cast(),
                stream.len(),
                out.as_mut_ptr().cast(),
                out.len(),
                &raw mut taken,
                &raw mut written,
            );
            libdeflate::libdeflate_free_decompressor(decompressor);
            status
        };
        let whole = status == libdeflate::libdeflate_result_LIBDEFLATE_SUCCESS
            && taken == stream.len()
            && written == out.len();
        // SAFETY: all bytes were written.
        whole.then(|| unsafe { out.assume_init_mut() })
    }

    /// Inflates all members; zero bytes may follow a member. Reserves `expected` bytes. `watch`
    /// counts bytes of the stream.
    pub fn inflate(
        self,
        expected: usize,
        max_size: Option<usize>,
        watch: &dyn Watch,
    ) -> Result<Pages> {
        let mut out = Pages::with_room(expected.min(max_size.unwrap_or(usize::MAX)))?;
        inflate_to(&mut out, self.0, max_size, false, watch)?;
        Ok(out)
    }

    /// Inflates the bytes before the first damage, which is returned as well.
    pub fn salvage(
        self,
        max_size: Option<usize>,
        watch: &dyn Watch,
    ) -> Result<(Pages, Option<Error>)> {
        let mut out = Pages::with_room(0)?;
        match inflate_to(&mut out, self.0, max_size, true, watch) {
            Ok(()) => Ok((out, None)),
            Err(damage @ (Error::Gzip(_) | Error::GzipTruncated)) => Ok((out, Some(damage))),
            Err(error) => Err(error),
        }
    }
}

/// Unless the index is `needed`, numbers with a truncated index are complete.
fn inflate_to(
    out: &mut Pages,
    stream: &dyn Source,
    max_size: Option<usize>,
    needed: bool,
    watch: &dyn Watch,
) -> Result<()> {
    let mut input = Input::at(stream, 0, watch);
    if !input.fill()?.starts_with(&NUMBERS_HEADER) {
        return inflate_members(out, input, max_size);
    }
    let end = numbers::inflate(stream, out, max_size, watch)?;
    let len = out.len();
    match inflate_members(out, Input::at(stream, end, watch), max_size) {
        Ok(()) if out.len() > len => Err(Error::Gzip("unexpected data after the numbers".into())),
        Err(Error::GzipTruncated) if !needed => Ok(()),
        done => done,
    }
}

fn inflate_members(out: &mut Pages, mut input: Input<'_>, max_size: Option<usize>) -> Result<()> {
    const STEP_BYTES: usize = 1 << 20;
    let (stream, watch) = (input.source, input.watch);
    while !input.fill()?.is_empty() {
        skip_header(&mut input)?;
        let mut member = zlib::state(|| DeflateDecoder::new(&mut input))?;
        let (begin, mut checksum) = (out.len(), crc32fast::Hasher::new());
        loop {
            if let Some(max_size) = max_size
                && out.len() > max_size
            {
                return Err(Error::OutputLimit { max_size });
            }
            let most = max_size.map_or(usize::MAX, |most| (most - out.len()).saturating_add(1));
            let room = out.room(STEP_BYTES.min(most))?;
            let room_bytes = room.len().min(most).min(STEP_BYTES);
            let written = match member.read(&mut room[..room_bytes]) {
                Ok(0) => break,
                Ok(written) => written,
                Err(error) => {
                    let written = usize::try_from(member.total_out()).unwrap_or(usize::MAX);
                    out.add(written.saturating_sub(out.len() - begin).min(room_bytes));
                    return Err(explain(error));
                }
            };
            out.add(written);
            checksum.update(&out.as_slice()[out.len() - written..]);
            let done = member.get_ref().offset();
            watch.done(done.min(stream.len().saturating_sub(1)))?;
        }
        drop(member);
        let claimed = [input.next()?, input.next()?].map(u32::from_le_bytes);
        let crc = checksum.finalize();
        if claimed[0] != crc {
            return Err(Error::Gzip(mismatch(claimed[0], crc)));
        }
        #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as in the format
        let size = (out.len() - begin) as u32;
        if claimed[1] != size {
            let reason = format!("size mismatch: expected {} bytes, found {size}", claimed[1]);
            return Err(Error::Gzip(reason));
        }
        while input.fill()?.first() == Some(&0) {
            input.consume(1);
        }
    }
    watch.done(stream.len())
}

/// Skips a member's header. Like Python, ignores its checksum.
fn skip_header(input: &mut Input<'_>) -> Result<()> {
    let start = input.offset();
    let mut first = Vec::new();
    let read = Read::take(&mut *input, 2).read_to_end(&mut first);
    read.map_err(explain)?;
    if !MAGIC.starts_with(&first) {
        return Err(Error::Gzip(format!(
            "not a gzip stream at byte {start}: it starts with {}",
            first.escape_ascii()
        )));
    }
    let [method, flags, ..] = input.next::<8>()?;
    if method != 8 {
        return Err(Error::Gzip(format!(
            "unknown compression method {method} at byte {start}"
        )));
    }
    if flags & 4 != 0 {
        for _ in 0..u16::from_le_bytes(input.next()?) {
            input.next::<1>()?;
        }
    }
    for text in [8, 16] {
        while flags & text != 0 && input.next()? != [0] {}
    }
    if flags & 2 != 0 {
        input.next::<2>()?;
    }
    Ok(())
}

fn explain(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::GzipTruncated,
        io::ErrorKind::OutOfMemory => Error::OutOfMemory,
        _ => match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => Error::Gzip(error.to_string()),
        },
    }
}

struct Input<'a> {
    source: &'a dyn Source,
    /// Checked at each read: members, their headers and the zeros after them may have no content.
    watch: &'a dyn Watch,
    copy: Vec<u8>,
    used: usize,
    end: usize,
}

impl<'a> Input<'a> {
    const BYTES: usize = 256 << 10;

    fn at(source: &'a dyn Source, start: usize, watch: &'a dyn Watch) -> Self {
        Self {
            source,
            watch,
            copy: Vec::new(),
            used: 0,
            end: start,
        }
    }

    fn offset(&self) -> usize {
        self.end - (self.copy.len() - self.used)
    }

    fn fill(&mut self) -> Result<&[u8]> {
        if self.used == self.copy.len() {
            let end = self.source.len().min(self.end + Self::BYTES);
            self.copy.clear();
            self.used = 0;
            self.watch.check()?;
            read_to(self.source, self.end..end, &mut self.copy)?;
            self.end = end;
        }
        Ok(&self.copy[self.used..])
    }

    fn next<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes).map_err(explain)?;
        Ok(bytes)
    }
}

impl Read for Input<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let len = self.fill_buf()?.read(target)?;
        self.consume(len);
        Ok(len)
    }
}

impl BufRead for Input<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill().map_err(io::Error::other)
    }

    fn consume(&mut self, bytes: usize) {
        self.used += bytes;
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::codec::gzip::oracle::gzip;

    fn at_once(stream: &[u8]) -> Option<Vec<u8>> {
        let size = Stream(&stream.to_vec()).claimed_size().unwrap();
        let mut out = vec![MaybeUninit::uninit(); size];
        Stream(&stream.to_vec())
            .inflate_at_once(&mut out)
            .map(|out| out.to_vec())
    }

    fn in_steps(stream: &[u8], max_size: Option<usize>) -> Result<Vec<u8>> {
        Stream(&stream.to_vec())
            .inflate(0, max_size, &())
            .map(|out| out.as_slice().to_vec())
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn one_member_is_inflated_at_once_and_nothing_else() {
        let (data, other) = (
            b"some text, some text".repeat(9),
            b"other text, abcd".repeat(9),
        );
        let (stream, other) = (gzip(&data), gzip(&other[..data.len().min(other.len())]));
        assert_eq!(at_once(&stream).unwrap(), data);
        let mut larger = vec![MaybeUninit::uninit(); data.len() + 1];
        assert!(Stream(&stream).inflate_at_once(&mut larger).is_none());
        let same_size = gzip(&data.iter().rev().copied().collect::<Vec<_>>());
        for after in [&stream, &other, &same_size] {
            assert_eq!(at_once(&[&stream[..], after].concat()), None);
            let padded = [&stream[..], &[0; 9], after].concat();
            assert_eq!(at_once(&padded), None);
            assert_eq!(in_steps(&padded, None).unwrap()[..data.len()], data);
        }
        let (before, trailer) = stream.split_at(stream.len() - 8);
        for inserted in [&b"x"[..], trailer, b"12345678"] {
            let stream = [before, inserted, trailer].concat();
            assert_eq!(at_once(&stream), None);
            assert!(in_steps(&stream, None).is_err());
        }
        for after in [&trailer[4..], trailer] {
            let stream = [&stream[..], after].concat();
            assert_eq!(at_once(&stream), None);
            assert!(in_steps(&stream, None).is_err());
        }
        let padded = [&stream[..], &[0; 4]].concat();
        assert_eq!(at_once(&padded), None);
        assert_eq!(in_steps(&padded, None).unwrap(), data);
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn no_damage_is_overlooked() {
        let data = b"some text, some text, and more".repeat(3);
        let stream = gzip(&data);
        for end in 0..stream.len() {
            assert_eq!(at_once(&stream[..end]), None, "{end}");
        }
        for at in (0..stream.len()).filter(|at| !(4..10).contains(at)) {
            for flipped in 1..=255 {
                let mut stream = stream.clone();
                stream[at] ^= flipped;
                // Bit 0 of the flags marks text and has no effect.
                for out in [at_once(&stream), in_steps(&stream, None).ok()] {
                    assert!(out.is_none_or(|out| out == data), "{at} {flipped}");
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn members_are_joined_and_zero_padding_is_ignored() {
        let stream = [gzip(b"one"), vec![0; 5], gzip(b""), gzip(b" two"), vec![0]].concat();
        assert_eq!(in_steps(&stream, None).unwrap(), b"one two");
        assert_eq!(in_steps(b"", None).unwrap(), b"");
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn every_truncation_is_noticed() {
        let stream = gzip(b"some text, some text");
        for end in 1..stream.len() {
            let error = in_steps(&stream[..end], None).unwrap_err();
            assert!(matches!(error, Error::GzipTruncated), "{end}: {error:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn all_bytes_before_the_damage_are_salvaged() {
        let data: Vec<u8> = (0..40_000_u32)
            .flat_map(|number| (number * number).to_le_bytes())
            .collect();
        let stream = [gzip(b"one"), gzip(&data)].concat();
        let whole = [b"one", &data[..]].concat();
        let salvaged = |stream: &[u8], max_size| Stream(&stream.to_vec()).salvage(max_size, &());
        let (pages, damage) = salvaged(&stream, None).unwrap();
        assert!(pages.as_slice() == whole && damage.is_none());
        let mut longest = 0;
        for end in (0..stream.len()).step_by(997) {
            let (pages, damage) = salvaged(&stream[..end], None).unwrap();
            assert!(end == 0 || matches!(damage, Some(Error::GzipTruncated)));
            assert!(whole.starts_with(pages.as_slice()) && pages.len() >= longest);
            longest = pages.len();
        }
        assert!(longest > data.len() * 9 / 10, "{longest}");
        let mut is_found = false;
        for at in (stream.len() / 2..stream.len()).step_by(997) {
            let mut damaged = stream.clone();
            damaged[at] ^= 0x55;
            let (pages, damage) = salvaged(&damaged, None).unwrap();
            is_found |= matches!(damage, Some(Error::Gzip(_)));
            let (sound, _) = salvaged(&stream[..at], None).unwrap();
            let sound = &sound.as_slice()[..sound.len() - 300];
            assert!(
                damage.is_some() && pages.as_slice().starts_with(sound),
                "{at}"
            );
        }
        assert!(is_found);
        let refused = salvaged(&stream, Some(whole.len() - 1));
        assert!(matches!(refused, Err(Error::OutputLimit { .. })));
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn streams_without_content_can_be_stopped() {
        struct Stop;
        impl Watch for Stop {
            fn check(&self) -> Result<()> {
                Err(Error::Stopped)
            }

            fn done(&self, _: usize) -> Result<()> {
                Ok(())
            }
        }
        let padding = [gzip(b"one"), vec![0; 2 * Input::BYTES]].concat();
        let members = gzip(b"").repeat(2 * Input::BYTES / 20);
        let mut name = b"\x1f\x8b\x08\x08\0\0\0\0\0\xff".to_vec();
        name.resize(2 * Input::BYTES, b'a');
        for stream in [padding, members, name] {
            let stopped = Stream(&stream).inflate(0, None, &Stop);
            assert!(matches!(stopped, Err(Error::Stopped)));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn garbage_is_an_error() {
        assert!(matches!(in_steps(b"hello", None), Err(Error::Gzip(_))));
        let stream = [gzip(b"one"), b"junk".to_vec()].concat();
        let error = in_steps(&stream, None).unwrap_err().to_string();
        let place = format!("at byte {}: it starts with ju", gzip(b"one").len());
        assert!(error.contains(&place), "{error}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "libdeflate is C")]
    fn the_output_is_bounded() {
        let stream = gzip(&[7; 1000]);
        assert_eq!(in_steps(&stream, Some(1000)).unwrap().len(), 1000);
        let error = in_steps(&stream, Some(999)).unwrap_err();
        assert!(matches!(error, Error::OutputLimit { max_size: 999 }));
        let two = [gzip(&[7; 600]), gzip(&[7; 600])].concat();
        assert!(matches!(
            in_steps(&two, Some(1000)),
            Err(Error::OutputLimit { .. })
        ));
        let large = gzip(&vec![1; 5 << 20]);
        assert_eq!(in_steps(&large, None).unwrap().len(), 5 << 20);
    }
}
