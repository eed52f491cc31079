//! Joins a patch and its base to the encoding.
//!
//! The checksum of the patch was compared before. Each block of the base is compared with its
//! checksum while it is copied, in one pass. Of a damaged patch or base, zeros stand for the lost
//! bytes of arrays, which do not match the checksums in the encoding.

use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;

use super::base::{Base, arrays};
use super::patch::{Difference, Patch};
use crate::base::raw::{Room, Uninit, zeroed};
use crate::base::source::{Pieces, Source, SourcePieces};
use crate::base::watch::Watch;
use crate::catalog::Catalog;
use crate::codec::delta::{BLOCK_BYTES, Decoder, Kind};
use crate::{Error, Result, base::grow, base::parallel};

const MOST_PATHS: usize = 100;

/// A patch whose differences have partners in a base.
pub struct Join<'a> {
    pub(super) patch: &'a Patch<'a>,
    pub(super) catalog: Catalog,
    /// For each difference, its leaf in the catalog, and the base's elements; none for a lost array.
    pub(super) partners: Vec<(usize, Pieces)>,
    unchanged: Vec<usize>,
    salvages: bool,
}

pub(super) enum Part<'a> {
    /// Of the skeleton, or of a stored block.
    Bytes(&'a [u8]),
    /// Lost bytes of a damaged patch or base.
    Lost,
    /// The number of a difference, and of its block.
    Block(usize, usize),
}

impl<'a> Join<'a> {
    /// Finds the base's array for each difference.
    ///
    /// Fails with [`Error::BaseMismatch`] if it has none of the same dtype and shape; with `salvages`,
    /// such arrays are lost.
    pub fn new(
        patch: &'a Patch<'a>,
        base: &Base<'_>,
        salvages: bool,
        watch: &dyn Watch,
    ) -> Result<Self> {
        let catalog = Catalog::open(&patch.skeleton, salvages, watch)?;
        let mut partners = grow::filled(None, patch.differences.len())?;
        let of_base = catalog.partners(&base.catalog, watch)?;
        // Of leaves with equal paths, the last counts.
        let last = catalog.partners(&catalog, watch)?;
        let (mut missing, mut unchanged) = (Mismatches::default(), Vec::new());
        missing.has_none = true;
        for array in arrays(&catalog, &patch.skeleton) {
            let array = match array {
                Err(error) if salvages && !error.is_no_damage() => continue,
                array => array?,
            };
            let numbers = grow::collect(array.place.parts().iter().map(|part| patch.at(part)))?;
            if numbers.iter().all(Option::is_none) {
                continue;
            }
            let partner = match base.partner(&array, &of_base) {
                Err(error) if salvages && !error.is_no_damage() => None,
                partner => partner?,
            };
            if partner.is_none() {
                missing.add(array.value)?;
            }
            missing.has_none &= of_base[array.value].is_none();
            let is_equal = |number: &Option<usize>| {
                number.is_some_and(|number| patch.differences[number].is_equal())
            };
            if numbers.iter().all(is_equal) && last[array.value] == Some(array.value) {
                grow::push(&mut unchanged, array.value)?;
            }
            let mut done = 0;
            for (part, number) in array.place.parts().iter().zip(&numbers) {
                let range = done..done + part.len();
                done = range.end;
                if let Some(number) = *number {
                    let pieces = partner.as_ref().map(|partner| partner.place.pieces(range));
                    let pieces = pieces.transpose()?.unwrap_or_default();
                    partners[number] = Some((array.value, pieces));
                }
            }
        }
        if !salvages || (missing.has_none && !patch.is_damaged) {
            missing.check(&catalog)?;
        }
        let present = patch.skeleton.pieces().map(|(place, _)| place.len());
        if patch.skeleton.len() - present.sum::<usize>() > base.bytes.len() {
            let reason = "the patch is damaged: its arrays have more bytes than the base";
            return Err(Error::Structure(reason.into()));
        }
        let pairs = patch.differences.iter().zip(partners);
        let partners = pairs.map(|(difference, partner)| match partner {
            None if salvages => Ok((0, Pieces::default())),
            partner => partner.ok_or_else(|| {
                let reason = "a difference is not an array of the tree";
                Error::malformed(difference.offset, reason)
            }),
        });
        Ok(Self {
            patch,
            partners: grow::try_collect(partners)?,
            catalog,
            unchanged,
            salvages,
        })
    }

    /// The paths of arrays that stay as in the base; below long keys, only as many as fit the
    /// length of the encoding.
    pub fn unchanged(&self) -> Result<Vec<String>> {
        let mut left = self.len();
        let paths = self.unchanged.iter();
        let paths = paths.map(|value| self.catalog.path_of(*value).to_string());
        grow::collect(paths.map_while(|path| {
            left = left.checked_sub(path.len())?;
            Some(path)
        }))
    }

    pub fn len(&self) -> usize {
        self.patch.skeleton.len()
    }

    /// All parts of the encoding, with their places, in order.
    pub(super) fn parts(&self) -> Result<Vec<(Range<usize>, Part<'a>)>> {
        const PIECE_BYTES: usize = parallel::BLOCK;
        let mut parts = Vec::new();
        for (place, bytes) in self.patch.skeleton.pieces() {
            for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
                let start = place.start + number * PIECE_BYTES;
                grow::push(&mut parts, (start..start + piece.len(), Part::Bytes(piece)))?;
            }
        }
        for (number, difference) in self.patch.differences.iter().enumerate() {
            let places = parallel::blocks(difference.place.clone(), BLOCK_BYTES);
            for (at, (block, place)) in difference.blocks.iter().zip(places).enumerate() {
                let part = match block.kind {
                    Kind::Stored => Part::Bytes(block.bytes),
                    _ if self.partners[number].1.as_slice().is_empty() => Part::Lost,
                    _ => Part::Block(number, at),
                };
                grow::push(&mut parts, (place, part))?;
            }
        }
        for place in &self.patch.lost {
            grow::push(&mut parts, (place.clone(), Part::Lost))?;
        }
        parts.sort_unstable_by_key(|(place, _)| (place.start, place.end));
        // Of a damaged patch, what is left may overlap.
        let ends = parts.iter().map(|(place, _)| place.end);
        let starts = parts.iter().map(|(place, _)| place.start);
        if !std::iter::once(0)
            .chain(ends)
            .eq(starts.chain([self.len()]))
        {
            let reason = "the patch is damaged: its parts do not cover the tree";
            return Err(Error::Structure(reason.into()));
        }
        Ok(parts)
    }

    /// Fills memory of the encoding's length, and returns it.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn fill<'t>(
        &self,
        base: &dyn Source,
        memory: &'t mut Uninit,
        threads: NonZero<usize>,
        watch: &dyn Watch,
    ) -> Result<&'t mut [u8]> {
        assert_eq!(memory.len(), self.len());
        let mismatches = Mutex::default();
        let mut blocks = 0;
        let ((), whole) = Room::share(memory, |room| {
            let (mut rest, mut items) = (room, Vec::new());
            for (place, part) in self.parts()? {
                blocks += usize::from(matches!(part, Part::Block(..)));
                let (now, after) = rest.split(place.len());
                rest = after;
                grow::push(&mut items, (part, now))?;
            }
            let work = |decoder: &mut Decoder, (part, room): (Part<'_>, Room<'_>)| {
                room.fill(|memory| match part {
                    Part::Bytes(bytes) => Ok(memory.write_copy_of_slice(bytes)),
                    Part::Lost => Ok(zeroed(memory)),
                    Part::Block(number, block) => {
                        self.fill_block(base, number, block, memory, decoder, &mismatches)
                    }
                })
            };
            parallel::for_each_with(items, threads, work, || watch.check())
        })?;
        let mismatches: Mismatches = mismatches.into_inner().expect(parallel::NO_PANIC);
        let is_another = mismatches.values.len() == blocks && !self.patch.is_damaged;
        if !self.salvages || is_another {
            mismatches.check(&self.catalog)?;
        }
        Ok(whole.expect("the parts cover the encoding"))
    }

    fn fill_block<'t>(
        &self,
        base: &dyn Source,
        number: usize,
        block: usize,
        memory: &'t mut Uninit,
        decoder: &mut Decoder,
        mismatches: &Mutex<Mismatches>,
    ) -> Result<&'t mut [u8]> {
        let difference = &self.patch.differences[number];
        let encoded = difference.blocks[block];
        if !decoder.read(encoded, memory.len())? {
            if self.salvages {
                return Ok(zeroed(memory));
            }
            return Err(malformed(difference));
        }
        let (value, parts) = &self.partners[number];
        let base = SourcePieces {
            source: base,
            parts,
        };
        let start = block * BLOCK_BYTES;
        let (memory, is_base) = decoder.join(encoded, &base, start, memory, self.salvages)?;
        if !is_base {
            mismatches.lock().expect(parallel::NO_PANIC).add(*value)?;
        }
        Ok(memory)
    }
}

pub(super) fn malformed(difference: &Difference<'_>) -> Error {
    Error::malformed(
        difference.offset,
        "a block of this difference cannot be decoded",
    )
}

/// Values of leaves that do not match the base that a patch needs, once for each block.
#[derive(Default)]
pub(super) struct Mismatches {
    values: Vec<usize>,
    /// Whether the base has none of the leaves that differ.
    has_none: bool,
}

impl Mismatches {
    pub fn add(&mut self, value: usize) -> Result<()> {
        grow::push(&mut self.values, value)
    }

    pub fn check(mut self, catalog: &Catalog) -> Result<()> {
        if self.values.is_empty() {
            return Ok(());
        }
        self.values.sort_unstable();
        self.values.dedup();
        let more = self.values.len().saturating_sub(MOST_PATHS);
        self.values.truncate(MOST_PATHS);
        let paths = self
            .values
            .iter()
            .map(|value| catalog.path_below(0, *value));
        Err(Error::BaseMismatch {
            paths: grow::try_collect(paths)?,
            more,
            has_none: self.has_none,
        })
    }
}
