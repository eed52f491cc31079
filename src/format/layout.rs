//! An output that is not written yet: header bytes, with payloads between them.
//!
//! A [`Layout`] knows all offsets and copies any byte range [a, b) of the output, for every sink.

use std::ops::Range;

use smallvec::SmallVec;

use crate::base::digest::Digest;
use crate::base::raw::{AsRaw, Buffer, Filling, RawBytes, Uninit, append_with};
use crate::base::source::Source;
use crate::base::watch::Watch;
use crate::format::footer::Seal;
use crate::{Error, Result, base::grow, base::parallel, base::stream};

/// The bytes that are digested at a time: they fit the caches.
pub const DIGEST_BYTES: usize = 256 << 10;

/// The bytes of a leaf, which are copied, never lent as a slice (see [`crate::base::raw`]).
pub trait Payload {
    fn len(&self) -> usize;

    /// Fills `target` from `start` on, and returns it.
    ///
    /// # Panics
    /// If there are too few bytes.
    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]>;

    fn memory(&self) -> Option<RawBytes<'_>> {
        None
    }
}

impl<M: AsRaw> Payload for M {
    #[inline]
    fn len(&self) -> usize {
        self.as_raw().len()
    }

    #[inline]
    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let memory = self.as_raw().slice(start..start + target.len());
        Ok(memory.copy_to(target))
    }

    #[inline]
    fn memory(&self) -> Option<RawBytes<'_>> {
        Some(self.as_raw())
    }
}

#[derive(Debug)]
pub struct LayoutBuilder<P> {
    headers: Buffer,
    pieces: Vec<Piece<P>>,
    payload_bytes: usize,
}

#[derive(Debug)]
struct Piece<P> {
    headers_end: usize,
    end: usize,
    payload: P,
}

impl<P> Default for LayoutBuilder<P> {
    fn default() -> Self {
        Self {
            headers: Buffer::default(),
            pieces: Vec::new(),
            payload_bytes: 0,
        }
    }
}

impl<P: Payload> LayoutBuilder<P> {
    #[inline]
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload_bytes
    }

    #[inline]
    pub fn headers(&mut self) -> &mut Buffer {
        &mut self.headers
    }

    #[inline]
    pub(crate) fn has_payloads(&self) -> bool {
        !self.pieces.is_empty()
    }

    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        self.headers.append(bytes.into())
    }

    #[inline]
    pub fn push(&mut self, payload: P) -> Result<()> {
        self.pieces.try_reserve(1)?;
        self.payload_bytes += payload.len();
        self.pieces.push(Piece {
            headers_end: self.headers.len(),
            end: self.len(),
            payload,
        });
        Ok(())
    }

    /// Returns the digest of the payloads of each region that ends there.
    pub(crate) fn digests(&self, ends: &[usize], watch: &dyn Watch) -> Result<Vec<Digest>> {
        let mut digests = grow::filled(Digest::default(), ends.len())?;
        let mut copy = Vec::new();
        for (number, piece) in self.pieces.iter().enumerate() {
            let len = piece.payload.len();
            let region = ends.partition_point(|end| *end <= piece.end - len);
            for part in parallel::blocks(0..len, DIGEST_BYTES) {
                watch.check()?;
                let slice = Slice::Payload(&piece.payload, number, part);
                let digest = slice.digest(&mut copy)?;
                digests[region] = digests[region].join(digest, slice.len() as u64);
            }
        }
        Ok(digests)
    }

    /// Removes and returns the header bytes from output offset `start` on.
    ///
    /// # Panics
    /// If a payload follows `start`.
    pub fn take_headers(&mut self, start: usize) -> Result<SmallVec<[u8; 64]>> {
        let kept = start
            .checked_sub(self.payload_bytes)
            .expect("no payload after the start");
        assert!(
            self.pieces
                .last()
                .is_none_or(|piece| piece.headers_end <= kept)
        );
        let mut taken = SmallVec::new();
        let headers = &self.headers[kept..];
        taken
            .try_reserve(headers.len())
            .map_err(|_| Error::OutOfMemory)?;
        taken.extend_from_slice(headers);
        self.headers.truncate(kept);
        Ok(taken)
    }

    pub fn finish(self) -> Layout<P> {
        self.sealed(None)
    }

    pub(crate) fn sealed(self, seal: Option<Seal>) -> Layout<P> {
        Layout {
            seal,
            len: self.len(),
            pieces: self.pieces,
            headers: self.headers,
        }
    }
}

#[derive(Debug)]
pub struct Layout<P> {
    headers: Buffer,
    pieces: Vec<Piece<P>>,
    len: usize,
    seal: Option<Seal>,
}

#[derive(Debug)]
pub enum Slice<'a, P> {
    Headers(&'a [u8]),
    Payload(&'a P, usize, Range<usize>),
}

impl<P: Payload> Slice<'_, P> {
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Headers(bytes) => bytes.len(),
            Self::Payload(_, _, range) => range.len(),
        }
    }

    pub fn memory(&self) -> Option<RawBytes<'_>> {
        match self {
            Self::Headers(bytes) => Some((*bytes).into()),
            Self::Payload(payload, _, range) => Some(payload.memory()?.slice(range.clone())),
        }
    }

    /// Returns the digest, of the memory where it lies or of a copy.
    pub fn digest(&self, copy: &mut Vec<u8>) -> Result<Digest> {
        if let Some(memory) = self.memory() {
            return Digest::of_memory(memory, copy);
        }
        copy.clear();
        append_with(copy, self.len(), |target| self.copy_to(0, target))?;
        Ok(Digest::of(copy))
    }

    /// # Panics
    /// If there are too few bytes.
    #[inline]
    pub fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        match self {
            Self::Headers(bytes) => {
                Ok(target.write_copy_of_slice(&bytes[start..start + target.len()]))
            }
            Self::Payload(payload, _, range) => {
                assert!(start + target.len() <= range.len());
                payload.copy_to(range.start + start, target)
            }
        }
    }
}

/// A piece of the output to send.
#[derive(Debug)]
pub enum OutputPiece {
    Payload(usize),
    Joined(Range<usize>),
}

/// Whether copies go through the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    Usual,
    /// Past them where possible, for used memory; see `stream`.
    Past,
}

impl<P: Payload> Layout<P> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Computes the last bytes from all others; copies have zeros there.
    pub fn seal(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    pub(crate) fn joined(&self) -> Option<&Buffer> {
        let is_there = self.pieces.is_empty() && self.seal.is_none();
        is_there.then_some(&self.headers)
    }

    /// Takes each payload with the headers before it, and the last headers without one.
    pub(crate) fn take_apart(
        self,
        mut each: impl FnMut(&[u8], Option<P>) -> Result<()>,
    ) -> Result<()> {
        let mut start = 0;
        for piece in self.pieces {
            each(&self.headers[start..piece.headers_end], Some(piece.payload))?;
            start = piece.headers_end;
        }
        each(&self.headers[start..], None)
    }

    pub fn payloads(&self) -> impl Iterator<Item = &P> {
        self.pieces.iter().map(|piece| &piece.payload)
    }

    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut P> {
        self.pieces.iter_mut().map(|piece| &mut piece.payload)
    }

    /// # Panics
    /// If the payload does not exist.
    pub fn payload(&self, number: usize) -> &P {
        &self.pieces[number].payload
    }

    /// Fills `target` from `start` on, and returns it.
    ///
    /// # Panics
    /// If the output is shorter.
    pub fn copy_to<'t>(
        &self,
        start: usize,
        target: &'t mut Uninit,
        caching: Caching,
    ) -> Result<&'t mut [u8]> {
        let range = start..start + target.len();
        let mut filling = Filling::new(target);
        for slice in self.slices(range) {
            filling.fill(slice.len(), |now| match slice.memory() {
                Some(memory) if caching == Caching::Past => Ok(stream::copy(memory, now)),
                _ => slice.copy_to(0, now),
            })?;
        }
        assert!(filling.left() == 0, "the slices of a range cover it");
        Ok(filling.finish())
    }

    /// Splits the output into payloads in memory of at least `join_max` bytes, and joined ranges
    /// between.
    pub fn pieces(&self, join_max: usize) -> Result<Vec<OutputPiece>> {
        let mut pieces = Vec::new();
        let mut joined = 0;
        let join = |pieces: &mut Vec<_>, range: Range<usize>| {
            if range.is_empty() {
                return Ok(());
            }
            grow::push(pieces, OutputPiece::Joined(range))
        };
        for (number, piece) in self.pieces.iter().enumerate() {
            let len = piece.payload.len();
            if len >= join_max && piece.payload.memory().is_some() {
                join(&mut pieces, joined..piece.end - len)?;
                grow::push(&mut pieces, OutputPiece::Payload(number))?;
                joined = piece.end;
            }
        }
        join(&mut pieces, joined..self.len)?;
        Ok(pieces)
    }

    /// Splits a range into non-empty slices.
    ///
    /// # Panics
    /// If the output is shorter.
    pub fn slices(&self, range: Range<usize>) -> impl Iterator<Item = Slice<'_, P>> {
        assert!(range.end <= self.len);
        let mut position = range.start;
        let mut index = self.pieces.partition_point(|piece| piece.end <= position);
        std::iter::from_fn(move || {
            if position >= range.end {
                return None;
            }
            let most = range.end - position;
            let slice = loop {
                let (headers_start, start) = match index.checked_sub(1) {
                    Some(before) => (self.pieces[before].headers_end, self.pieces[before].end),
                    None => (0, 0),
                };
                let piece = self.pieces.get(index);
                let headers_end = piece.map_or(self.headers.len(), |piece| piece.headers_end);
                let headers = &self.headers[headers_start..headers_end];
                let within = position - start;
                if within < headers.len() {
                    let end = headers.len().min(within + most);
                    break Slice::Headers(&headers[within..end]);
                }
                let piece = piece?; // the headers after the last payload end the output
                if position < piece.end {
                    let from = within - headers.len();
                    let to = (piece.end - start - headers.len()).min(from + most);
                    break Slice::Payload(&piece.payload, index, from..to);
                }
                index += 1;
            };
            position += slice.len();
            Some(slice)
        })
    }
}

impl<P: Payload + Sync> Source for Layout<P> {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.copy_to(offset, target, Caching::Usual)
    }

    fn phase(&self, range: Range<usize>) -> usize {
        let (mut at, mut most, mut phase) = (0_usize, 0, 0);
        for slice in self.slices(range) {
            if let Slice::Payload(_, _, within) = &slice
                && within.len() > most
            {
                most = within.len();
                phase = at.wrapping_sub(within.start) % 8;
            }
            at += slice.len();
        }
        phase
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(parts: &[(Vec<u8>, Vec<u8>)], tail: &[u8]) -> (Layout<Vec<u8>>, Vec<u8>) {
        let mut builder = LayoutBuilder::default();
        let mut whole = Vec::new();
        for (header, payload) in parts {
            builder.headers().extend_from_slice(header);
            builder.push(payload.clone()).unwrap();
            whole.extend_from_slice(header);
            whole.extend_from_slice(payload);
        }
        builder.headers().extend_from_slice(tail);
        whole.extend_from_slice(tail);
        (builder.finish(), whole)
    }

    fn bytes(layout: &Layout<Vec<u8>>, range: Range<usize>) -> Vec<u8> {
        let mut out = Vec::new();
        crate::base::raw::append_with(&mut out, range.len(), |target| {
            layout.copy_to(range.start, target, Caching::Usual)
        })
        .unwrap();
        out
    }

    proptest! {
        #[test]
        fn any_range_is_that_range_of_the_whole(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..5), prop::collection::vec(any::<u8>(), 0..9)), 0..8),
            tail in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let (layout, whole) = layout(&parts, &tail);
            prop_assert_eq!(layout.len(), whole.len());
            for start in 0..=whole.len() {
                for end in start..=whole.len() {
                    prop_assert_eq!(bytes(&layout, start..end), &whole[start..end]);
                    prop_assert!(layout.slices(start..end).all(|slice| slice.len() > 0));
                    for slice in layout.slices(start..end) {
                        if let Slice::Payload(payload, index, range) = slice {
                            prop_assert_eq!(payload, &parts[index].1);
                            prop_assert!(range.end <= payload.len());
                        }
                    }
                }
            }
        }

        #[test]
        fn pieces_are_the_whole(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..5), prop::collection::vec(any::<u8>(), 0..9)), 0..8),
            join_max in 1usize..9,
        ) {
            let (layout, whole) = layout(&parts, &[]);
            let mut content = Vec::new();
            for piece in layout.pieces(join_max).unwrap() {
                match piece {
                    OutputPiece::Payload(number) => {
                        prop_assert!(layout.payload(number).len() >= join_max);
                        content.extend_from_slice(layout.payload(number));
                    }
                    OutputPiece::Joined(range) => content.extend(bytes(&layout, range)),
                }
            }
            prop_assert_eq!(content, whole);
        }
    }

    #[test]
    fn the_phase_is_of_the_array_with_the_largest_share() {
        let parts = [(vec![0; 3], vec![1; 10]), (vec![0; 2], vec![2; 20])];
        let (layout, _) = layout(&parts, &[]);
        for (range, phase) in [(0..3, 0), (0..14, 3), (0..35, 7), (14..35, 1), (16..35, 7)] {
            assert_eq!(Source::phase(&&layout, range), phase);
        }
    }

    #[test]
    fn headers_can_be_taken_back() {
        let mut builder = LayoutBuilder::default();
        builder.headers().extend_from_slice(b"ab");
        builder.push(vec![1, 2, 3]).unwrap();
        let start = builder.len();
        builder.headers().extend_from_slice(b"key");
        assert_eq!(*builder.take_headers(start).unwrap(), *b"key");
        assert_eq!(builder.len(), start);
        assert_eq!(bytes(&builder.finish(), 0..5), b"ab\x01\x02\x03");
    }
}
