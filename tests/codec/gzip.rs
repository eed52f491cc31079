//! Compressed bytes are read back: here and by zlib, whole and in ranges, intact or not.

// The numbers here are small, and bytes repeat.
#![allow(clippy::cast_possible_truncation)]

use std::io::Read;
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::sync::Mutex;

use proptest::prelude::*;
use treepack_codec::base::raw::Filling;
use treepack_codec::base::watch::Watch;
use treepack_codec::codec::gzip::{Indexed, Method, Stream, bound, compress};
use treepack_codec::{Error, Result};

use crate::streams::{BLOCK, by_index, check_ranges, damaged, in_order};

fn gzip(data: &[u8], method: Method, threads: usize) -> Vec<u8> {
    let threads = NonZero::new(threads).unwrap();
    let mut member = Vec::new();
    compress(&data.to_vec(), method, threads, &mut member, &()).unwrap();
    assert!(member.len() <= bound(data.len()), "{}", data.len());
    member
}

fn by_zlib(stream: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(stream)
        .read_to_end(&mut out)
        .unwrap();
    out
}

/// Bytes without order.
fn noise() -> impl Iterator<Item = u8> {
    let mut state = 1_u64;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    })
}

/// Blocks of all kinds in turn: even and skewed noise, words, zeros.
fn data(len: usize) -> Vec<u8> {
    (0..len)
        .zip(noise())
        .map(|(at, noise)| match at / BLOCK % 8 {
            0..=4 => noise & noise.rotate_left(3),
            5 => noise,
            6 => b"some words that repeat"[at % 22],
            _ => 0,
        })
        .collect()
}

#[test]
fn all_lengths_around_blocks_are_read_back() {
    let data = data(9 * BLOCK + 77);
    for len in [
        0,
        1,
        2,
        1000,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        4 * BLOCK,
        5 * BLOCK + 3,
        data.len(),
    ] {
        let data = &data[..len];
        let stream = gzip(data, Method::Adaptive, 1);
        assert_eq!(stream[4..8], [0; 4], "the time is zero");
        for threads in 2..4 {
            assert_eq!(gzip(data, Method::Adaptive, threads), stream);
        }
        assert!(by_zlib(&stream) == data, "{len}");
        assert!(in_order(&stream).unwrap() == data, "{len}");
        for threads in 1..4 {
            match by_index(&stream, threads) {
                Some(found) => assert!(found == data, "{len}"),
                None => assert!(len <= BLOCK, "no index of {len}"),
            }
        }
    }
}

#[test]
fn every_level_is_read_back() {
    let data = data(7 * BLOCK);
    let mut sizes = Vec::new();
    for level in 0..=9 {
        let stream = gzip(&data, Method::of_level(Some(level)).unwrap(), 2);
        assert!(by_zlib(&stream) == data);
        assert!(by_index(&stream, 2).unwrap() == data);
        sizes.push(stream.len());
    }
    assert!(sizes[0] > data.len() && sizes[1] < data.len() && sizes[9] <= sizes[1]);
    assert!(Method::of_level(Some(10)).is_err() && Method::of_level(Some(-1)).is_err());
}

#[test]
fn any_range_is_inflated_by_itself() {
    let data = data(9 * BLOCK + 77);
    let stream = gzip(&data, Method::Adaptive, 2);
    let indexed = Indexed::open(&stream).unwrap().unwrap();
    check_ranges(&indexed, &data);
    assert!(indexed.read(0..data.len() + 1).is_err());
}

#[test]
fn a_range_needs_only_its_own_blocks() {
    let data = data(9 * BLOCK);
    let mut stream = gzip(&data, Method::Adaptive, 2);
    let middle = stream.len() / 2;
    stream[middle - 1000..middle + 1000].fill(0xff);
    let indexed = Indexed::open(&stream).unwrap().unwrap();
    assert!(indexed.read(0..BLOCK).unwrap() == data[..BLOCK]);
    assert!(by_index(&stream, 2).is_none());
    assert!(matches!(in_order(&stream), Err(Error::Gzip(_))));
}

/// Records the calls of a watch, up to a limit.
struct Recorder(Mutex<Vec<usize>>, usize);

impl Watch for Recorder {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn done(&self, bytes: usize) -> Result<()> {
        self.0.lock().unwrap().push(bytes);
        if bytes > self.1 {
            Err(Error::Stopped)
        } else {
            Ok(())
        }
    }
}

fn recorder(most: usize) -> Recorder {
    Recorder(Mutex::default(), most)
}

#[test]
fn progress_ends_with_all_and_can_stop() {
    let data = data(9 * BLOCK + 77);
    let ends_with = |watch: Recorder, all: usize| {
        let calls = watch.0.into_inner().unwrap();
        assert!(calls.is_sorted() && calls.last() == Some(&all), "{calls:?}");
    };
    for threads in 1..4 {
        let threads = NonZero::new(threads).unwrap();
        let mut stream = Vec::new();
        let watch = recorder(usize::MAX);
        compress(&data, Method::Adaptive, threads, &mut stream, &watch).unwrap();
        ends_with(watch, data.len());
        let watch = recorder(BLOCK);
        let stopped = compress(&data, Method::Adaptive, threads, &mut Vec::new(), &watch);
        assert!(matches!(stopped, Err(Error::Stopped)));
        let indexed = Indexed::open(&stream).unwrap().unwrap();
        let mut out = vec![MaybeUninit::new(0); indexed.len()];
        let watch = recorder(usize::MAX);
        let whole = indexed.inflate(&mut out, threads, &watch).unwrap();
        assert!(whole.is_some_and(|whole| whole == data));
        ends_with(watch, data.len());
        let stopped = indexed.inflate(&mut out, threads, &recorder(BLOCK));
        assert!(matches!(stopped, Err(Error::Stopped)));
        let watch = recorder(usize::MAX);
        Stream(&stream).inflate(0, None, &watch).unwrap();
        ends_with(watch, stream.len());
        let stopped = Stream(&stream).inflate(0, None, &recorder(BLOCK));
        assert!(matches!(stopped, Err(Error::Stopped)));
    }
}

#[test]
fn what_cannot_be_compressed_takes_no_more_than_the_bound() {
    let noise: Vec<u8> = noise().take(5 * BLOCK + 70_000).collect();
    for len in [
        0,
        1,
        65_535,
        65_536,
        BLOCK,
        BLOCK + 1,
        2 * BLOCK,
        noise.len(),
    ] {
        for level in [None, Some(0), Some(1)] {
            let (data, method) = (&noise[..len], Method::of_level(level).unwrap());
            let stream = gzip(data, method, 2);
            assert!(bound(len) - stream.len() < 80 && by_zlib(&stream) == data);
            let mut memory = vec![MaybeUninit::new(0); bound(len)];
            let mut filling = Filling::new(&mut memory);
            let one = NonZero::<usize>::MIN;
            compress(&data.to_vec(), method, one, &mut filling, &()).unwrap();
            assert_eq!(filling.finish(), stream);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150 * ProptestConfig::default().cases / 256))]

    #[test]
    fn damage_is_noticed_and_harmless(at in any::<prop::sample::Index>(), flip in 1..=255_u8, cut in any::<bool>()) {
        let data = data(6 * BLOCK + 9)[4 * BLOCK..].to_vec();
        let (stream, at) = damaged(gzip(&data, Method::Adaptive, 1), at, flip, cut);
        if let Some(found) = by_index(&stream, 1) {
            prop_assert!(found == data);
        }
        // Bits of the header mean nothing for the content.
        if let Ok(found) = in_order(&stream) {
            // So do those of the headers of the index; without it, all data are there.
            prop_assert!(found == data || at < 10 || (cut && at == 0));
        }
    }

    #[test]
    fn anything_with_our_name_is_harmless(record in prop_oneof![prop::collection::vec(any::<u8>(), 0..60), prop::collection::vec(any::<u8>(), 40)], tail in prop::collection::vec(any::<u8>(), 0..90)) {
        let len = record.len() as u16;
        let mut stream = tail;
        stream.extend_from_slice(&[0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255]);
        stream.extend_from_slice(&(len + 4).to_le_bytes());
        stream.extend_from_slice(b"TE");
        stream.extend_from_slice(&len.to_le_bytes());
        stream.extend_from_slice(&record);
        stream.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        prop_assert_eq!(by_index(&stream, 1), None);
        let _ = in_order(&stream);
    }
}
