//! Bytes whose elements begin after a header; the fuzz targets use them, too.

use std::ops::Range;

use treepack_codec::Result;
use treepack_codec::base::raw::{RawBytes, Uninit};
use treepack_codec::base::source::Source;

/// The bytes, and the length of their header.
pub struct Content<'a>(pub &'a [u8], pub usize);

impl Source for Content<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        RawBytes::from(self.0).read_at(offset, target)
    }

    fn phase(&self, range: Range<usize>) -> usize {
        self.1.wrapping_sub(range.start) % 8
    }
}
