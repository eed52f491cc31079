//! Readers of compressed streams, for the tests of each method.

use std::mem::MaybeUninit;
use std::num::NonZero;

use proptest::prelude::prop::sample::Index;
use treepack_codec::Result;
use treepack_codec::base::source::Source as _;
use treepack_codec::codec::gzip::{Indexed, Stream};

/// The length of a block of input in bytes.
pub const BLOCK: usize = 256 << 10;

/// Reads a stream from its start to its end.
pub fn in_order(stream: &[u8]) -> Result<Vec<u8>> {
    Stream(&stream.to_vec())
        .inflate(0, None, &())
        .map(|out| out.as_slice().to_vec())
}

/// Reads a stream by its index.
pub fn by_index(stream: &[u8], threads: usize) -> Option<Vec<u8>> {
    let stream = stream.to_vec();
    let indexed = Indexed::open(&stream).unwrap()?;
    let mut out = vec![MaybeUninit::new(0); indexed.len()];
    let threads = NonZero::new(threads).unwrap();
    let whole = indexed.inflate(&mut out, threads, &()).unwrap()?;
    assert!(indexed.damage().is_none());
    assert!(indexed.read(0..indexed.len()).unwrap() == whole);
    Some(whole.to_vec())
}

/// Cuts a stream off at a place, or flips bits there; returns the place, too.
pub fn damaged(mut stream: Vec<u8>, at: Index, flip: u8, cut: bool) -> (Vec<u8>, usize) {
    let at = at.index(stream.len());
    if cut {
        stream.truncate(at);
    } else {
        stream[at] ^= flip;
    }
    (stream, at)
}

/// Compares ranges of more than nine blocks with those of the data.
pub fn check_ranges(indexed: &Indexed<&Vec<u8>>, data: &[u8]) {
    let edges = [
        0,
        1,
        BLOCK - 1,
        BLOCK,
        BLOCK + 1,
        5 * BLOCK,
        8 * BLOCK + 5,
        data.len(),
    ];
    for &start in &edges {
        for &end in edges.iter().filter(|&&end| end >= start) {
            assert!(
                indexed.read(start..end).unwrap() == data[start..end],
                "{start}..{end}"
            );
        }
    }
}
