//! Bytes compressed as numbers are read back: by the index, in ranges and in order, intact or not.

// The numbers here are small, and bytes repeat.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

use std::num::NonZero;
use std::sync::LazyLock;

use proptest::prelude::*;
use treepack_codec::Error;
use treepack_codec::codec::gzip::{Indexed, Method, Stream, bound, compress};

use crate::content::Content;
use crate::streams::{BLOCK, by_index, check_ranges, damaged, in_order};

fn numbers(data: &[u8], header: usize, threads: usize) -> Vec<u8> {
    let threads = NonZero::new(threads).unwrap();
    let mut stream = Vec::new();
    let content = Content(data, header);
    compress(&content, Method::Numbers, threads, &mut stream, &()).unwrap();
    assert!(stream.len() <= bound(data.len()), "{}", data.len());
    stream
}

/// Numbers without order, from 0 up to 1.
fn uniform() -> impl FnMut() -> f64 {
    let mut state = 1_u64;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Weights as a layer of a model has them: normal, with a deviation of 0.02.
fn weights(count: usize) -> Vec<f64> {
    let mut uniform = uniform();
    let normal =
        |a: f64, b: f64| (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    (0..count)
        .map(|_| normal(uniform(), uniform()) * 0.02)
        .collect()
}

fn bfloat16(count: usize) -> Vec<u8> {
    let high = |it: f64| (it as f32).to_le_bytes()[2..].to_vec();
    weights(count).into_iter().flat_map(high).collect()
}

fn float32(count: usize) -> Vec<u8> {
    weights(count)
        .into_iter()
        .flat_map(|it| (it as f32).to_le_bytes())
        .collect()
}

/// Elements of all widths, which compress or not, and what gzip is good at.
static MIXED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut uniform = uniform();
    let wide = weights(BLOCK / 8).into_iter().flat_map(f64::to_le_bytes);
    let padded = bfloat16(BLOCK / 2);
    let padded = padded.chunks(2).flat_map(|it| [0, 0, it[0], it[1]]);
    [
        bfloat16(3 * BLOCK / 2),
        float32(BLOCK / 4),
        wide.collect(),
        padded.collect(),
        (0..BLOCK).map(|_| (uniform() * 256.0) as u8).collect(),
        (0..BLOCK).map(|_| u8::from(uniform() < 0.1)).collect(),
        vec![0; BLOCK],
        (0..BLOCK as u32 / 4).flat_map(u32::to_le_bytes).collect(),
        bfloat16(7777),
    ]
    .concat()
});

#[test]
fn all_kinds_and_lengths_are_read_back() {
    let data = &MIXED[..];
    for len in [
        0,
        1,
        7,
        100,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        5 * BLOCK + 3,
        data.len(),
    ] {
        let data = &data[..len];
        for header in [0, 3, 9] {
            let stream = numbers(data, header, 1);
            assert!(
                numbers(data, header, 3) == stream,
                "the threads do not matter"
            );
            assert!(in_order(&stream).unwrap() == data, "{len} {header}");
            match by_index(&stream, 2) {
                Some(found) => assert!(found == data, "{len} {header}"),
                None => assert!(len <= BLOCK, "no index of {len}"),
            }
        }
    }
}

#[test]
fn any_range_is_decoded_by_itself() {
    let data = &MIXED[..];
    let mut stream = numbers(data, 5, 2);
    let indexed = Indexed::open(&stream).unwrap().unwrap();
    check_ranges(&indexed, data);
    drop(indexed);
    let middle = stream.len() / 2;
    stream[middle - 1000..middle + 1000].fill(0xff);
    let indexed = Indexed::open(&stream).unwrap().unwrap();
    assert!(indexed.read(0..BLOCK).unwrap() == data[..BLOCK]);
    assert!(by_index(&stream, 2).is_none());
    assert!(matches!(in_order(&stream), Err(Error::Gzip(_))));
}

#[test]
fn weights_become_as_small_as_their_exponents_allow() {
    let ratio = |data: &[u8]| data.len() as f64 / numbers(data, 0, 2).len() as f64;
    assert!(ratio(&bfloat16(4 * BLOCK)) >= 1.49);
    assert!(ratio(&float32(2 * BLOCK)) >= 1.19);
    // Wherever they begin.
    for header in 1..5 {
        let data = bfloat16(2 * BLOCK)[2..].to_vec();
        let data = [&vec![0x81; header][..], &data].concat();
        let stream = numbers(&data, header, 1);
        assert!(data.len() as f64 / stream.len() as f64 > 1.49, "{header}");
    }
}

#[test]
fn what_cannot_be_compressed_takes_hardly_more() {
    let mut uniform = uniform();
    let noise: Vec<u8> = (0..5 * BLOCK).map(|_| (uniform() * 256.0) as u8).collect();
    let stream = numbers(&noise, 0, 1);
    assert!(stream.len() < noise.len() + noise.len() / 1000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40 * ProptestConfig::default().cases / 256))]

    #[test]
    fn elements_of_any_kind_come_back_and_take_hardly_more(
        pattern in prop::collection::vec(any::<u64>(), 1..50),
        mask in any::<u64>(),
        width in prop::sample::select(vec![1, 2, 4, 8]),
        len in 0..2 * BLOCK + 100,
        header in 0..20_usize,
    ) {
        // Patterns with noise where the mask has bits: NaN of any payload, equal bytes, random ones.
        let mut state = mask | 1;
        let elements = pattern.iter().cycle().flat_map(|it| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let noise = state ^ state >> 32;
            (it ^ noise & mask).to_le_bytes().into_iter().take(width)
        });
        let data: Vec<u8> = elements.take(len).collect();
        let stream = numbers(&data, header, 1);
        // Blocks have 16 bytes and their entries 8, besides what streams of gzip have.
        let most = len + len / 1000 + 200;
        prop_assert!(stream.len() <= most, "{} of {}", stream.len(), len);
        prop_assert!(in_order(&stream).unwrap() == data);
        if let Some(found) = by_index(&stream, 1) {
            prop_assert!(found == data);
        }
    }
}

#[test]
fn what_is_before_the_damage_is_salvaged() {
    let data = &MIXED[..];
    let stream = numbers(data, 0, 1);
    for cut in [10, 11, 5000, stream.len() / 2] {
        let (found, damage) = Stream(&stream[..cut].to_vec()).salvage(None, &()).unwrap();
        assert!(matches!(damage, Some(Error::GzipTruncated)));
        assert!(data.starts_with(found.as_slice()));
        assert!(cut < stream.len() / 2 || found.len() >= data.len() / 4);
    }
    let mut damaged = stream.clone();
    damaged[stream.len() / 2] ^= 1;
    let (found, damage) = Stream(&damaged).salvage(None, &()).unwrap();
    assert!(matches!(damage, Some(Error::Gzip(_))));
    assert!(found.len() >= data.len() / 4 && data.starts_with(found.as_slice()));
}

#[test]
fn no_more_comes_out_than_is_allowed() {
    let data = &MIXED[..];
    let stream = numbers(data, 0, 1);
    let limited = |most| Stream(&stream).inflate(0, Some(most), &());
    assert!(limited(data.len()).is_ok());
    for most in [0, BLOCK, data.len() - 1] {
        assert!(matches!(limited(most), Err(Error::OutputLimit { max_size }) if max_size == most));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60 * ProptestConfig::default().cases / 256))]

    #[test]
    fn damage_is_noticed_and_harmless(at in any::<prop::sample::Index>(), flip in 1..=255_u8, cut in any::<bool>()) {
        let data = MIXED[2 * BLOCK + 100_000..6 * BLOCK].to_vec();
        let (stream, at) = damaged(numbers(&data, 0, 1), at, flip, cut);
        if let Some(found) = by_index(&stream, 1) {
            prop_assert!(found == data);
        }
        if let Ok(found) = in_order(&stream) {
            prop_assert!(found == data || cut && at == 0);
        }
    }

    #[test]
    fn small_streams_of_any_kind_are_harmless(
        data in prop::collection::vec(any::<u8>(), 0..300),
        repeated in 1..9_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        header in 0..20_usize,
    ) {
        let data: Vec<u8> = data.iter().flat_map(|&it| std::iter::repeat_n(it & 0x3f, repeated)).collect();
        let mut stream = numbers(&data, header, 1);
        prop_assert_eq!(&in_order(&stream).unwrap(), &data);
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        if let Ok(found) = in_order(&stream) {
            prop_assert!(found == data);
        }
    }
}
