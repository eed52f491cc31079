//! Reads and writes bits in DEFLATE order: lowest bit of the first byte first.

// Casts keep the lowest byte of a word.
#![allow(clippy::cast_possible_truncation)]
// Functions are inlined, to compile with each caller's instruction set.

pub struct BitWriter<'a> {
    out: &'a mut [u8],
    position: usize,
    bits: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self {
            out,
            position: 0,
            bits: 0,
            count: 0,
        }
    }

    /// Appends `count` bits, at most 56 between flushes; higher bits must be zero.
    #[inline(always)]
    pub fn put(&mut self, bits: u64, count: u32) {
        self.bits |= bits << self.count;
        self.count += count;
    }

    #[inline(always)]
    pub fn flush(&mut self) {
        self.out[self.position..][..8].copy_from_slice(&self.bits.to_le_bytes());
        self.position += (self.count / 8) as usize;
        self.bits >>= self.count & !7;
        self.count %= 8;
    }

    /// Returns the number of full bytes, the unwritten bits, and their number, at most 7.
    pub fn pause(mut self) -> (usize, u64, u32) {
        self.flush();
        (self.position, self.bits, self.count)
    }

    /// Pads the last byte with zeros; returns the number of bytes.
    pub fn end(mut self) -> usize {
        self.put(0, self.count.wrapping_neg() % 8);
        self.flush();
        self.position
    }

    /// Appends an empty stored block, which ends at a byte boundary; returns the number of bytes.
    pub fn finish(mut self) -> usize {
        self.put(0, 3);
        self.put(0, self.count.wrapping_neg() % 8);
        self.put(0xffff_0000, 32);
        self.flush();
        self.position
    }
}

/// Reads bits. Past the end it returns zeros, which `ends` and `rest` detect.
#[derive(Clone, Copy)]
pub struct BitReader<'a> {
    input: &'a [u8],
    /// The offset of the next refill; may be past the end.
    position: usize,
    /// Unused bits below a sentinel: the zeros above it count the bits taken.
    bits: u64,
}

const MARK: u64 = 1 << 63;

impl<'a> BitReader<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        let mut reader = Self {
            input,
            position: 0,
            bits: MARK,
        };
        reader.refill();
        reader
    }

    /// Makes 56 bits ready. Near the end, does nothing and returns false.
    #[inline(always)]
    pub fn refill_inside(&mut self) -> bool {
        let (position, _) = self.next();
        let word = self.input.get(position..).and_then(<[u8]>::first_chunk);
        word.is_some_and(|word| {
            self.refill_from(*word);
            true
        })
    }

    /// Makes 56 bits ready, zeros past the end.
    #[inline]
    pub fn refill(&mut self) {
        if !self.refill_inside() {
            let (position, _) = self.next();
            let rest = self.input.get(position..).unwrap_or_default();
            let mut word = [0; 8];
            let len = rest.len().min(8);
            word[..len].copy_from_slice(&rest[..len]);
            self.refill_from(word);
        }
    }

    /// The byte of the next bit, and the number of its bits already taken.
    #[inline(always)]
    pub fn next(&self) -> (usize, u32) {
        let taken = self.bits.leading_zeros();
        (self.position + (taken / 8) as usize, taken % 8)
    }

    #[inline(always)]
    fn refill_from(&mut self, word: [u8; 8]) {
        let (position, taken) = self.next();
        self.position = position;
        self.bits = (u64::from_le_bytes(word) | MARK) >> taken;
    }

    /// The next bits, lowest first; those not ready are arbitrary.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.bits
    }

    /// Only the lowest six bits of `count` matter; the skipped bits must be ready.
    #[inline(always)]
    pub fn skip(&mut self, count: u16) {
        self.bits >>= count & 0x3f;
    }

    pub fn take(&mut self, count: u16) -> usize {
        self.refill();
        let bits = self.bits & ((1 << count) - 1);
        self.skip(count);
        usize::try_from(bits).expect("32 bits")
    }

    /// Returns whether only zeros are left, less than a byte.
    pub fn ends(&mut self) -> bool {
        let (_, taken) = self.next();
        let left = u16::try_from(taken.wrapping_neg() % 8).expect("less than 8");
        self.take(left) == 0 && self.rest() == Some(&[])
    }

    /// The input after the current byte, or `None` past the end.
    pub fn rest(&self) -> Option<&'a [u8]> {
        let (position, taken) = self.next();
        self.input.get(position + usize::from(taken > 0)..)
    }
}
