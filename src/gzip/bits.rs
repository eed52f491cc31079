//! Bits in the order of DEFLATE: the first is the lowest of the first byte.

// A byte is what is left of the bits.
#![allow(clippy::cast_possible_truncation)]
// What the loops call is compiled with their set of instructions.
#![allow(clippy::inline_always)]

/// Appends bits to bytes.
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    bits: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    /// Begins at a byte boundary.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            bits: 0,
            count: 0,
        }
    }

    /// Appends the lowest `count` (at most 32) bits of `bits`, of which the others are zero.
    #[inline]
    pub fn put(&mut self, bits: u64, count: u32) {
        self.bits |= bits << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push(self.bits as u8);
            self.bits >>= 8;
            self.count -= 8;
        }
    }

    /// Goes on after what `finish` has returned.
    pub fn resume(out: &'a mut Vec<u8>, bits: u64, count: u32) -> Self {
        Self { out, bits, count }
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) {
        self.put(0, self.count.wrapping_neg() % 8);
    }

    /// The bits that do not fill a byte yet, and how many they are.
    pub fn finish(self) -> (u64, u32) {
        (self.bits, self.count)
    }
}

/// Takes bits from bytes; after the end come zeros, of which it takes note.
#[derive(Clone)]
pub struct BitReader<'a> {
    input: &'a [u8],
    /// How many bytes have been moved to `bits`, those after the end included.
    position: usize,
    bits: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    /// Begins at the first byte.
    pub fn new(input: &'a [u8]) -> Self {
        Self {
            input,
            position: 0,
            bits: 0,
            count: 0,
        }
    }

    /// Makes at least 56 bits ready.
    #[inline(always)]
    pub fn refill(&mut self) {
        if let Some(word) = self.input[self.position.min(self.input.len())..].first_chunk() {
            self.bits |= u64::from_le_bytes(*word) << self.count;
            let bytes = (63 - self.count) / 8;
            self.position += bytes as usize;
            self.count += 8 * bytes;
        } else {
            while self.count <= 56 {
                let byte = self.input.get(self.position).copied().unwrap_or(0);
                self.bits |= u64::from(byte) << self.count;
                self.position += 1;
                self.count += 8;
            }
        }
    }

    /// The bits that are ready, without taking them.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.bits
    }

    /// Takes `count` bits, which must be ready.
    #[inline(always)]
    pub fn skip(&mut self, count: u32) {
        self.bits >>= count;
        self.count -= count;
    }

    /// The next `count` (at most 32) bits.
    pub fn take(&mut self, count: u32) -> usize {
        if self.count < count {
            self.refill();
        }
        let bits = self.bits & ((1 << count) - 1);
        self.skip(count);
        usize::try_from(bits).expect("32 bits")
    }

    /// The input after the bytes that have been begun, or `None` if it ended before.
    pub fn rest(&self) -> Option<&'a [u8]> {
        self.input.get(self.position - (self.count / 8) as usize..)
    }
}
