//! Bits in the order of DEFLATE: the first is the lowest of the first byte.

// A byte is what is left of the bits.
#![allow(clippy::cast_possible_truncation)]
// What the loops call is compiled with their set of instructions.
#![allow(clippy::inline_always)]

/// Writes bits to memory that has room for them, and for a word more.
pub struct BitWriter<'a> {
    out: &'a mut [u8],
    position: usize,
    bits: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    /// Begins at the first byte.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self {
            out,
            position: 0,
            bits: 0,
            count: 0,
        }
    }

    /// Appends `count` bits, of which those of `bits` above are zero: at most 56 between flushes.
    #[inline(always)]
    pub fn put(&mut self, bits: u64, count: u32) {
        self.bits |= bits << self.count;
        self.count += count;
    }

    /// Writes the bytes that are full.
    #[inline(always)]
    pub fn flush(&mut self) {
        self.out[self.position..][..8].copy_from_slice(&self.bits.to_le_bytes());
        self.position += (self.count / 8) as usize;
        self.bits >>= self.count & !7;
        self.count %= 8;
    }

    /// Returns how many bytes are full, and the bits that are not written yet with their number,
    /// at most 7.
    pub fn pause(mut self) -> (usize, u64, u32) {
        self.flush();
        (self.position, self.bits, self.count)
    }

    /// Fills the last byte with zeros, and returns how many bytes there are.
    pub fn end(mut self) -> usize {
        self.put(0, self.count.wrapping_neg() % 8);
        self.flush();
        self.position
    }

    /// Appends an empty stored block, which ends at a byte boundary, and returns how many bytes
    /// there are.
    pub fn finish(mut self) -> usize {
        self.put(0, 3);
        self.put(0, self.count.wrapping_neg() % 8);
        self.put(0xffff_0000, 32);
        self.flush();
        self.position
    }
}

/// Takes bits from bytes; after the end come zeros, of which it takes note.
#[derive(Clone, Copy)]
pub struct BitReader<'a> {
    input: &'a [u8],
    /// Where the bits are from; beyond the end if those that follow it have been asked for.
    position: usize,
    /// The bits that are ready, below the highest bit that is set: so many more bits have been
    /// taken as there are zeros above it.
    bits: u64,
}

const MARK: u64 = 1 << 63;

impl<'a> BitReader<'a> {
    /// Begins at the first byte.
    pub fn new(input: &'a [u8]) -> Self {
        let mut reader = Self {
            input,
            position: 0,
            bits: MARK,
        };
        // Nothing has been taken yet, and nothing is ready.
        reader.refill();
        reader
    }

    /// Makes 56 bits ready. Returns false, without having done so, near the end.
    #[inline(always)]
    pub fn refill_inside(&mut self) -> bool {
        let (position, _) = self.next();
        let word = self.input.get(position..).and_then(<[u8]>::first_chunk);
        word.is_some_and(|word| {
            self.refill_from(*word);
            true
        })
    }

    /// Makes 56 bits ready, zeros if there are no more.
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

    /// Where the next bit is: its byte, and how many bits of that have been taken.
    #[inline(always)]
    pub fn next(&self) -> (usize, u32) {
        let taken = self.bits.leading_zeros();
        (self.position + (taken / 8) as usize, taken % 8)
    }

    /// Goes on with the bytes from the next bit on.
    #[inline(always)]
    fn refill_from(&mut self, word: [u8; 8]) {
        let (position, taken) = self.next();
        self.position = position;
        self.bits = (u64::from_le_bytes(word) | MARK) >> taken;
    }

    /// The bits that are ready, lowest first, without taking them; others above them.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.bits
    }

    /// Takes as many bits as the lowest six bits of `count` tell, which must be ready.
    #[inline(always)]
    pub fn skip(&mut self, count: u16) {
        self.bits >>= count & 0x3f;
    }

    /// The next `count` (at most 32) bits.
    pub fn take(&mut self, count: u16) -> usize {
        self.refill();
        let bits = self.bits & ((1 << count) - 1);
        self.skip(count);
        usize::try_from(bits).expect("32 bits")
    }

    /// Whether only zeros are left, and not a whole byte.
    pub fn ends(&mut self) -> bool {
        let (_, taken) = self.next();
        let left = u16::try_from(taken.wrapping_neg() % 8).expect("less than 8");
        self.take(left) == 0 && self.rest() == Some(&[])
    }

    /// The input after the bytes that have been begun, or `None` if it ended before.
    pub fn rest(&self) -> Option<&'a [u8]> {
        let (position, taken) = self.next();
        self.input.get(position + usize::from(taken > 0)..)
    }
}
