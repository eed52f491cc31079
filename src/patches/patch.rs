//! A patch: the encoding of a tree, with differences in place of arrays.
//!
//! docs/format.md, "Patches", has the layout.

use std::mem::MaybeUninit;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::base::error::mismatch;
use crate::base::grow::{self, decode, encode_named};
use crate::base::raw::{Filling, RawBytes, Uninit};
use crate::base::source::{Source, missing};
use crate::base::watch::{Steps, Watch};
use crate::codec::delta::{BLOCK_BYTES, Block, Elements, Kind};
use crate::format::footer;
use crate::format::structure::check_version;
use crate::format::wire::{Cursor, EXT_DELTA, Head, length};
use crate::{Error, Result};

/// The last bytes of a patch.
pub const MARK: [u8; 8] = *b"\x93treepd\n";

/// The only known version of the format.
const VERSION: u32 = 1;

const FOOTER_BYTES: usize = 16;

/// The first bytes of a patch: the header of a list of three values, and the mark as bytes.
pub const START: [u8; 11] = *b"\x93\xc4\x08\x93treepd\n";

/// The header of a block: kind, checksum and length.
pub const BLOCK_HEAD_BYTES: usize = 9;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    nbytes: u64,
    /// The base's file, relative to the patch's file.
    #[serde(default, deserialize_with = "decode::text")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub base: String,
    /// For each difference, the bytes of the patch before it, its length, and the length of the
    /// extension that it replaces, by which readers of a damaged patch find the intact ones. Only
    /// where checksums of leaves tell which these are.
    #[serde(default, deserialize_with = "decode::list")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lengths: Vec<[u64; 3]>,
}

/// Returns whether data begin or end as a patch, even a damaged one.
pub fn is_patch(source: &dyn Source) -> Result<bool> {
    let mut bytes = [MaybeUninit::uninit(); START.len()];
    let Some(rest) = source.len().checked_sub(bytes.len()) else {
        return Ok(false);
    };
    match source.read_at(rest, &mut bytes) {
        // In a store, the end is needed anyway.
        Ok(end) if end.ends_with(&footer::MARK) => return Ok(false),
        Ok(end) if end.ends_with(&MARK) => return Ok(true),
        Err(error) if error.is_no_damage() => return Err(error),
        _ => {}
    }
    match source.read_at(0, &mut bytes) {
        Err(error) if error.is_no_damage() => Err(error),
        // The reader of the encoding reports or salvages other damage.
        start => Ok(start.is_ok_and(|start| *start == START)),
    }
}

/// The bytes after the tree, for an encoding of `nbytes` bytes; `sum` covers those before.
pub fn tail(
    nbytes: usize,
    base: &str,
    lengths: Vec<[u64; 3]>,
    sum: &mut crc32fast::Hasher,
) -> Result<Vec<u8>> {
    let record = Record {
        version: VERSION,
        nbytes: nbytes as u64,
        base: grow::to_string(base)?,
        lengths,
    };
    let record = encode_named(&record, &())?;
    let len = length("record of a patch", record.len())?;
    let mut out = Vec::new();
    Head::Bin(length("record of a patch", record.len() + FOOTER_BYTES)?).write(&mut out);
    grow::extend(&mut out, &record)?;
    sum.update(&out);
    grow::extend(&mut out, &sum.clone().finalize().to_le_bytes())?;
    grow::extend(&mut out, &len.to_le_bytes())?;
    grow::extend(&mut out, &MARK)?;
    Ok(out)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// The offset of its header.
    pub start: usize,
    pub body: Range<usize>,
}

/// The extensions of a code in a source of one value, in order.
pub fn extensions(
    source: &dyn Source,
    part: Range<usize>,
    code: i8,
    watch: &dyn Watch,
) -> Result<Vec<Extension>> {
    let mut extensions = Vec::new();
    let cursor = read_value(
        source,
        part,
        watch,
        |start, body, ext_code| match ext_code {
            _ if ext_code == code => grow::push(&mut extensions, Extension { start, body }),
            _ => Ok(()),
        },
    )?;
    cursor.finish()?;
    Ok(extensions)
}

/// The length of the value at the start of a source.
pub fn value_len(source: &dyn Source, watch: &dyn Watch) -> Result<usize> {
    let cursor = read_value(source, 0..source.len(), watch, |_, _, _| Ok(()))?;
    Ok(cursor.offset())
}

/// Reads the headers of the value at the start of a part, and passes its extensions to `each`.
fn read_value<'a>(
    source: &'a dyn Source,
    part: Range<usize>,
    watch: &dyn Watch,
    mut each: impl FnMut(usize, Range<usize>, i8) -> Result<()>,
) -> Result<Cursor<'a>> {
    let mut cursor = Cursor::within(source, part);
    let (mut left, mut steps) = (1_u64, Steps::new(watch));
    while left > 0 {
        steps.count()?;
        left -= 1;
        let start = cursor.offset();
        match cursor.head()? {
            Head::Array(len) => left += u64::from(len),
            Head::Map(pairs) => left += 2 * u64::from(pairs),
            Head::Str(len) | Head::Bin(len) => cursor.skip(len as usize),
            Head::Ext(code, len) => {
                let body = cursor.offset()..cursor.offset() + len as usize;
                cursor.skip(body.len());
                each(start, body, code)?;
            }
            _ => {}
        }
    }
    Ok(cursor)
}

/// The start of a difference, up to its blocks. Zeros stand for the checksum at the end.
pub fn difference(elements: Elements, head: &[u8], nbytes: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    grow::push(&mut out, elements.code())?;
    let len = u16::try_from(head.len()).map_err(|_| Error::TooLarge {
        kind: "head of an array",
        len: head.len(),
    })?;
    grow::extend(&mut out, &len.to_le_bytes())?;
    grow::extend(&mut out, head)?;
    grow::extend(&mut out, &(nbytes as u64).to_le_bytes())?;
    grow::extend(&mut out, &[0; 4])?;
    Ok(out)
}

pub fn write_block(out: &mut Vec<u8>, block: Block<'_>) -> Result<()> {
    let len = u32::try_from(block.bytes.len()).expect("a block is small");
    out.try_reserve(BLOCK_HEAD_BYTES + block.bytes.len())?;
    out.push(block.kind as u8);
    out.extend_from_slice(&block.crc.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(block.bytes);
    Ok(())
}

/// An array, or a chunk of one, that is a difference.
#[derive(Debug)]
pub struct Difference<'a> {
    /// Its offset in the patch.
    pub offset: usize,
    /// The range of its elements in the encoding.
    pub place: Range<usize>,
    pub blocks: Vec<Block<'a>>,
}

impl Difference<'_> {
    pub fn is_equal(&self) -> bool {
        self.blocks.iter().all(|block| block.kind == Kind::Equal)
    }
}

/// A patch whose checksum was compared, or the rest of a damaged one.
#[derive(Debug)]
pub struct Patch<'a> {
    pub differences: Vec<Difference<'a>>,
    /// Ranges of the encoding whose differences are damaged.
    pub lost: Vec<Range<usize>>,
    pub is_damaged: bool,
    pub skeleton: Skeleton<'a>,
}

impl<'a> Patch<'a> {
    /// The number of the difference at a place in the encoding.
    pub fn at(&self, place: &Range<usize>) -> Option<usize> {
        let differences = &self.differences;
        let number = differences.partition_point(|difference| difference.place.start < place.start);
        let difference = differences
            .get(number)
            .filter(|difference| difference.place == *place);
        difference.map(|_| number)
    }

    pub fn read(bytes: &'a [u8], watch: &dyn Watch) -> Result<Self> {
        let (record, tree) = record_of(bytes, false)?;
        let extensions = extensions(&RawBytes::from(bytes), tree.clone(), EXT_DELTA, watch)?;
        let located = extensions.into_iter().map(|extension| (extension, None));
        let patch = Self::of(bytes, (grow::collect(located)?, tree.end), false)?;
        if patch.skeleton.len as u64 != record.nbytes {
            let reason = "its parts do not have the length of the encoding in its record";
            return damaged(reason);
        }
        Ok(patch)
    }

    /// Reads a patch that may be damaged: by the lengths in its record, or by its headers up to the
    /// damage.
    ///
    /// Checksums of the encoding tell which of its leaves are intact.
    pub fn salvage(bytes: &'a [u8], watch: &dyn Watch) -> Result<Self> {
        match Self::read(bytes, watch) {
            Err(error) if !error.is_no_damage() => {}
            intact => return intact,
        }
        let by_record = record_of(bytes, true).ok();
        let by_record = by_record.and_then(|(record, tree)| record.locate(bytes, tree));
        let located = match by_record {
            Some(located) => located,
            None => locate_by_headers(bytes, watch)?,
        };
        Self::of(bytes, located, true)
    }

    fn of(bytes: &'a [u8], (located, end): Located, is_damaged: bool) -> Result<Self> {
        let mut patch = Self {
            differences: Vec::new(),
            lost: Vec::new(),
            is_damaged,
            skeleton: Skeleton {
                bytes,
                pieces: Vec::new(),
                len: 0,
            },
        };
        let mut at = START.len().min(end);
        for (Extension { start, body }, len) in located {
            let skeleton = &mut patch.skeleton;
            skeleton.push(at..start)?;
            at = body.end;
            let (pieces, place) = (skeleton.pieces.len(), skeleton.len);
            let done = read_difference(bytes, start, body, skeleton);
            match (done, len) {
                (Ok(found), len) if len.is_none_or(|len| found.place.end == place + len) => {
                    grow::push(&mut patch.differences, found)?;
                }
                (Err(error), _) if !is_damaged || error.is_no_damage() => return Err(error),
                (_, Some(len)) => {
                    skeleton.pieces.truncate(pieces);
                    skeleton.len = place;
                    let Some(gap) = skeleton.gap(len) else {
                        return damaged("its record has lengths of other data");
                    };
                    grow::push(&mut patch.lost, gap)?;
                }
                (_, None) => return Ok(patch),
            }
        }
        patch.skeleton.push(at..end)?;
        Ok(patch)
    }
}

/// Differences of a patch with the lengths of the extensions that they replace, as far as known,
/// and the end of its tree.
type Located = (Vec<(Extension, Option<usize>)>, usize);

impl Record {
    /// Locates the differences by their lengths; returns `None` if these do not fit the tree.
    fn locate(&self, bytes: &[u8], tree: Range<usize>) -> Option<Located> {
        let (mut located, mut at) = (Vec::new(), tree.start);
        let source = RawBytes::from(bytes);
        for lengths in &self.lengths {
            let [before, len, replaced] = lengths.map(|len| usize::try_from(len).ok());
            let start = at.checked_add(before?)?;
            at = start.checked_add(len?).filter(|end| *end <= tree.end)?;
            let mut cursor = Cursor::within(&source, start..at);
            let body = match cursor.head() {
                Ok(Head::Ext(EXT_DELTA, _)) => cursor.offset()..at,
                _ => at..at, // which is no difference
            };
            grow::push(&mut located, (Extension { start, body }, replaced)).ok()?;
        }
        let without = located.is_empty() && tree.len() as u64 != self.nbytes;
        (!without).then_some((located, tree.end))
    }
}

/// Locates the differences of a patch without a record, up to the first damage.
fn locate_by_headers(bytes: &[u8], watch: &dyn Watch) -> Result<Located> {
    let mut located = Vec::new();
    let source = RawBytes::from(bytes);
    let part = START.len().min(bytes.len())..bytes.len();
    let done = read_value(&source, part, watch, |start, body, code| match code {
        EXT_DELTA => grow::push(&mut located, (Extension { start, body }, None)),
        _ => Ok(()),
    });
    match done {
        Ok(cursor) => Ok((located, cursor.offset())),
        Err(error) if error.is_no_damage() => Err(error),
        Err(_) => Ok((located, bytes.len())),
    }
}

/// The record of a patch, and the range of its tree; of a damaged patch perhaps a wrong one.
pub fn record_of(bytes: &[u8], is_damaged: bool) -> Result<(Record, Range<usize>)> {
    let Some((before, footer)) = bytes.split_last_chunk::<FOOTER_BYTES>() else {
        return damaged("it is truncated");
    };
    if !is_damaged && !before.starts_with(&START) {
        let reason = "the data are not a patch: make it with base=, or copy the encoding of a whole \
                      tree into the buffer";
        return Err(Error::Structure(reason.into()));
    }
    let word = |at: usize| u32::from_le_bytes(*footer[at..].first_chunk().expect("4 bytes"));
    if footer[8..] != MARK {
        return damaged("it does not end with its mark");
    }
    let checksum = crc32fast::hash(before);
    if !is_damaged && checksum != word(0) {
        return damaged(&mismatch(word(0), checksum));
    }
    let len = word(4) as usize;
    let mut header = Vec::new();
    Head::Bin(length(
        "record of a patch",
        len.saturating_add(FOOTER_BYTES),
    )?)
    .write(&mut header);
    let start = before.len().checked_sub(len);
    let end = start.and_then(|start| start.checked_sub(header.len()));
    let (Some(start), Some(end)) = (start, end.filter(|end| *end > START.len())) else {
        return damaged("its record is too long");
    };
    if !is_damaged && before[end..start] != header {
        return damaged("its record does not end at its footer");
    }
    let record: Record = decode_record(&before[start..])?;
    Ok((record, START.len()..end))
}

fn decode_record(bytes: &[u8]) -> Result<Record> {
    let record: Record = rmp_serde::from_slice(bytes).map_err(|error| {
        decode::explain_sealed(&error, |error| {
            Error::Structure(format!("the record of the patch cannot be read: {error}"))
        })
    })?;
    check_version("the patch", record.version, VERSION)?;
    Ok(record)
}

fn read_difference<'a>(
    bytes: &'a [u8],
    offset: usize,
    body: Range<usize>,
    skeleton: &mut Skeleton<'a>,
) -> Result<Difference<'a>> {
    let malformed = |reason: &str| Error::malformed(offset, format!("a difference {reason}"));
    let mut at = body.start;
    let mut next = |len: usize| {
        let part = bytes[at..body.end].get(..len);
        at += len;
        part.ok_or_else(|| malformed("ends early"))
    };
    let word = |at: &[u8]| u32::from_le_bytes(*at.first_chunk().expect("4 bytes"));
    let start = next(3)?;
    let elements = Elements::read(start[0]).ok_or_else(|| malformed("has unknown elements"))?;
    let head = next(u16::from_le_bytes([start[1], start[2]]).into())?;
    let head_start = body.start + start.len();
    skeleton.push(head_start..head_start + head.len())?;
    let nbytes = u64::from_le_bytes(*next(8)?.first_chunk().expect("8 bytes"));
    let nbytes = u32::try_from(nbytes).map_err(|_| malformed("is too large"))? as usize;
    if nbytes == 0 {
        return Err(malformed("has no elements"));
    }
    next(4)?; // the CRC-32 of the elements: blocks have their own
    let place = skeleton
        .gap(nbytes)
        .ok_or_else(|| malformed("is too large"))?;
    let mut blocks = Vec::new();
    for start in (0..nbytes).step_by(BLOCK_BYTES) {
        let head = next(BLOCK_HEAD_BYTES)?;
        let kind =
            Kind::read(head[0]).ok_or_else(|| malformed("has a block of an unknown kind"))?;
        let (crc, bytes) = (word(&head[1..]), next(word(&head[5..]) as usize)?);
        let is_expected = match kind {
            Kind::Equal => bytes.is_empty(),
            Kind::Stored => bytes.len() == BLOCK_BYTES.min(nbytes - start),
            Kind::Ordered if !elements.has_exponents() => {
                return Err(malformed(
                    "has an ordered block of other elements than floats",
                ));
            }
            Kind::Sparse | Kind::Dense | Kind::Ordered => true,
        };
        if !is_expected {
            return Err(malformed("has a block of the wrong length"));
        }
        let block = Block {
            elements,
            kind,
            crc,
            bytes,
        };
        grow::push(&mut blocks, block)?;
    }
    if at < body.end {
        return Err(malformed("has bytes after its blocks"));
    }
    Ok(Difference {
        offset,
        place,
        blocks,
    })
}

/// The encoding without the elements of differences, and without lost ones.
#[derive(Debug)]
pub struct Skeleton<'a> {
    bytes: &'a [u8],
    /// Ranges of the encoding in order, and their offsets in the patch.
    pieces: Vec<(Range<usize>, usize)>,
    len: usize,
}

impl<'a> Skeleton<'a> {
    fn push(&mut self, from: Range<usize>) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let place = self.len..self.len + from.len();
        self.len = place.end;
        grow::push(&mut self.pieces, (place, from.start))
    }

    /// Appends a gap, and returns its place.
    fn gap(&mut self, len: usize) -> Option<Range<usize>> {
        let end = self.len.checked_add(len)?;
        // Sums of offsets must not overflow, as in memory.
        isize::try_from(end).ok()?;
        Some(std::mem::replace(&mut self.len, end)..end)
    }

    /// The pieces in order: their places, and their bytes.
    pub fn pieces(&self) -> impl Iterator<Item = (Range<usize>, &'a [u8])> {
        let bytes = self.bytes;
        let pieces = self.pieces.iter();
        pieces.map(move |(place, from)| (place.clone(), &bytes[*from..from + place.len()]))
    }

    /// The number of the piece at an offset or after it.
    fn piece_at(&self, offset: usize) -> usize {
        self.pieces
            .partition_point(|(place, _)| place.end <= offset)
    }
}

impl Source for Skeleton<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let run = self.run(offset);
        if run < target.len() {
            return Err(missing(offset + run));
        }
        let mut filling = Filling::new(target);
        let mut at = offset;
        for (place, from) in &self.pieces[self.piece_at(offset)..] {
            if filling.left() == 0 {
                break;
            }
            let count = filling.left().min(place.end - at);
            let start = from + (at - place.start);
            filling.write(&self.bytes[start..start + count]);
            at += count;
        }
        Ok(filling.finish())
    }

    fn run(&self, offset: usize) -> usize {
        let mut end = offset;
        for (place, _) in &self.pieces[self.piece_at(offset)..] {
            if place.start > end {
                break;
            }
            end = place.end;
        }
        end - offset
    }
}

fn damaged<T>(what: &str) -> Result<T> {
    Err(Error::Structure(format!("the patch is damaged: {what}")))
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn no_bytes_are_read_inside_a_gap() {
        let mut skeleton = Skeleton {
            bytes: b"ab",
            pieces: Vec::new(),
            len: 0,
        };
        skeleton.push(0..1).unwrap();
        skeleton.gap(9).unwrap();
        skeleton.push(1..2).unwrap();
        for offset in 0..=skeleton.len() {
            assert_eq!(skeleton.read_at(offset, &mut []).unwrap(), b"");
        }
        assert!(skeleton.read_at(5, &mut [MaybeUninit::uninit()]).is_err());
    }
}
