//! Digests of arrays: two CRC-64s, CRC-64/NVME and CRC-64/XZ, of the bytes in C order.
//!
//! CRCs are linear: the digest of a whole follows from the digests of its parts and their lengths,
//! so blocks are summed by any thread, and the parts of a sharded array apart. Damage is found;
//! an adversary can make other bytes with the same digest.

use crc_fast::CrcAlgorithm;

use super::fold::{Folded, POLYNOMIALS, fold};
use super::raw::RawBytes;
use crate::Result;

/// Multiplies polynomials modulo `polynomial`, all reflected.
const fn multiply(a: u64, mut b: u64, polynomial: u64) -> u64 {
    let (mut product, mut bit) = (0, 64);
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ polynomial & (b & 1).wrapping_neg();
    }
    product
}

/// Returns x^(8 · 2^k) for each k: what 2^k bytes multiply a CRC before them by.
const fn powers(polynomial: u64) -> [u64; 64] {
    let (mut powers, mut k) = ([1 << 55; 64], 1);
    while k < 64 {
        powers[k] = multiply(powers[k - 1], powers[k - 1], polynomial);
        k += 1;
    }
    powers
}

static POWERS: [[u64; 64]; 2] = [powers(POLYNOMIALS[0]), powers(POLYNOMIALS[1])];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Digest([u64; 2]);

impl Digest {
    pub const BYTES: usize = 16;

    pub fn of(bytes: &[u8]) -> Self {
        match fold(bytes.into()) {
            Some((folded, rest)) => Self::finish(Some(&folded), &bytes[bytes.len() - rest.len()..]),
            None => Self::finish(None, bytes),
        }
    }

    /// The digest of memory that may change; `copy` is for bytes that must be copied.
    pub fn of_memory(memory: RawBytes<'_>, copy: &mut Vec<u8>) -> Result<Self> {
        let (folded, rest) = fold(memory).unzip();
        copy.clear();
        rest.unwrap_or(memory).append_to(copy)?;
        Ok(Self::finish(folded.as_ref(), copy))
    }

    fn finish(folded: Option<&Folded>, rest: &[u8]) -> Self {
        let mut crcs = [CrcAlgorithm::Crc64Nvme, CrcAlgorithm::Crc64Xz].map(crc_fast::Digest::new);
        for (crc, folded) in crcs.iter_mut().zip(folded.into_iter().flatten()) {
            crc.update(folded);
        }
        Self(crcs.map(|mut crc| {
            crc.update(rest);
            crc.finalize()
        }))
    }

    /// Returns the digest of two parts, of which the second has `nbytes` bytes.
    #[must_use]
    pub fn join(self, second: Self, nbytes: u64) -> Self {
        let mut joined = self.0;
        for (number, polynomial) in POLYNOMIALS.into_iter().enumerate() {
            for k in (0..64).filter(|k| nbytes >> k & 1 == 1) {
                joined[number] = multiply(POWERS[number][k], joined[number], polynomial);
            }
            joined[number] ^= second.0[number];
        }
        Self(joined)
    }

    /// The checksums as big-endian numbers, in the order of their names.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        (u128::from(self.0[0]) << 64 | u128::from(self.0[1])).to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (whole, mask) = (u128::from_be_bytes(bytes), u128::from(u64::MAX));
        Self([whole >> 64, whole & mask].map(|half| u64::try_from(half).expect("64 bits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One bit after the other, as the definition has it.
    fn bitwise(bytes: &[u8]) -> Digest {
        Digest(POLYNOMIALS.map(|polynomial| {
            !bytes.iter().fold(!0, |crc: u64, byte| {
                (0..8).fold(crc ^ u64::from(*byte), |crc, _| {
                    crc >> 1 ^ polynomial & (crc & 1).wrapping_neg()
                })
            })
        }))
    }

    #[test]
    fn the_catalogue_of_crcs_has_the_same_values() {
        let check = [0xae8b_1486_0a79_9888, 0x995d_c9bb_df19_39fa];
        assert_eq!(Digest::of(b"123456789"), Digest(check));
        assert_eq!(bitwise(b"123456789"), Digest(check));
        assert_eq!(Digest::of(b""), Digest::default());
        let bytes = Digest(check).to_bytes();
        assert_eq!(bytes[..8], check[0].to_be_bytes());
        assert_eq!(Digest::from_bytes(bytes), Digest(check));
    }

    proptest! {
        #[test]
        fn any_division_has_the_digest_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
            mut cuts in prop::collection::vec(0usize..2000, 0..6),
        ) {
            cuts.retain(|cut| *cut <= bytes.len());
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let joined = parts.fold(Digest::default(), |before, part| {
                before.join(Digest::of(part), part.len() as u64)
            });
            prop_assert_eq!(joined, bitwise(&bytes));
            prop_assert_eq!(Digest::of(&bytes), joined);
            prop_assert_eq!(Digest::of_memory(bytes[..].into(), &mut Vec::new()).unwrap(), joined);
        }
    }
}
