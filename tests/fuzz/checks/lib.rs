//! What has to hold of any bytes: the fuzz targets look for some of which it does not, and
//! `tests/seeds.rs` tries the bytes that are known.

// Numbers that are cut off are as good, and each program uses what it needs.
#![allow(
    clippy::cast_possible_truncation,
    clippy::missing_panics_doc,
    dead_code
)]

pub mod codec;
pub mod compressing;
#[path = "../../codec/content.rs"]
pub mod content;
pub mod files;
pub mod frame;
pub mod headers;
#[path = "../../core/opened.rs"]
pub mod opened;
pub mod patches;
pub mod records;
pub mod seeds;
pub mod shards;

use std::mem::MaybeUninit;
use std::num::NonZero;

use treepack::Result;
use treepack::base::raw::RawBytes;
use treepack::base::source::Source;

/// Between the parts of an input that has several.
pub const CUT: &[u8] = b"\xc1cut\xc1";

/// Splits an input at each `CUT`.
pub fn parts(mut data: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(at) = data.windows(CUT.len()).position(|bytes| bytes == CUT) {
        found.push(&data[..at]);
        data = &data[at + CUT.len()..];
    }
    found.push(data);
    found
}

/// A source that is no memory, so that it is read in windows.
pub struct Windowed<'a>(pub &'a [u8]);

impl Source for Windowed<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        RawBytes::from(self.0).read_at(offset, target)
    }

    fn near(&self) -> usize {
        16
    }
}

/// Numbers that look random, the same ones each time.
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: usize) -> Self {
        Self(seed as u64 ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One that is at most so large.
    pub fn up_to(&mut self, most: usize) -> usize {
        (self.next() % (most as u64 + 1)) as usize
    }
}

pub fn threads(count: usize) -> NonZero<usize> {
    NonZero::new(count).expect("there is one")
}
