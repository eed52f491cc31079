//! Recovers treepack's gzip streams with a damaged header.

use std::sync::Arc;

use super::foreign::Stream;
use super::format::{BLOCK_BYTES, END_BYTES, HEADER, NUMBERS_HEADER};
use super::indexed::Indexed;
use crate::Result;
use crate::base::pages::Pages;
use crate::base::raw::Uninit;
use crate::base::source::{SharedSource, Source, as_inner, bytes_of};
use crate::base::watch::Watch;

struct Mended {
    stream: SharedSource,
    header: [u8; HEADER.len()],
}

pub enum Contained {
    Indexed(Indexed<SharedSource>),
    Whole(Pages),
}

/// If only the header is damaged, the last blocks are whole.
const TRIED_BLOCKS: usize = 8;

/// The content of a treepack stream with a damaged header; `None` for all others, and for data that
/// end with `mark`.
pub fn mended(stream: &SharedSource, mark: &[u8], watch: &dyn Watch) -> Result<Option<Contained>> {
    let len = stream.len();
    let start = bytes_of(stream, 0..len.min(HEADER.len()))?;
    if start == HEADER || start == NUMBERS_HEADER || len < HEADER.len() + END_BYTES {
        return Ok(None);
    }
    if bytes_of(stream, len - mark.len()..len)? == mark {
        return Ok(None);
    }
    if only_block(stream, watch)?.is_some() {
        return Ok(None); // another writer's header, such as one with a time stamp
    }
    for header in [HEADER, NUMBERS_HEADER] {
        let stream = stream.clone();
        let stream: SharedSource = Arc::new(Mended { stream, header });
        if let Some(pages) = only_block(&stream, watch)? {
            return Ok(Some(Contained::Whole(pages)));
        }
        if let Some(indexed) = Indexed::open(stream)?
            && indexed.has_whole_block(TRIED_BLOCKS)?
        {
            return Ok(Some(Contained::Indexed(indexed)));
        }
    }
    Ok(None)
}

/// The content of an intact single block, which has no index.
fn only_block(stream: &SharedSource, watch: &dyn Watch) -> Result<Option<Pages>> {
    if stream.len() >= 2 * BLOCK_BYTES {
        return Ok(None);
    }
    match Stream(stream).salvage(Some(BLOCK_BYTES), watch) {
        Ok((pages, None)) => Ok(Some(pages)),
        Err(error) if error.is_no_damage() => Err(error),
        _ => Ok(None),
    }
}

impl Source for Mended {
    fn len(&self) -> usize {
        self.stream.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let bytes = self.stream.read_at(offset, target)?;
        let header = self.header.get(offset..).unwrap_or_default();
        for (byte, mended) in bytes.iter_mut().zip(header) {
            *byte = *mended;
        }
        Ok(bytes)
    }

    as_inner!(self, self.stream);
}
