//! Records a tree's structure, the index of its leaves, and their checksums.

use crate::array::Array;
use crate::layout::{Layout, LayoutBuilder, Payload};
use crate::structure::{
    Kind, LeafKind, Listing, NodeType, Record, Recorder, Regions, Seal, Sharding,
};
use crate::watch::Watch;
use crate::wire::{self, Head, length};
use crate::{Result, grow};

#[derive(Debug, Default)]
pub(super) struct Recording {
    recorder: Option<Recorder>,
    listing: Option<Listing>,
    summed: bool,
    /// The recorder while it ignores a container that is recorded as a leaf, and that container's
    /// depth.
    paused: Option<(Recorder, usize)>,
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
        self.recorder.is_some()
    }

    pub(super) fn is_off(&self) -> bool {
        self.recorder.is_none() && self.listing.is_none() && self.paused.is_none()
    }

    pub(super) fn is_inside_leaf(&self) -> bool {
        let pending = self.listing.as_ref().and_then(|it| it.pending.as_ref());
        self.paused.is_some() && !matches!(pending, Some((LeafKind::PrngKey(..), _)))
    }

    #[inline]
    fn listed(&mut self) -> Option<&mut Listing> {
        self.listing.as_mut().filter(|_| self.paused.is_none())
    }

    #[inline]
    pub(super) fn begin(&mut self, start: usize) -> Result<()> {
        self.listed().map_or(Ok(()), |it| it.end_leaf(start))
    }

    #[inline]
    pub(super) fn map(&mut self, pairs: u32) -> Result<()> {
        self.listed().map_or(Ok(()), |it| it.head(Head::Map(pairs)))
    }

    #[inline]
    pub(super) fn key(&mut self, head: Head, text: &str) -> Result<()> {
        match &mut self.listing {
            Some(listing) if self.recorder.is_some() => listing.key(head, text),
            _ => Ok(()),
        }
    }

    #[inline]
    pub(super) fn open(&mut self) -> Result<()> {
        self.recorder.as_mut().map_or(Ok(()), Recorder::open)
    }

    #[inline]
    pub(super) fn close(&mut self, kind: Kind, depth: usize) -> Result<()> {
        if self.resume(depth) {
            return Ok(());
        }
        let recorder = self.recorder.as_mut();
        recorder.map_or(Ok(()), |recorder| recorder.close(kind))
    }

    pub(super) fn node_type(&mut self, class: NodeType) -> Result<u32> {
        let recorder = self.recorder.as_mut();
        recorder.map_or(Ok(0), |recorder| recorder.node_type(class))
    }

    pub(super) fn sharding(&mut self, sharding: Sharding) -> Result<Option<u32>> {
        let recorder = self.recorder.as_mut();
        recorder.map_or(Ok(None), |recorder| recorder.sharding(sharding))
    }

    pub(super) fn split(&mut self, sharding: Option<u32>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.split(sharding);
        }
    }

    #[inline]
    pub(super) fn leaf(
        &mut self,
        kind: Kind,
        listed: impl FnOnce() -> Result<LeafKind>,
        start: usize,
    ) -> Result<()> {
        match (&mut self.recorder, kind) {
            (None, _) => {}
            (Some(recorder), Kind::Plain) => recorder.plain()?,
            (Some(recorder), kind) => recorder.leaf(kind)?,
        }
        if let Some(listing) = self.listed() {
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

    #[inline]
    pub(super) fn moved(&mut self, start: usize) {
        if let Some((_, pending)) = self.listed().and_then(|it| it.pending.as_mut()) {
            *pending = start;
        }
    }

    pub(super) fn pause(
        &mut self,
        kind: Kind,
        listed: LeafKind,
        start: usize,
        depth: usize,
    ) -> Result<()> {
        self.leaf(kind, || Ok(listed), start)?;
        if let Some(recorder) = self.recorder.take() {
            self.paused = Some((recorder, depth));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn resume(&mut self, depth: usize) -> bool {
        match self.paused.take_if(|(_, around)| *around >= depth) {
            Some((recorder, _)) => {
                self.recorder = Some(recorder);
                true
            }
            None => false,
        }
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
    let summed = ends.is_some();
    let mut ends = ends.unwrap_or_default();
    if summed {
        grow::push(&mut ends, 0)?;
    }
    let after = Seal::bytes(ends.len());
    let len = length("structure", record.len() + after)?;
    Head::Bin(len).write(layout.headers());
    if let Some(rest) = ends.last_mut() {
        *rest = layout.len();
    }
    let seal = Seal::new(record, Regions::new(ends));
    layout.extend(record)?;
    if summed {
        layout.extend(&grow::filled(0, after)?)?;
        return Ok(layout.sealed(Some(seal)));
    }
    layout.extend(&seal.close(&[])?)?;
    Ok(layout.finish())
}
