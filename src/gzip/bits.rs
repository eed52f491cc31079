//! Bits in the order of DEFLATE: the first is the lowest of the first byte.

// Bytes are cut off words.
#![allow(clippy::cast_possible_truncation)]
// So that each caller's set of instructions applies.
#![allow(clippy::inline_always)]

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

    /// Appends `count` bits, at most 56 between flushes; the bits above them are zero.
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

    /// Returns the number of full bytes, and the unwritten bits with their number, at most 7.
    pub fn pause(mut self) -> (usize, u64, u32) {
        self.flush();
        (self.position, self.bits, self.count)
    }

    /// Pads the last byte with zeros, and returns the number of bytes.
    pub fn end(mut self) -> usize {
        self.put(0, self.count.wrapping_neg() % 8);
        self.flush();
        self.position
    }

    /// Appends an empty stored block, which ends at a byte boundary, and returns the number of
    /// bytes.
    pub fn finish(mut self) -> usize {
        self.put(0, 3);
        self.put(0, self.count.wrapping_neg() % 8);
        self.put(0xffff_0000, 32);
        self.flush();
        self.position
    }
}

/// Takes bits from bytes. After the end it returns zeros, which `ends` and `rest` notice.
#[derive(Clone, Copy)]
pub struct BitReader<'a> {
    input: &'a [u8],
    /// Of the next refill; beyond the end after zeros were taken.
    position: usize,
    /// Unused bits, below the highest bit that is set: the zeros above that bit count the bits
    /// taken.
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

    /// Makes 56 bits ready. Near the end it does nothing and returns false.
    #[inline(always)]
    pub fn refill_inside(&mut self) -> bool {
        let (position, _) = self.next();
        let word = self.input.get(position..).and_then(<[u8]>::first_chunk);
        word.is_some_and(|word| {
            self.refill_from(*word);
            true
        })
    }

    /// Makes 56 bits ready, zeros after the end.
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

    /// The position of the next bit: its byte, and the bits of that byte already taken.
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

    /// The next bits, lowest first; the bits above the ready ones are arbitrary.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.bits
    }

    /// Takes the number of bits in the lowest six bits of `count`, which must be ready.
    #[inline(always)]
    pub fn skip(&mut self, count: u16) {
        self.bits >>= count & 0x3f;
    }

    /// Takes `count` bits, at most 32.
    pub fn take(&mut self, count: u16) -> usize {
        self.refill();
        let bits = self.bits & ((1 << count) - 1);
        self.skip(count);
        usize::try_from(bits).expect("32 bits")
    }

    /// Whether only zeros are left, less than a byte.
    pub fn ends(&mut self) -> bool {
        let (_, taken) = self.next();
        let left = u16::try_from(taken.wrapping_neg() % 8).expect("less than 8");
        self.take(left) == 0 && self.rest() == Some(&[])
    }

    /// The input after the bytes already begun, or `None` beyond the end.
    pub fn rest(&self) -> Option<&'a [u8]> {
        let (position, taken) = self.next();
        self.input.get(position + usize::from(taken > 0)..)
    }
}
