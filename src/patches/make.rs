//! Makes a patch of a layout.

use std::mem;
use std::num::NonZero;
use std::ops::Range;

use crc32fast::Hasher;

use super::base::{Base, arrays};
use super::patch::{BLOCK_HEAD_BYTES, Extension, START, difference, extensions, tail, write_block};
use crate::base::raw::{Uninit, append_with};
use crate::base::source::{Pieces, Source, SourcePieces, bytes_of, read_to};
use crate::base::watch::Watch;
use crate::catalog::Catalog;
use crate::codec::delta::{BLOCK_BYTES, Block, Elements, Encoded, Encoder, Kind};
use crate::format::footer::{PartialSums, Seal, Sums};
use crate::format::layout::{Layout, LayoutBuilder, Payload, Slice};
use crate::format::wire::{EXT_DELTA, EXT_NDARRAY, Head, length};
use crate::{Result, base::grow, base::parallel};

/// Smaller arrays are not worth the head of a difference.
const MIN_BYTES: usize = 48;

/// A layout as a source, whose payloads are not read ahead: some are on accelerators.
pub struct Headers<'a, P> {
    layout: &'a Layout<P>,
    /// The end of the record, with zeros for the checksums of leaves.
    seal: Vec<u8>,
}

impl<'a, P: Payload> Headers<'a, P> {
    pub fn of(layout: &'a Layout<P>) -> Result<Self> {
        let blank = |seal: &Seal| seal.close(&grow::filled(0, seal.regions.len())?, &[]);
        let seal = layout.seal().map(blank).transpose()?.unwrap_or_default();
        Ok(Self { layout, seal })
    }
}

impl<P: Payload + Sync> Source for Headers<'_, P> {
    fn len(&self) -> usize {
        self.layout.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let bytes = self.layout.read_at(offset, target)?;
        let end = offset + bytes.len();
        let seal = self.len() - self.seal.len();
        if end > seal {
            let from = seal.max(offset);
            bytes[from - offset..].copy_from_slice(&self.seal[from - seal..end - seal]);
        }
        Ok(bytes)
    }

    fn at_hand(&self, offset: usize) -> usize {
        let slices = self.layout.slices(offset..self.len());
        let headers = slices.map_while(|slice| match slice {
            Slice::Headers(bytes) => Some(bytes.len()),
            Slice::Payload(..) => None,
        });
        headers.sum()
    }
}

/// An array, or a chunk of one, that has a partner in the base.
struct Unit {
    extension: Extension,
    /// Its elements in the layout.
    place: Range<usize>,
    elements: Elements,
    /// The partner's elements.
    base: Pieces,
}

/// Bytes of the layout, and the difference that replaces them.
struct Replaced {
    range: Range<usize>,
    difference: Vec<u8>,
    /// Of the range, by regions of the layout's seal.
    sums: PartialSums,
}

/// Makes a patch from a base to a layout. `name` is the base's file, relative to the patch's, or
/// empty.
pub fn make<P: Payload + Sync>(
    layout: Layout<P>,
    base: &Base<'_>,
    name: &str,
    threads: NonZero<usize>,
    watch: &dyn Watch,
) -> Result<Layout<P>> {
    let units = units(&layout, base, watch)?;
    let mut replaced = Vec::new();
    let mut jobs = Vec::new();
    for (number, unit) in units.iter().enumerate() {
        for start in (0..unit.place.len()).step_by(BLOCK_BYTES) {
            grow::push(&mut jobs, (number, start))?;
        }
    }
    let work = |encoder: &mut Encoder, job: usize| {
        let (number, start) = jobs[job];
        let unit = &units[number];
        let len = BLOCK_BYTES.min(unit.place.len() - start);
        let new = Pieces::new(vec![unit.place.clone()])?;
        let new = SourcePieces {
            source: &layout,
            parts: &new,
        };
        let base = SourcePieces {
            source: base.bytes,
            parts: &unit.base,
        };
        encoder.encode(unit.elements, &new, &base, start, len)
    };
    let mut blocks = Vec::new();
    let each = |job: usize, encoded: Result<Encoded>| {
        grow::push(&mut blocks, encoded?)?;
        let unit = &units[jobs[job].0];
        if jobs[job].1 + BLOCK_BYTES >= unit.place.len() {
            let replacements = replacement(unit, &layout, mem::take(&mut blocks))?;
            grow::add_all(&mut replaced, replacements)?;
        }
        watch.check()
    };
    let ahead = threads.get().saturating_mul(4);
    parallel::in_order(jobs.len(), threads, ahead, work, each)?;
    assemble(layout, replaced, name, watch)
}

/// The arrays of a layout that have partners in the base.
fn units<P: Payload + Sync>(
    layout: &Layout<P>,
    base: &Base<'_>,
    watch: &dyn Watch,
) -> Result<Vec<Unit>> {
    let headers = Headers::of(layout)?;
    let extensions = extensions(&headers, 0..layout.len(), EXT_NDARRAY, watch)?;
    let catalog = Catalog::open(&headers, false, watch)?;
    let partners = catalog.partners(&base.catalog, watch)?;
    let mut units = Vec::new();
    for array in arrays(&catalog, &headers) {
        let array = array?;
        let Some(partner) = base.partner(&array, &partners)? else {
            continue;
        };
        let elements = Elements::of(array.dtype, array.place.itemsize());
        let mut done = 0;
        for part in array.place.parts() {
            let range = done..done + part.len();
            done = range.end;
            // The elements are the last bytes of an extension.
            let at = extensions.partition_point(|extension| extension.body.end < part.end);
            let extension = extensions.get(at).filter(|extension| {
                extension.body.end == part.end && extension.body.start <= part.start
            });
            if let Some(extension) = extension.filter(|_| part.len() >= MIN_BYTES) {
                let unit = Unit {
                    extension: extension.clone(),
                    place: part.clone(),
                    elements,
                    base: partner.place.pieces(range)?,
                };
                grow::push(&mut units, unit)?;
            }
        }
    }
    Ok(units)
}

/// The difference in place of an array; `None` unless it is shorter.
fn replacement<P: Payload + Sync>(
    unit: &Unit,
    layout: &Layout<P>,
    blocks: Vec<Encoded>,
) -> Result<Option<Replaced>> {
    let Unit { place, .. } = unit;
    let whole = unit.extension.start..place.end;
    let block_len = |number: usize| BLOCK_BYTES.min(place.len() - number * BLOCK_BYTES);
    let bytes = blocks
        .iter()
        .enumerate()
        .map(|(number, block)| match block.kind {
            Kind::Stored => BLOCK_HEAD_BYTES + block_len(number),
            _ => BLOCK_HEAD_BYTES + block.bytes.len(),
        });
    let head = bytes_of(layout, whole.start..place.start)?;
    let start = difference(unit.elements, &head, place.len())?;
    let len = start.len() + bytes.sum::<usize>();
    if len + Head::MAX_BYTES >= whole.len() {
        return Ok(None);
    }
    let mut out = grow::with_room(Head::MAX_BYTES + len)?;
    Head::Ext(EXT_DELTA, length("difference", len)?).write(&mut out);
    grow::extend(&mut out, &start)?;
    let sum_end = out.len();
    let (mut sum, mut stored) = (Hasher::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        let mut bytes = &block.bytes;
        if block.kind == Kind::Stored {
            // The array may have changed since.
            let start = place.start + number * BLOCK_BYTES;
            stored.clear();
            read_to(layout, start..start + block_len(number), &mut stored)?;
            bytes = &stored;
            sum.update(bytes);
        } else {
            sum.combine(&block.sums.result);
        }
        let block = Block {
            elements: unit.elements,
            kind: block.kind,
            crc: block.sums.base.clone().finalize(),
            bytes,
        };
        write_block(&mut out, block)?;
    }
    let mut sums = Vec::new();
    if let Some(seal) = layout.seal() {
        sums = seal.regions.sum(whole.start, &head)?;
        let region = seal.regions.parts(place.clone()).next();
        grow::add_all(&mut sums, region.map(|(region, _)| (region, sum.clone())))?;
    }
    out[sum_end - size_of::<u32>()..sum_end].copy_from_slice(&sum.finalize().to_le_bytes());
    Ok(Some(Replaced {
        range: whole,
        difference: out,
        sums,
    }))
}

/// A growing patch, and the checksum of its bytes.
struct Assembly<P> {
    out: LayoutBuilder<P>,
    sum: Hasher,
    tile: Vec<u8>,
    seal: Option<Seal>,
    /// The checksums of leaves for the seal.
    sums: Sums,
}

impl<P: Payload> Assembly<P> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.out.extend(bytes)
    }

    /// Appends bytes of the layout.
    fn headers(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        if let Some(seal) = &self.seal {
            self.sums.add(seal.regions.sum(at, bytes)?)?;
        }
        self.bytes(bytes)
    }

    fn payload(&mut self, at: usize, payload: P, watch: &dyn Watch) -> Result<()> {
        const TILE_BYTES: usize = 256 << 10;
        for Range { start, end } in parallel::blocks(0..payload.len(), TILE_BYTES) {
            self.tile.clear();
            append_with(&mut self.tile, end - start, |target| {
                payload.copy_to(start, target)
            })?;
            self.sum.update(&self.tile);
            if let Some(seal) = &self.seal {
                self.sums.add(seal.regions.sum(at + start, &self.tile)?)?;
            }
            watch.check()?;
        }
        self.out.push(payload)
    }
}

fn assemble<P: Payload>(
    layout: Layout<P>,
    replaced: Vec<Replaced>,
    name: &str,
    watch: &dyn Watch,
) -> Result<Layout<P>> {
    let mut assembly = Assembly {
        out: LayoutBuilder::default(),
        sum: Hasher::new(),
        tile: Vec::new(),
        seal: layout.seal().cloned(),
        sums: Sums::default(),
    };
    assembly.bytes(&START)?;
    let nbytes = layout.len();
    let sealed = assembly.seal.as_ref().map(|seal| seal.regions.len());
    let body = nbytes - sealed.map_or(0, Seal::bytes);
    let mut replaced = replaced.into_iter().peekable();
    // Offsets in the layout: of the next byte, and of the end of the last replaced array.
    let (mut at, mut gone) = (0_usize, 0);
    let (mut lengths, mut before) = (Vec::new(), START.len());
    layout.take_apart(|headers, payload| {
        let (start, end) = (at, body.min(at + headers.len()));
        loop {
            at = at.max(gone).min(end);
            let next = replaced.next_if(|next| next.range.start < end);
            let until = next.as_ref().map_or(end, |next| next.range.start);
            assembly.headers(at, &headers[at - start..until - start])?;
            at = until;
            let Some(next) = next else {
                break;
            };
            let Replaced {
                range,
                difference,
                sums,
            } = next;
            assembly.sums.add(sums)?;
            let start = assembly.out.len();
            if assembly.seal.is_some() {
                let parts = [start - before, difference.len(), range.len()];
                grow::push(&mut lengths, parts.map(|len| len as u64))?;
            }
            assembly.bytes(&difference)?;
            before = assembly.out.len();
            gone = range.end;
        }
        if let Some(payload) = payload {
            let end = at + payload.len();
            if at >= gone {
                assembly.payload(at, payload, watch)?;
            }
            at = end;
        }
        Ok(())
    })?;
    if let Some(seal) = assembly.seal.take() {
        let sums = mem::take(&mut assembly.sums).finish(seal.regions.len())?;
        assembly.bytes(&seal.close(&sums, &[])?)?;
    }
    let tail = tail(nbytes, name, lengths, &mut assembly.sum)?;
    assembly.out.extend(&tail)?;
    Ok(assembly.out.finish())
}
