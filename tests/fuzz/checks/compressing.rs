//! Whatever is compressed comes back: in order, by the index, a range at a time, and by a reader that
//! is not the core's.

use std::mem::MaybeUninit;

use treepack_codec::base::source::Source as _;
use treepack_codec::codec::gzip::{Indexed, Method, Stream, bound, compress};

use super::content::Content;
use super::frame::{Block, Frame, elements};
use super::{Noise, threads};

const BLOCK: usize = 256 << 10;

/// The stream of these bytes, of which the first ones are headers.
pub fn stream_of(data: &[u8], headers: usize, method: Method, count: usize) -> Vec<u8> {
    let content = Content(data, headers);
    let mut stream = Vec::new();
    compress(&content, method, threads(count), &mut stream, &()).unwrap();
    stream
}

/// The same in blocks of fewer bytes than the core writes.
pub fn small_blocks(data: &[u8], method: Method, block_bytes: usize) -> Vec<u8> {
    let blocks = data.chunks(block_bytes).map(|content| {
        let stream = stream_of(content, 0, method, 1);
        Block {
            bytes: stream[10..stream.len() - 10].to_vec(),
            literal: false,
            content: Some(content.to_vec()),
        }
    });
    let frame = Frame {
        numbers: method == Method::Numbers,
        block_bytes,
        bytes: data.len(),
        blocks: blocks.collect(),
    };
    frame.write()
}

/// The first bytes say how the rest becomes many: how often it is repeated, a few times or for more than
/// two blocks, and which bits of eight bytes are noise, as mantissas are.
fn grown(input: &[u8]) -> Option<(usize, u8, Vec<u8>)> {
    let (&[level, headers, times], rest) = input.split_first_chunk()?;
    let (masks, rest) = rest.split_first_chunk::<8>()?;
    let len = match times {
        250.. => 2 * BLOCK + 4000 * usize::from(times - 249),
        _ => rest.len() * usize::from(times % 16 + 1),
    };
    let mut data: Vec<u8> = rest.iter().copied().cycle().take(len).collect();
    let mut noise = Noise::new(rest.len());
    for (eight, at) in data.chunks_mut(8).zip(0..) {
        let _: usize = at;
        let noise = noise.next().to_le_bytes();
        for ((byte, mask), noise) in eight.iter_mut().zip(masks).zip(noise) {
            *byte ^= mask & noise;
        }
    }
    Some((headers.into(), level, data))
}

pub fn gzip(input: &[u8]) {
    if let Some((headers, level, data)) = grown(input) {
        let level = (level % 11 < 10).then_some(i64::from(level % 11));
        check(&data, headers, Method::of_level(level).unwrap());
    }
}

pub fn numbers(input: &[u8]) {
    if let Some((headers, _, data)) = grown(input) {
        let stream = check(&data, headers, Method::Numbers);
        // No plane has more bytes than it is, so a block has its header besides.
        let index = if data.len() > BLOCK {
            8 * data.len().div_ceil(BLOCK) + 92
        } else {
            0
        };
        assert!(stream.len() <= data.len() + 20 + 16 * data.len().div_ceil(BLOCK) + index);
        let found = match data.len() {
            0 => Some(Vec::new()),
            1..=BLOCK => elements(&stream[10..stream.len() - 10]),
            _ => Frame::read(&stream).and_then(|frame| frame.content()),
        };
        assert!(found.expect("another reader takes it") == data);
    }
}

fn check(data: &[u8], headers: usize, method: Method) -> Vec<u8> {
    let stream = stream_of(data, headers, method, 1);
    assert!(
        stream == stream_of(data, headers, method, 3),
        "threads do not matter"
    );
    assert!(stream.len() <= bound(data.len()));
    assert!(
        Stream(&stream)
            .inflate(0, Some(data.len()), &())
            .unwrap()
            .as_slice()
            == data
    );
    if let Some(indexed) = Indexed::open(&stream).unwrap() {
        assert!(indexed.damage().is_none() && indexed.read(0..indexed.len()).unwrap() == data);
        let mut out = vec![MaybeUninit::new(0); indexed.len()];
        assert!(indexed.inflate(&mut out, threads(2), &()).unwrap().unwrap() == data);
    } else {
        assert!(data.len() <= BLOCK);
    }
    if method != Method::Numbers && data.len() <= BLOCK {
        assert!(Stream(&stream).claimed_size().unwrap() == data.len());
        let mut out = vec![MaybeUninit::new(0); data.len()];
        assert!(Stream(&stream).inflate_at_once(&mut out).unwrap() == data);
    }
    stream
}
