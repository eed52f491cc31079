//! Headers of arrays that were read last, to be recognised.

use super::ArrayEntry;
use crate::wire::AHEAD;

/// All that stands before the payload in the body of arrays. A tree has many arrays of few
/// shapes, and to compare their headers with these costs less than to read them.
pub(super) struct RecentHeaders {
    known: Vec<KnownHeaders>,
    /// Which of them is replaced next.
    oldest: usize,
}

struct KnownHeaders {
    /// Two words, in which what comes after the headers is zero.
    bytes: [u128; 2],
    /// All bits of the headers, and none after them.
    mask: [u128; 2],
    /// How many bytes they have.
    headers: usize,
    /// How many bytes the body has.
    len: u32,
    /// The array that they were read of.
    array: ArrayEntry,
}

impl RecentHeaders {
    const COUNT: usize = 4;

    /// Room for all of them.
    pub(super) fn new() -> Self {
        Self {
            known: Vec::with_capacity(Self::COUNT),
            oldest: 0,
        }
    }

    /// How many bytes the headers at the start of a body of `len` bytes have, and the array that
    /// had the same.
    #[inline]
    pub(super) fn find(&self, ahead: [u8; AHEAD], len: u32) -> Option<(usize, ArrayEntry)> {
        let words = words(ahead);
        let same = |known: &&KnownHeaders| {
            let differs = |word: usize| (words[word] & known.mask[word]) ^ known.bytes[word];
            known.len == len && differs(0) | differs(1) == 0
        };
        let known = self.known.iter().find(same)?;
        Some((known.headers, known.array))
    }

    /// Takes note of so many bytes of headers, unless they are too many.
    pub(super) fn remember(
        &mut self,
        mut ahead: [u8; AHEAD],
        headers: usize,
        len: u32,
        array: ArrayEntry,
    ) {
        if headers > AHEAD {
            return;
        }
        let mut mask = [0; AHEAD];
        mask[..headers].fill(0xff);
        ahead[headers..].fill(0);
        let known = KnownHeaders {
            bytes: words(ahead),
            mask: words(mask),
            headers,
            len,
            array,
        };
        if self.known.len() < Self::COUNT {
            self.known.push(known);
        } else {
            self.known[self.oldest] = known;
            self.oldest = (self.oldest + 1) % Self::COUNT;
        }
    }
}

fn words(bytes: [u8; AHEAD]) -> [u128; 2] {
    let (halves, _) = bytes.as_chunks::<16>();
    [halves[0], halves[1]].map(u128::from_ne_bytes)
}
