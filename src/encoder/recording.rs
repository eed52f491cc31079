//! Records a tree's structure, the index of its leaves, and their checksums.

use crate::array::Array;
use crate::layout::{Layout, LayoutBuilder, Payload};
use crate::structure::{Kind, LeafKind, Listing, Record, Recorder, Regions, Seal};
use crate::watch::Watch;
use crate::wire::{self, Head, length};
use crate::{Result, grow};

#[derive(Debug, Default)]
pub(super) struct Recording {
    recorder: Option<Recorder>,
    listing: Option<Listing>,
    summed: bool,
    /// The depth of a container that is recorded as a leaf, without its content.
    paused: Option<usize>,
}

impl Recording {
    pub(super) fn structure() -> Self {
        Self {
            recorder: Some(Recorder::default()),
            ..Self::default()
        }
    }

    pub(super) fn index(summed: bool) -> Self {
        Self {
            listing: Some(Listing::default()),
            summed,
            ..Self::structure()
        }
    }

    #[inline]
    pub(super) fn is_described(&self) -> bool {
        self.recorder.is_some() && self.paused.is_none()
    }

    #[inline]
    pub(super) fn is_off(&self) -> bool {
        self.recorder.is_none() && self.listing.is_none()
    }

    pub(super) fn is_inside_leaf(&self) -> bool {
        let pending = self
            .listing
            .as_ref()
            .and_then(|listing| listing.pending.as_ref());
        self.paused.is_some() && !matches!(pending, Some((LeafKind::PrngKey(..), _)))
    }

    #[inline]
    pub(super) fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut().filter(|_| self.paused.is_none())
    }

    #[inline]
    pub(super) fn listing(&mut self) -> Option<&mut Listing> {
        self.listing.as_mut().filter(|_| self.paused.is_none())
    }

    #[inline]
    pub(super) fn close(&mut self, kind: Kind, depth: usize) -> Result<()> {
        if self.resume(depth) {
            return Ok(());
        }
        self.recorder()
            .map_or(Ok(()), |recorder| recorder.close(kind))
    }

    #[inline]
    pub(super) fn leaf(
        &mut self,
        kind: Kind,
        listed: impl FnOnce() -> Result<LeafKind>,
        start: usize,
    ) -> Result<()> {
        match (self.recorder(), kind) {
            (None, _) => {}
            (Some(recorder), Kind::Plain) => recorder.plain()?,
            (Some(recorder), kind) => recorder.leaf(kind)?,
        }
        if let Some(listing) = self.listing() {
            listing.pending = Some((listed()?, start));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn array(&mut self, kind: Kind, array: &Array<'_>, start: usize) -> Result<()> {
        let shape = || grow::collect(array.shape.iter().map(|&dim| dim as u64));
        if self.paused.is_some()
            && let Some(listing) = &mut self.listing
            && let Some((LeafKind::PrngKey(_, data), _)) = &mut listing.pending
        {
            *data = shape()?;
        }
        let listed = || {
            let dtype = grow::to_string(array.dtype)?;
            Ok(match array.code {
                wire::EXT_NPSCALAR => LeafKind::Scalar(dtype),
                _ => LeafKind::Array(dtype, shape()?),
            })
        };
        self.leaf(kind, listed, start)
    }

    pub(super) fn pause(
        &mut self,
        kind: Kind,
        listed: LeafKind,
        start: usize,
        depth: usize,
    ) -> Result<()> {
        self.leaf(kind, || Ok(listed), start)?;
        if self.is_described() {
            self.paused = Some(depth);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn resume(&mut self, depth: usize) -> bool {
        self.paused.take_if(|around| *around >= depth).is_some()
    }

    pub(super) fn take_structure(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }

    /// Adds the index to the record of a tree that ends at `end`. Returns the ends of the summed
    /// regions, if any.
    pub(super) fn finish(
        self,
        record: &mut Record,
        end: usize,
        watch: &dyn Watch,
    ) -> Result<Option<Vec<usize>>> {
        record.index = None;
        let Some(listing) = self.listing else {
            return Ok(None);
        };
        let (index, ends) = listing.finish(end)?;
        record.index = Some(index.encode(watch)?.into());
        Ok(Some(ends).filter(|_| self.summed))
    }
}

pub(super) fn with_record<P: Payload>(
    mut layout: LayoutBuilder<P>,
    record: &[u8],
    ends: Option<Vec<usize>>,
) -> Result<Layout<P>> {
    let after = Seal::bytes(ends.as_ref().map_or(0, |ends| ends.len() + 1));
    let len = length("structure", record.len() + after)?;
    Head::Bin(len).write(layout.headers());
    let start = layout.len();
    layout.extend(record)?;
    let Some(mut ends) = ends else {
        layout.extend(&Seal::new(record, Regions::new(Vec::new())).close(&[])?)?;
        return Ok(layout.finish());
    };
    grow::push(&mut ends, start)?;
    layout.extend(&grow::filled(0, after)?)?;
    Ok(layout.sealed(Some(Seal::new(record, Regions::new(ends)))))
}
