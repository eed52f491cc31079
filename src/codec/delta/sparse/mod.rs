//! Few changes of a block: gaps between them and their zigzag differences, coded by frequency.
//!
//! The numbers of a class (docs/format.md, "Patches") are about equally frequent. So gaps take
//! about their entropy at any rate.

mod read;
mod write;

pub use read::Decoder;
pub use write::{Coded, Frequencies};

use crate::{Result, base::grow};

#[derive(Debug, Default)]
pub struct Changes {
    /// Unchanged elements before each change, and memory for more.
    gaps: Vec<u32>,
    /// Zigzag differences, minus 1, and memory for more.
    values: Vec<u64>,
    len: usize,
    /// Unchanged elements after the last one.
    pub gap: u32,
}

impl Changes {
    pub fn clear(&mut self) {
        self.len = 0;
        self.gap = 0;
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn gaps(&self) -> &[u32] {
        &self.gaps[..self.len]
    }

    pub fn values(&self) -> &[u64] {
        &self.values[..self.len]
    }

    /// Gaps and values after the last change, at least `most` of each.
    pub fn room(&mut self, most: usize) -> Result<(&mut [u32], &mut [u64])> {
        let needed = self.len + most;
        // `values` grows last.
        if self.values.len() < needed {
            let room = needed.max(2 * self.values.len());
            grow::resize(&mut self.gaps, room, 0)?;
            grow::resize(&mut self.values, room, 0)?;
        }
        Ok((&mut self.gaps[self.len..], &mut self.values[self.len..]))
    }

    /// Appends the first changes in the room.
    pub fn take(&mut self, count: usize) {
        self.len += count;
    }
}

/// The classes of numbers of 64 bits.
const CLASSES: usize = 252;

/// The class of a number, and the number of bits of its rest.
#[inline(always)] // for the caller's instruction set
#[allow(clippy::cast_possible_truncation)] // at most 251
fn class(number: u64) -> (u8, u32) {
    if number < 4 {
        return (number as u8, 0);
    }
    let exponent = number.ilog2();
    let below = (number >> (exponent - 2)) as u32 & 3;
    ((4 * (exponent - 1) + below) as u8, exponent - 2)
}

/// The smallest number of a class, and the number of bits of its rest.
fn first_of(class: usize) -> (u64, u32) {
    match u32::try_from(class / 4).expect("a small class") {
        0 => (class as u64, 0),
        exponent => ((4 + class as u64 % 4) << (exponent - 1), exponent - 1),
    }
}

/// Bits of a long rest that come first.
const HALF: u32 = 32;

type Lengths = [u8; CLASSES];

fn is_single(lengths: &[u8]) -> bool {
    lengths.iter().filter(|&&length| length > 0).count() == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Gaps and values of any size, and mostly alike.
    fn changes() -> impl Strategy<Value = Vec<(u32, u64)>> {
        let gap = (0..20_u32, any::<u32>()).prop_map(|(bits, gap)| gap & ((1 << bits) - 1));
        let value = (0..=64_u32, any::<u64>()).prop_map(|(bits, value)| {
            let mask = 1_u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1);
            value & mask
        });
        let many = |pairs: Vec<_>| pairs.into_iter().cycle().take(3000).collect();
        prop_oneof![
            prop::collection::vec((gap.clone(), value.clone()), 1..400),
            prop::collection::vec((gap, value), 1..40).prop_map(many),
            prop::collection::vec((0..300_u32, 0..9_u64), 1..400).prop_map(many),
            prop::collection::vec((0..9_u32, 0..2_u64), 1..400),
            prop::collection::vec((Just(7), Just(1)), 1..40),
        ]
    }

    fn coded(pairs: &[(u32, u64)]) -> (Changes, Vec<u8>, usize) {
        let mut changes = Changes::default();
        let (gaps, values) = changes.room(pairs.len()).unwrap();
        let places = gaps.iter_mut().zip(values).zip(pairs);
        places.for_each(|((gap, value), pair)| (*gap, *value) = *pair);
        changes.take(pairs.len());
        let mut out = b"before".to_vec();
        let mut frequencies = Frequencies::default();
        frequencies.add(&changes, 0);
        let coded = Coded::new(&changes, &frequencies);
        let len = coded.len();
        coded.write(&mut out).unwrap();
        out.drain(..6);
        assert_eq!(out.len(), len);
        let elements = changes.gaps().iter().map(|gap| *gap as usize + 1).sum();
        (changes, out, elements)
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn changes_are_read_back(pairs in changes(), more in 0..100_usize) {
            let (changes, out, elements) = coded(&pairs);
            let (mut decoded, mut decoder) = (Changes::default(), Decoder::new().unwrap());
            prop_assert!(decoder.read(&out, elements + more, &mut decoded).unwrap());
            prop_assert_eq!(decoded.gaps(), changes.gaps());
            prop_assert_eq!(decoded.values(), changes.values());
            // One element fewer, and one byte more or fewer.
            prop_assert!(!decoder.read(&out, elements - 1, &mut decoded).unwrap());
            let longer = [&out[..], &[0]].concat();
            prop_assert!(!decoder.read(&longer, elements, &mut decoded).unwrap());
            prop_assert!(!decoder.read(&out[..out.len() - 1], elements + 9, &mut decoded).unwrap());
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn damaged_changes_stay_inside(pairs in changes(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let (_, mut out, elements) = coded(&pairs);
            let at = at.index(out.len());
            out[at] ^= flip;
            let mut decoded = Changes::default();
            if Decoder::new().unwrap().read(&out, elements, &mut decoded).unwrap() {
                let needed: usize = decoded.gaps().iter().map(|gap| *gap as usize + 1).sum();
                prop_assert!(needed <= elements);
            }
        }
    }

    #[test]
    fn classes_hold_their_numbers() {
        let near = |power: u32| (1_u64 << power).saturating_sub(3)..=(1_u64 << power) + 3;
        for number in (0..64).flat_map(near).chain(u64::MAX - 3..=u64::MAX) {
            let (class, rest) = class(number);
            let (first, expected) = first_of(class.into());
            assert_eq!(rest, expected);
            assert!(number >= first && number - first < 1 << rest, "{number}");
        }
        assert_eq!(usize::from(class(u64::MAX).0), CLASSES - 1);
    }

    #[test]
    fn few_changes_take_their_entropy() {
        // One in a hundred, at random, and up or down by one.
        let (mut state, mut pairs, mut gap) = (1_u64, Vec::new(), 0);
        for _ in 0..1 << 20 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if state >> 32 < (1 << 32) / 100 {
                pairs.push((std::mem::take(&mut gap), state >> 60 & 1));
            } else {
                gap += 1;
            }
        }
        let (rate, elements) = (0.01_f64, f64::from(1 << 20));
        let positions = -rate * rate.log2() - (1.0 - rate) * (1.0 - rate).log2();
        let bound = elements * (positions + rate) / 8.0;
        let size = f64::from(u32::try_from(coded(&pairs).1.len()).unwrap());
        assert!(
            size < 1.02 * bound,
            "{size} bytes, and {bound} are the entropy"
        );
    }
}
