//! The output before it exists: small header bytes, and borrowed payloads between them.
//!
//! A [`Layout`] answers one question, "which bytes are [a, b) of the output?",
//! as slices in order. Every sink (memory, file, gzip) is written on that alone.

use std::ops::Range;

/// Bytes that a layout borrows, which lie in one run of memory or in several.
pub trait Payload {
    /// How many bytes there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The adjacent bytes from `offset` (which is below `len`) on: at least one.
    fn run(&self, offset: usize) -> &[u8];
}

impl Payload for Vec<u8> {
    fn len(&self) -> usize {
        self.len()
    }

    fn run(&self, offset: usize) -> &[u8] {
        &self[offset..]
    }
}

/// Collects headers and payloads in the order of the output.
#[derive(Debug)]
pub struct LayoutBuilder<P> {
    headers: Vec<u8>,
    pieces: Vec<Piece<Option<P>>>,
    /// Bytes of all payloads so far.
    payload_bytes: usize,
}

/// The headers up to a point, and the payload after them.
#[derive(Debug)]
struct Piece<P> {
    /// Where its headers end in the arena.
    headers_end: usize,
    /// Where its payload ends in the output.
    end: usize,
    payload: P,
}

impl<P> Default for LayoutBuilder<P> {
    fn default() -> Self {
        Self {
            headers: Vec::new(),
            pieces: Vec::new(),
            payload_bytes: 0,
        }
    }
}

impl<P: Payload> LayoutBuilder<P> {
    /// How many bytes the output has so far.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload_bytes
    }

    /// Whether nothing has been added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where header bytes are appended.
    #[inline]
    pub fn headers(&mut self) -> &mut Vec<u8> {
        &mut self.headers
    }

    /// Appends a payload.
    #[inline]
    pub fn push(&mut self, payload: P) {
        self.add(payload.len(), Some(payload));
    }

    /// Leaves a place for a payload of `len` bytes; [`LayoutBuilder::fill`] puts it there.
    #[inline]
    pub fn reserve(&mut self, len: usize) -> usize {
        self.add(len, None);
        self.pieces.len() - 1
    }

    #[inline]
    fn add(&mut self, len: usize, payload: Option<P>) {
        self.payload_bytes += len;
        self.pieces.push(Piece {
            headers_end: self.headers.len(),
            end: self.len(),
            payload,
        });
    }

    /// Puts a payload into the place that `reserve` returned.
    ///
    /// # Panics
    /// If the payload has not the length that was reserved: the offsets of
    /// everything after it would be wrong.
    #[inline]
    pub fn fill(&mut self, place: usize, payload: P) {
        let start = match place.checked_sub(1) {
            Some(before) => {
                let gap = self.pieces[place].headers_end - self.pieces[before].headers_end;
                self.pieces[before].end + gap
            }
            None => self.pieces[place].headers_end,
        };
        let reserved = self.pieces[place].end - start;
        assert_eq!(payload.len(), reserved, "a payload of another length");
        self.pieces[place].payload = Some(payload);
    }

    /// The finished layout.
    ///
    /// # Panics
    /// If a reserved place was never filled.
    #[must_use]
    pub fn finish(self) -> Layout<P> {
        let len = self.len();
        let pieces = self.pieces.into_iter().map(|piece| Piece {
            headers_end: piece.headers_end,
            end: piece.end,
            payload: piece.payload.expect("every reserved place is filled"),
        });
        Layout {
            pieces: pieces.collect(),
            headers: self.headers,
            len,
        }
    }
}

/// All bytes of the output, not yet in one place.
#[derive(Debug)]
pub struct Layout<P> {
    headers: Vec<u8>,
    pieces: Vec<Piece<P>>,
    len: usize,
}

/// A piece of the output.
#[derive(Debug)]
pub enum OutputPiece<'a> {
    /// Bytes that lie together.
    Run(&'a [u8]),
    /// A range of the output that lies in several places.
    Joined(Range<usize>),
}

impl<P: Payload> Layout<P> {
    /// The exact number of bytes in the output.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the output is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All payloads in order.
    pub fn payloads(&self) -> impl Iterator<Item = &P> {
        self.pieces.iter().map(|piece| &piece.payload)
    }

    /// The whole output in pieces, of which those below `join_max` bytes are joined with
    /// their neighbours.
    #[must_use]
    pub fn pieces(&self, join_max: usize) -> Vec<OutputPiece<'_>> {
        let mut pieces = Vec::new();
        let (mut joined, mut position) = (0, 0);
        for slice in self.slices(0..self.len) {
            if slice.len() >= join_max {
                if joined < position {
                    pieces.push(OutputPiece::Joined(joined..position));
                }
                pieces.push(OutputPiece::Run(slice));
                joined = position + slice.len();
            }
            position += slice.len();
        }
        if joined < position {
            pieces.push(OutputPiece::Joined(joined..position));
        }
        pieces
    }

    /// The bytes of `range` of the output, as non-empty slices in order.
    pub fn slices(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        debug_assert!(range.end <= self.len);
        let mut position = range.start;
        let mut index = self.pieces.partition_point(|piece| piece.end <= position);
        std::iter::from_fn(move || {
            if position >= range.end {
                return None;
            }
            let run = loop {
                let (headers_start, start) = match index.checked_sub(1) {
                    Some(before) => (self.pieces[before].headers_end, self.pieces[before].end),
                    None => (0, 0),
                };
                let piece = self.pieces.get(index);
                let headers_end = piece.map_or(self.headers.len(), |piece| piece.headers_end);
                let headers = &self.headers[headers_start..headers_end];
                let within = position - start;
                if within < headers.len() {
                    break &headers[within..];
                }
                let piece = piece?; // the headers after the last payload end the output
                if position < piece.end {
                    break piece.payload.run(within - headers.len());
                }
                index += 1;
            };
            let run = &run[..run.len().min(range.end - position)];
            debug_assert!(!run.is_empty());
            position += run.len();
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(parts: &[(Vec<u8>, Vec<u8>)], tail: &[u8]) -> (Layout<Vec<u8>>, Vec<u8>) {
        let mut builder = LayoutBuilder::default();
        let mut whole = Vec::new();
        let mut places = Vec::new();
        for (header, payload) in parts {
            builder.headers().extend_from_slice(header);
            if payload.len() % 2 == 0 {
                builder.push(payload.clone());
            } else {
                places.push((builder.reserve(payload.len()), payload.clone()));
            }
            whole.extend_from_slice(header);
            whole.extend_from_slice(payload);
        }
        builder.headers().extend_from_slice(tail);
        whole.extend_from_slice(tail);
        for (place, payload) in places.into_iter().rev() {
            builder.fill(place, payload);
        }
        (builder.finish(), whole)
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
                    let slices: Vec<&[u8]> = layout.slices(start..end).collect();
                    prop_assert!(slices.iter().all(|slice| !slice.is_empty()));
                    prop_assert_eq!(slices.concat(), &whole[start..end]);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "another length")]
    fn a_payload_of_another_length_is_refused() {
        let mut builder = LayoutBuilder::default();
        let place = builder.reserve(3);
        builder.fill(place, vec![1, 2]);
    }
}
