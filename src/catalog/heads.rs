//! Tracks which heads match the index, and reads heads in order.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::raw::{RawBytes, Uninit};
use crate::source::{Source, as_inner, read_to};
use crate::{Result, grow};

/// Heads known to match the index. A head is the bytes before a leaf or the record.
#[derive(Debug, Default)]
pub(super) struct Checked(Vec<AtomicU64>);

impl Checked {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn none(heads: usize) -> Result<Self> {
        let words = (0..heads.div_ceil(64)).map(|_| AtomicU64::default());
        Ok(Self(grow::collect(words)?))
    }

    pub(super) fn has(&self, head: usize) -> bool {
        let word = self.0.get(head / 64);
        word.is_none_or(|word| word.load(Ordering::Relaxed) & (1 << (head % 64)) != 0)
    }

    pub(super) fn add(&self, head: usize) {
        if let Some(word) = self.0.get(head / 64) {
            word.fetch_or(1 << (head % 64), Ordering::Relaxed);
        }
    }
}

/// A source read in order: near ranges share a request.
pub(super) struct InOrder<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) window: &'a Mutex<Window>,
}

pub(super) type Window = (usize, Vec<u8>);

const WINDOW_BYTES: usize = 64 << 10;

impl Source for InOrder<'_> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let Ok(mut window) = self.window.try_lock() else {
            // Concurrent readers, and forks that inherit a held lock, read directly.
            return self.source.read_at(offset, target);
        };
        let (start, bytes) = &mut *window;
        let end = offset + target.len();
        if offset < *start || end > *start + bytes.len() {
            // Double the read-ahead after sequential reads, reset it after a jump.
            let goes_on = (*start..=*start + bytes.len()).contains(&offset);
            let ahead = if goes_on { 2 * bytes.len() } else { 0 };
            let len = ahead.min(WINDOW_BYTES).max(target.len());
            let there = self.source.run(offset).min(self.source.at_hand(offset));
            let there = there.max(target.len());
            let until = offset + len.min(there); // of the present bytes
            bytes.clear();
            *start = offset;
            read_to(self.source, offset..until, bytes)?;
        }
        let from = offset - *start;
        Ok(target.write_copy_of_slice(&bytes[from..from + target.len()]))
    }

    as_inner!(self, self.source);

    fn memory(&self) -> Option<RawBytes<'_>> {
        self.source.memory()
    }

    fn stable(&self) -> Option<&[u8]> {
        self.source.stable()
    }
}
