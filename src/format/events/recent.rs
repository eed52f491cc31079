//! Recognises headers of arrays that were read recently.

use super::ArrayEntry;
use crate::format::wire::AHEAD;

/// The bodies of recent arrays up to the payload: comparing headers is cheaper than parsing them.
pub(super) struct RecentHeaders {
    known: Vec<KnownHeaders>,
    oldest: usize,
}

struct KnownHeaders {
    /// The headers, followed by zeros.
    bytes: [u128; 2],
    mask: [u128; 2],
    headers: usize,
    len: u32,
    array: ArrayEntry,
}

impl RecentHeaders {
    const COUNT: usize = 4;

    pub(super) fn new() -> Self {
        Self {
            known: Vec::with_capacity(Self::COUNT),
            oldest: 0,
        }
    }

    /// The length and array of known headers at the start of a body of `len` bytes.
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
