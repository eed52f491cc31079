//! Records a tree's structure, the index of its leaves, and their checksums.

use super::Encoder;
use crate::base::digest::Digest;
use crate::base::watch::Watch;
use crate::format::array::Array;
use crate::format::footer::{Regions, Seal};
use crate::format::index::{LeafKind, Listing};
use crate::format::layout::{Layout, Payload};
use crate::format::structure::{Kind, Record, Recorder};
use crate::format::wire::{self, Head, length};
use crate::{Result, base::grow};

impl<P: Payload> Encoder<P> {
    #[inline]
    pub fn is_described(&self) -> bool {
        self.recorder.is_some() && self.paused.is_none()
    }

    #[inline]
    pub(super) fn is_unrecorded(&self) -> bool {
        self.recorder.is_none() && self.listing.is_none()
    }

    /// Returns whether the next value is inside an indexed leaf and not that leaf's data.
    pub fn is_inside_leaf(&self) -> bool {
        let pending = self
            .listing
            .as_ref()
            .and_then(|listing| listing.pending.as_ref());
        self.paused.is_some() && !matches!(pending, Some((LeafKind::PrngKey(..), _)))
    }

    /// Records the tree, if it is described, except in lists and maps of arbitrary keys.
    #[inline]
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut().filter(|_| self.paused.is_none())
    }

    #[inline]
    pub(super) fn listing(&mut self) -> Option<&mut Listing> {
        self.listing.as_mut().filter(|_| self.paused.is_none())
    }

    #[inline]
    pub(super) fn record_leaf(
        &mut self,
        kind: Kind,
        leaf_kind: impl FnOnce() -> Result<LeafKind>,
    ) -> Result<()> {
        match (self.recorder(), kind) {
            (None, _) => {}
            (Some(recorder), Kind::Plain) => recorder.plain()?,
            (Some(recorder), kind) => recorder.leaf(kind)?,
        }
        let start = self.layout.len();
        if let Some(listing) = self.listing() {
            listing.pending = Some((leaf_kind()?, start));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn record_array(&mut self, kind: Kind, array: &Array<'_>) -> Result<()> {
        let shape = || grow::collect(array.shape.iter().map(|&dim| dim as u64));
        if self.paused.is_some()
            && let Some(listing) = &mut self.listing
            && let Some((LeafKind::PrngKey(_, data), _)) = &mut listing.pending
        {
            *data = shape()?;
        }
        let leaf_kind = || {
            let dtype = grow::to_string(array.dtype)?;
            Ok(match array.code {
                wire::EXT_NPSCALAR => LeafKind::Scalar(dtype),
                _ => LeafKind::Array(dtype, shape()?),
            })
        };
        self.record_leaf(kind, leaf_kind)
    }

    /// Records the next container as a leaf.
    pub(super) fn pause(&mut self, kind: Kind, leaf_kind: LeafKind) -> Result<()> {
        self.record_leaf(kind, || Ok(leaf_kind))?;
        if self.is_described() {
            self.paused = Some(self.open.len());
        }
        Ok(())
    }

    #[inline]
    pub(super) fn resume(&mut self) -> bool {
        let depth = self.open.len();
        self.paused.take_if(|around| *around >= depth).is_some()
    }

    /// Adds the index to the record of a tree that has ended. Returns the ends of the summed
    /// regions, if any.
    pub(super) fn finish_index(
        &mut self,
        record: &mut Record,
        watch: &dyn Watch,
    ) -> Result<Option<Vec<usize>>> {
        (record.index, record.digests) = (None, None);
        let Some(listing) = self.listing.take() else {
            return Ok(None);
        };
        let (index, ends) = listing.finish(self.layout.len())?;
        record.index = Some(index.encode(watch)?.into());
        if self.sums.has_digests {
            let digests = if self.sums.has_checksums {
                grow::filled(Digest::default(), ends.len())? // computed when the leaves are summed
            } else {
                self.layout.digests(&ends, watch)?
            };
            let bytes = digests.into_iter().flat_map(Digest::to_bytes);
            record.digests = Some(grow::collect(bytes)?.into());
        }
        Ok(Some(ends).filter(|_| self.sums.has_checksums))
    }

    pub(super) fn with_record(self, record: &[u8], ends: Option<Vec<usize>>) -> Result<Layout<P>> {
        let mut layout = self.layout;
        let after = Seal::bytes(ends.as_ref().map_or(0, |ends| ends.len() + 1));
        let len = length("structure", record.len() + after)?;
        Head::Bin(len).write(layout.headers());
        let start = layout.len();
        layout.extend(record)?;
        let Some(mut ends) = ends else {
            layout.extend(&Seal::new(record, Regions::new(Vec::new())).close(&[], &[])?)?;
            return Ok(layout.finish());
        };
        grow::push(&mut ends, start)?;
        layout.extend(&grow::filled(0, after)?)?;
        let digests = if self.sums.has_digests {
            ends.len() - 1
        } else {
            0
        };
        let seal = Seal::with_digests(record, Regions::new(ends), digests);
        Ok(layout.sealed(Some(seal)))
    }
}
