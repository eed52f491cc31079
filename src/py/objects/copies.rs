//! Copies large arrays together at the end.

use std::mem;

use pyo3::prelude::*;

use super::super::memory::detached;
use super::super::options;
use super::super::watch::Watcher;
use super::values::{Copies, Objects};
use crate::base::parallel;
use crate::base::raw::Uninit;
use crate::base::watch::Watch;

impl Objects<'_, '_> {
    pub fn copy_all(&mut self) -> PyResult<()> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let copies = mem::take(&mut self.copies);
        let watcher = Watcher::signals();
        watcher.raise(self.copy(copies, &watcher))
    }

    fn copy(&self, mut copies: Copies<'_>, watcher: &Watcher) -> crate::Result<()> {
        let mut blocks: Vec<Block<'_>> = Vec::new();
        for (array, spans) in &mut copies {
            let mut rest = array.memory();
            for span in spans {
                let piece = span.range();
                let (now, later) = rest.split_at_mut(piece.len());
                let starts = (piece.start..).step_by(parallel::BLOCK);
                blocks.try_reserve(piece.len().div_ceil(parallel::BLOCK))?;
                blocks.extend(starts.zip(now.chunks_mut(parallel::BLOCK)));
                rest = later;
            }
            assert!(rest.is_empty(), "the spans cover the memory");
        }
        let bytes = blocks.iter().map(|(_, block)| block.len()).sum();
        let threads = options::threads(self.threads, bytes, parallel::MIN_COPY_BYTES)?;
        let source = self.source;
        detached(self.py, bytes, false, || {
            let read = |(start, target): Block<'_>| source.read_at(start, target).map(drop);
            parallel::for_each(blocks, threads, read, || watcher.check())
        })
    }
}

/// The start of a block in the source, and its target.
type Block<'m> = (usize, &'m mut Uninit);
