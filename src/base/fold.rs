//! Replaces bytes by fewer with the same CRC-64s, as in Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), in vectors of 256 bits. crc-fast
//! has vectors of 128 and 512 bits only, and reads the bytes once for each CRC: half as fast.

use crate::base::raw::RawBytes;

/// The polynomials of CRC-64/NVME and CRC-64/XZ, reflected: the highest bit belongs to x^0.
pub const POLYNOMIALS: [u64; 2] = [0x9a6c_9329_ac4b_c9b5, 0xc96c_5795_d787_0f42];

const VECTORS: usize = 4;

const FOLDED_BYTES: usize = VECTORS * 32;

/// For each polynomial, bytes with the same CRC as those that were folded.
pub type Folded = [[u8; FOLDED_BYTES]; 2];

/// Folds all bytes but the last few, which it returns as they are; `None` if that is not faster.
/// Loads each byte once.
#[cfg(target_arch = "x86_64")]
pub fn fold(bytes: RawBytes<'_>) -> Option<(Folded, RawBytes<'_>)> {
    use std::arch::is_x86_feature_detected as has;
    if bytes.len() < 2 * FOLDED_BYTES || !has!("vpclmulqdq") || !has!("avx2") || has!("avx512vl") {
        return None;
    }
    let (whole, end) = (bytes.len() / FOLDED_BYTES * FOLDED_BYTES, bytes.len());
    #[allow(unsafe_code)]
    // SAFETY: the processor has the features that the function enables.
    let folded = unsafe { vectors::folded(bytes.slice(0..whole)) };
    Some((folded, bytes.slice(whole..end)))
}

#[cfg(not(target_arch = "x86_64"))]
pub fn fold(_: RawBytes<'_>) -> Option<(Folded, RawBytes<'_>)> {
    None
}

#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{
        __m256i, _mm256_clmulepi64_epi128, _mm256_extract_epi64, _mm256_set_epi64x,
        _mm256_xor_si256,
    };

    use super::{FOLDED_BYTES, Folded, POLYNOMIALS, RawBytes, VECTORS};

    /// Returns x^n modulo a polynomial.
    const fn power(n: usize, polynomial: u64) -> u64 {
        let (mut power, mut k) = (1u64 << 63, 0);
        while k < n {
            power = power >> 1 ^ polynomial & (power & 1).wrapping_neg();
            k += 1;
        }
        power
    }

    /// The factors that move the two halves of 128 bits by `FOLDED_BYTES`. Products of reflected
    /// numbers have one power of x too few.
    const fn factors(polynomial: u64) -> [u64; 2] {
        let bits = 8 * FOLDED_BYTES - 1;
        [power(bits + 64, polynomial), power(bits, polynomial)]
    }

    const FACTORS: [[u64; 2]; 2] = [factors(POLYNOMIALS[0]), factors(POLYNOMIALS[1])];

    #[target_feature(enable = "avx2,vpclmulqdq")]
    pub fn folded(bytes: RawBytes<'_>) -> Folded {
        let factors = FACTORS.map(|[low, high]| vector([low, high, low, high]));
        // CRCs invert their first 64 bits.
        let start = vector([u64::MAX, 0, 0, 0]);
        let mut first = loaded(bytes, 0);
        first[0] = _mm256_xor_si256(first[0], start);
        let mut states = [first; 2];
        for at in (0..bytes.len()).step_by(FOLDED_BYTES).skip(1) {
            let vectors = loaded(bytes, at);
            for (state, factor) in states.iter_mut().zip(factors) {
                for (state, vector) in state.iter_mut().zip(vectors) {
                    let low = _mm256_clmulepi64_epi128::<0x00>(*state, factor);
                    let high = _mm256_clmulepi64_epi128::<0x11>(*state, factor);
                    *state = _mm256_xor_si256(_mm256_xor_si256(low, high), vector);
                }
            }
        }
        states.map(|mut state| {
            state[0] = _mm256_xor_si256(state[0], start);
            let mut folded = [0; FOLDED_BYTES];
            for (bytes, vector) in folded.as_chunks_mut::<32>().0.iter_mut().zip(state) {
                let words = [
                    _mm256_extract_epi64::<0>(vector),
                    _mm256_extract_epi64::<1>(vector),
                    _mm256_extract_epi64::<2>(vector),
                    _mm256_extract_epi64::<3>(vector),
                ];
                for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
            }
            folded
        })
    }

    #[target_feature(enable = "avx2,vpclmulqdq")]
    fn loaded(bytes: RawBytes<'_>, at: usize) -> [__m256i; VECTORS] {
        let chunk: [u8; FOLDED_BYTES] = bytes.load(at).expect("a whole chunk");
        let (words, _) = chunk.as_chunks();
        std::array::from_fn(|number| {
            vector(std::array::from_fn(|word| {
                u64::from_le_bytes(words[4 * number + word])
            }))
        })
    }

    #[target_feature(enable = "avx2,vpclmulqdq")]
    fn vector(words: [u64; 4]) -> __m256i {
        let [a, b, c, d] = words.map(u64::cast_signed);
        _mm256_set_epi64x(d, c, b, a)
    }
}
