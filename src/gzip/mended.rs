//! Streams of ours whose header is damaged, with the header that they had.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::index::{BLOCK_BYTES, END_BYTES, HEADER};
use super::{Indexed, numbers, salvage};
use crate::Result;
use crate::mapping::Pages;
use crate::source::{Source, read_to};
use crate::structure::MARK;
use crate::watch::Watch;

type Shared = Arc<dyn Source + Send + Sync>;

/// A stream that begins with another header.
struct Mended {
    stream: Shared,
    header: [u8; HEADER.len()],
}

/// What such a stream contains.
pub enum Contained {
    /// Inflated where it is read, as the stream has an index.
    Indexed(Indexed<Shared>),
    /// The only block.
    Whole(Pages),
}

/// So many of the last blocks are tried: of a stream with a damaged header alone, all are whole.
const TRIED_BLOCKS: usize = 8;

/// What a stream contains that would be one of ours with another header; `None` for all others.
pub fn mended(stream: &Shared, watch: &dyn Watch) -> Result<Option<Contained>> {
    let len = stream.len();
    let (mut start, mut end) = (Vec::new(), Vec::new());
    read_to(stream, 0..len.min(HEADER.len()), &mut start)?;
    if start == HEADER || start == numbers::HEADER || len < HEADER.len() + END_BYTES {
        return Ok(None);
    }
    read_to(stream, len - MARK.len()..len, &mut end)?;
    if end == MARK {
        return Ok(None);
    }
    if only_block(stream, watch)?.is_some() {
        return Ok(None); // another writer has another header, such as one with a time stamp
    }
    for header in [HEADER, numbers::HEADER] {
        let stream = stream.clone();
        let stream: Shared = Arc::new(Mended { stream, header });
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

/// The content of a stream that is a single block without damage. It has no index, and takes little
/// more than its content.
fn only_block(stream: &Shared, watch: &dyn Watch) -> Result<Option<Pages>> {
    if stream.len() >= 2 * BLOCK_BYTES {
        return Ok(None);
    }
    let found = undamaged(salvage(stream, Some(BLOCK_BYTES), watch))?;
    Ok(found
        .ok()
        .and_then(|(pages, damage)| damage.is_none().then_some(pages)))
}

/// Errors of reading stay errors; those of the data are a result.
pub(super) fn undamaged<T>(done: Result<T>) -> Result<Result<T>> {
    match done {
        Err(error) if error.is_no_damage() => Err(error),
        done => Ok(done),
    }
}

impl Source for Mended {
    fn len(&self) -> usize {
        self.stream.len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        let found = self.stream.read_at(offset, target)?;
        let header = self.header.get(offset..).unwrap_or_default();
        for (byte, mended) in found.iter_mut().zip(header) {
            *byte = *mended;
        }
        Ok(found)
    }

    fn near(&self) -> usize {
        self.stream.near()
    }
}
