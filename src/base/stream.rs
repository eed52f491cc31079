//! Copies past the caches.
//!
//! A plain store first reads the cache line that it overwrites. A streaming store does not, which
//! saves a third of the traffic but leaves the copy out of the caches. It pays for copies larger
//! than the caches into used memory. Fresh pages are in the caches already.
#![allow(unsafe_code)]

use crate::base::raw::{RawBytes, Uninit};

/// Smaller copies do not gain from streaming.
pub const MIN_BYTES: usize = 32 << 20;

const MIN_SLICE: usize = 4 << 10;

/// Copies `source` to `target`, and returns it.
///
/// # Panics
/// If the lengths differ.
pub fn copy<'t>(source: RawBytes<'_>, target: &'t mut Uninit) -> &'t mut [u8] {
    assert_eq!(source.len(), target.len());
    if source.len() < MIN_SLICE {
        return source.copy_to(target);
    }
    let before = target.as_ptr().align_offset(LINE);
    let after = before + (source.len() - before) / LINE * LINE;
    let (head, rest) = target.split_at_mut(before);
    let (lines, tail) = rest.split_at_mut(after - before);
    source.slice(0..before).copy_to(head);
    copy_lines(source.slice(before..after), lines);
    source.slice(after..source.len()).copy_to(tail);
    // SAFETY: its three parts have been written.
    unsafe { target.assume_init_mut() }
}

const LINE: usize = 64;

/// Copies whole cache lines to an aligned target.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(clippy::cast_ptr_alignment)] // loads need none, and stores have it
fn copy_lines(source: RawBytes<'_>, target: &mut Uninit) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LANE: usize = size_of::<__m128i>();
    assert_eq!(source.len(), target.len());
    assert!(target.as_ptr().addr().is_multiple_of(LINE));
    for (index, target) in target.chunks_exact_mut(LINE).enumerate() {
        let to = target.as_mut_ptr().cast::<__m128i>();
        // SAFETY: SSE2 is part of x86-64. Both have LINE bytes here, which are LINE / LANE lanes.
        // Loads need no alignment; stores have it, as `target` begins with a line.
        unsafe {
            let from = source.as_ptr().add(index * LINE).cast::<__m128i>();
            for lane in 0..LINE / LANE {
                _mm_stream_si128(to.add(lane), _mm_loadu_si128(from.add(lane)));
            }
        }
    }
    // Orders the streaming stores before the signal that the copy is done. SAFETY: SSE is part of
    // x86-64.
    unsafe {
        _mm_sfence();
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn copy_lines(source: RawBytes<'_>, target: &mut Uninit) {
    source.copy_to(target);
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn every_length_at_every_offset_is_copied() {
        #[allow(clippy::cast_possible_truncation)]
        let source: Vec<u8> = (0..3 * MIN_SLICE)
            .map(|i| (i * 7 + i / 256) as u8)
            .collect();
        for len in [
            0,
            1,
            MIN_SLICE - 1,
            MIN_SLICE,
            MIN_SLICE + 63,
            2 * MIN_SLICE + 64,
        ] {
            for offset in 0..LINE {
                let mut target = vec![MaybeUninit::new(0xAA); len + 2 * LINE];
                let source = &source[offset..offset + len];
                copy(source.into(), &mut target[LINE - offset..][..len]);
                // SAFETY: all of it was initialised.
                let target: Vec<u8> = target.iter().map(|b| unsafe { b.assume_init() }).collect();
                assert_eq!(&target[LINE - offset..][..len], source);
                let around = target[..LINE - offset]
                    .iter()
                    .chain(&target[LINE - offset + len..]);
                assert!(around.into_iter().all(|&byte| byte == 0xAA));
            }
        }
    }
}
