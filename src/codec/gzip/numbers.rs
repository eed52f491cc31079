//! Blocks of numbers: the bytes of elements in planes, some of them entropy-coded.
//!
//! docs/format.md, "Numbers", has the layout, and docs/design.md, "Compression", the reasons.

use std::mem;

use super::block::{self, Encoded, Method, has_repeats, samples};
use super::decoders::Decoders;
use super::format::{BLOCK_BYTES, NUMBERS_HEADER};
use super::literal::{self, Code, Tables};
use super::planes::{self, MAX_WIDTH, TILE};
use super::streams;
use crate::base::pages::Pages;
use crate::base::source::{Source, read_to};
use crate::base::watch::Watch;
use crate::{Error, Result, base::grow};

const BLOCK_HEADER_BYTES: usize = 16;

const END: [u8; 2] = [3, 0];

#[derive(Default)]
pub struct Coder {
    coded: Vec<u8>,
    streams: streams::Encoder,
}

impl Coder {
    /// Writes a block over the start of `out`. Its elements begin at `phase`, or multiples of their
    /// width before.
    pub fn encode(
        &mut self,
        data: &[u8],
        phase: usize,
        checksum: u32,
        gzip: &mut block::Coder,
        out: &mut Vec<u8>,
    ) -> Result<Encoded> {
        let (width, size) = outlook(data.get(phase..).unwrap_or_default())?;
        let mut whole = None;
        if has_repeats(data) {
            let encoded = gzip.encode(data, Method::Adaptive, &mut self.coded)?;
            whole = (encoded.len <= size).then_some(Encoded::other(encoded.len));
        }
        let width = if whole.is_some() { 1 } else { width };
        let begin = phase % width;
        let count = data.len().saturating_sub(begin) / width;
        let begin = if count == 0 { 0 } else { begin };
        let (elements, after) = data[begin..].split_at(count * width);
        let around = BLOCK_HEADER_BYTES + begin + after.len();
        if out.len() < around + elements.len() {
            grow::resize(out, around + elements.len(), 0)?;
        }
        out[BLOCK_HEADER_BYTES..][..begin].copy_from_slice(&data[..begin]);
        out[BLOCK_HEADER_BYTES + begin..around].copy_from_slice(after);
        planes::split(elements, width, &mut out[around..][..elements.len()]);
        let (mut coded, mut literal) = (0_u8, 0_u8);
        let mut end = around;
        for number in 0..width {
            let from = around + number * count;
            let plane = &out[from..from + count];
            let encoded = match whole.take() {
                None => encode_plane(plane, gzip, &mut self.streams, &mut self.coded)?,
                encoded => encoded,
            };
            if let Some(Encoded { len, literal: kind }) = encoded
                && len + 4 < count
            {
                coded |= 1 << number;
                literal |= u8::from(kind) << number;
                out[end..end + 4].copy_from_slice(&word(len));
                out[end + 4..][..len].copy_from_slice(&self.coded[..len]);
                end += 4 + len;
            } else {
                if end != from {
                    out.copy_within(from..from + count, end);
                }
                end += count;
            }
        }
        #[allow(clippy::cast_possible_truncation)]
        let kinds = [width as u8, begin as u8, coded, literal];
        out[..4].copy_from_slice(&kinds);
        out[4..8].copy_from_slice(&word(data.len()));
        out[8..12].copy_from_slice(&word(end - BLOCK_HEADER_BYTES));
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        Ok(Encoded::other(end))
    }
}

fn word(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("a block is small").to_le_bytes()
}

/// Returns `None` if coding the plane does not pay.
fn encode_plane(
    plane: &[u8],
    gzip: &mut block::Coder,
    streams: &mut streams::Encoder,
    out: &mut Vec<u8>,
) -> Result<Option<Encoded>> {
    let mut tables = Tables::default();
    samples(plane, 1 << 10).for_each(|sample| tables.count(sample));
    let counts = tables.sum();
    if !pays(entropy(&counts), counts.iter().sum()) {
        return Ok(None);
    }
    let code = Code::new(&counts_of(plane));
    // A plane of mostly one byte is shorter as runs.
    if code.size() < plane.len() / 6 {
        let encoded = gzip.encode(plane, Method::Adaptive, out)?;
        return Ok(Some(Encoded::other(encoded.len)));
    }
    let len = streams.encode(plane, &code, out)?;
    Ok(Some(Encoded { len, literal: true }))
}

/// Byte counts, none of them zero: estimated if the sample has nearly all bytes, otherwise exact.
fn counts_of(plane: &[u8]) -> [u32; 256] {
    /// From this length on an eighth is representative.
    const MANY: usize = 1 << 14;
    const FEW: usize = 24;
    if plane.len() >= MANY {
        let mut counts = literal::count_some::<8>(plane);
        let least = plane.iter().fold(u8::MAX, |least, &byte| least.min(byte));
        let most = plane.iter().fold(0, |most, &byte| most.max(byte));
        let range = &mut counts[least.into()..=most.into()];
        if range.iter().filter(|&&count| count == 0).count() <= FEW {
            for count in range {
                *count = (*count).max(1);
            }
            return counts;
        }
    }
    literal::count(plane)
}

fn pays(entropy: u64, bytes: u32) -> bool {
    entropy < u64::from(bytes) * (8 * ONE - ONE / 2)
}

/// Fixed point: the output must not depend on float rounding.
const ONE: u64 = 1 << 16;

fn entropy(counts: &[u32; 256]) -> u64 {
    // A logarithm that is linear between powers of two, times its argument.
    let log = |count: u32| {
        let whole = u64::from(count.max(1).ilog2());
        let part = (u64::from(count) << 16 >> whole).saturating_sub(ONE);
        u64::from(count) * (whole * ONE + part)
    };
    let all = log(counts.iter().sum());
    let seen = counts.iter().filter(|&&count| count > 0).count() as u64;
    // Few bytes underestimate the entropy, by this much for each distinct byte (Miller and Madow).
    all.saturating_sub(counts.iter().map(|&count| log(count)).sum()) + seen * ONE * 3 / 4
}

/// The element width of the smallest samples, and the estimated bytes of all data.
fn outlook(data: &[u8]) -> Result<(usize, usize)> {
    const SAMPLE: usize = 128;
    let (elements, _) = data.as_chunks::<MAX_WIDTH>();
    let mut sample = Vec::new();
    for part in samples(elements, SAMPLE) {
        grow::extend(&mut sample, part.as_flattened())?;
    }
    if sample.is_empty() {
        return Ok((1, data.len()));
    }
    let mut apart = grow::filled(0, sample.len())?;
    let sizes = [1, 2, 4, 8].map(|width| {
        planes::split(&sample, width, &mut apart);
        let planes = apart.chunks(sample.len() / width).map(|plane| {
            let counts = literal::count(plane);
            let (entropy, bytes) = (entropy(&counts), plane.len());
            let stored = bytes as u64 * 8 * ONE;
            if pays(entropy, u32::try_from(bytes).expect("a sample")) {
                entropy
            } else {
                stored
            }
        });
        (planes.sum::<u64>(), width)
    });
    // Prefer the narrower width unless the wider is clearly smaller: fewer streams are faster.
    let narrower = |best: (u64, usize), other: (u64, usize)| {
        if other.0 < best.0 - best.0 / 64 {
            other
        } else {
            best
        }
    };
    let (bits, width) = sizes.into_iter().reduce(narrower).expect("four sizes");
    let bytes =
        u128::from(bits) * data.len() as u128 / (sample.len() as u128 * 8 * u128::from(ONE));
    Ok((width, usize::try_from(bytes).unwrap_or(usize::MAX)))
}

pub struct NumberBlock<'a> {
    pub checksum: u32,
    width: usize,
    count: usize,
    before: &'a [u8],
    after: &'a [u8],
    planes: [Plane<'a>; MAX_WIDTH],
}

#[derive(Clone, Copy)]
enum Plane<'a> {
    Stored(&'a [u8]),
    Literal(&'a [u8]),
    Deflate(&'a [u8]),
}

/// The lengths of the content, and of the bytes after the header.
fn lengths(header: &[u8]) -> Option<(usize, usize)> {
    let word = |at: usize| Some(u32::from_le_bytes(*header.get(at..)?.first_chunk()?) as usize);
    let (len, stored) = (word(4)?, word(8)?);
    ((1..=BLOCK_BYTES).contains(&len) && stored <= len).then_some((len, stored))
}

/// Parses the first block of `bytes`, with `len` bytes of content; returns the rest, too.
pub fn split_first(bytes: &[u8], len: usize) -> Option<(NumberBlock<'_>, &[u8])> {
    let (_, stored) = lengths(bytes)?;
    let (block, rest) = bytes.split_at_checked(BLOCK_HEADER_BYTES + stored)?;
    Some((NumberBlock::read(block, len)?, rest))
}

impl<'a> NumberBlock<'a> {
    /// Parses a block of `len` bytes of content; `None` if malformed.
    pub fn read(block: &'a [u8], len: usize) -> Option<Self> {
        let (header, mut rest) = block.split_first_chunk::<BLOCK_HEADER_BYTES>()?;
        let [width, phase, coded, literal] = *header.first_chunk()?;
        let (width, phase) = (usize::from(width), usize::from(phase));
        let is_valid = matches!(width, 1 | 2 | 4 | 8) && phase < width;
        let sound = is_valid && literal & !coded == 0 && u32::from(coded) >> width == 0;
        if !sound || lengths(header)? != (len, rest.len()) {
            return None;
        }
        let count = len.checked_sub(phase)? / width;
        let mut next = |len: usize| {
            let (part, left) = rest.split_at_checked(len)?;
            rest = left;
            Some(part)
        };
        let before = next(phase)?;
        let after = next(len - phase - count * width)?;
        let mut planes = [Plane::Stored(&[]); MAX_WIDTH];
        for (number, plane) in planes[..width].iter_mut().enumerate() {
            *plane = if coded >> number & 1 == 0 {
                Plane::Stored(next(count)?)
            } else {
                let len = u32::from_le_bytes(*next(4)?.first_chunk()?);
                let stream = next(len as usize)?;
                match literal >> number & 1 {
                    1 => Plane::Literal(stream),
                    _ => Plane::Deflate(stream),
                }
            };
        }
        let [.., a, b, c, d] = *header;
        rest.is_empty().then_some(Self {
            checksum: u32::from_le_bytes([a, b, c, d]),
            width,
            count,
            before,
            after,
            planes,
        })
    }
}

const JOINED_BYTES: usize = 64 * TILE;

/// Passes each piece of content to `take`. Returns false if the block is damaged.
pub fn decode(
    block: &NumberBlock<'_>,
    decoders: &mut Decoders,
    mut take: impl FnMut(&[u8]),
) -> Result<bool> {
    let count = block.count;
    let mut scratch = mem::take(&mut decoders.scratch);
    if scratch.len() < block.width * count {
        grow::resize(&mut scratch, block.width * count, 0)?;
    }
    for (number, plane) in block.planes.iter().enumerate() {
        let (Plane::Literal(coded) | Plane::Deflate(coded)) = *plane else {
            continue;
        };
        let room = &mut scratch[number * count..][..count];
        let whole = if let Plane::Literal(_) = plane {
            decoders.streams()?.decode(coded, room).is_some()
        } else {
            let inflated = decoders.inflate(coded, count)?;
            inflated.is_some_and(|plane| {
                room.copy_from_slice(plane);
                true
            })
        };
        if !whole {
            return Ok(false);
        }
    }
    let mut planes: [&[u8]; MAX_WIDTH] = std::array::from_fn(|number| match block.planes[number] {
        Plane::Stored(plane) => plane,
        _ => &scratch[number * count..][..count],
    });
    take(block.before);
    let (mut joined, mut left) = ([0; JOINED_BYTES], count);
    while left > 0 {
        let now = left.min(JOINED_BYTES / block.width);
        let joined = &mut joined[..now * block.width];
        planes::join(&planes, block.width, joined);
        take(joined);
        planes = planes.map(|plane| plane.get(now..).unwrap_or_default());
        left -= now;
    }
    take(block.after);
    decoders.scratch = scratch;
    Ok(true)
}

/// Decodes a stream, with or without an index, up to its first damage. Returns the offset of its
/// end.
pub fn inflate(
    stream: &dyn Source,
    out: &mut Pages,
    max_size: Option<usize>,
    watch: &dyn Watch,
) -> Result<usize> {
    let mut decoders = Decoders::default();
    let mut whole = crc32fast::Hasher::new();
    let (mut at, mut block) = (NUMBERS_HEADER.len(), Vec::new());
    let mut next = |len: usize, into: &mut Vec<u8>| {
        if len > stream.len() - at {
            return Err(Error::GzipTruncated);
        }
        read_to(stream, at..at + len, into)?;
        at += len;
        Ok(at)
    };
    loop {
        block.clear();
        next(END.len(), &mut block)?;
        if block == END {
            break;
        }
        next(BLOCK_HEADER_BYTES - END.len(), &mut block)?;
        let begin = out.len();
        let damaged = || Error::Gzip(format!("the compressed block of byte {begin} is damaged"));
        let (len, stored) = lengths(&block).ok_or_else(damaged)?;
        if let Some(max_size) = max_size
            && len > max_size - begin.min(max_size)
        {
            return Err(Error::OutputLimit { max_size });
        }
        let done = next(stored, &mut block)?;
        let parts = NumberBlock::read(&block, len).ok_or_else(damaged)?;
        let room = &mut out.room(len)?[..len];
        let (mut filled, mut checksum) = (0, crc32fast::Hasher::new());
        let take = |piece: &[u8]| {
            room[filled..][..piece.len()].copy_from_slice(piece);
            checksum.update(piece);
            filled += piece.len();
        };
        if !decode(&parts, &mut decoders, take)? || filled != len {
            return Err(damaged());
        }
        if parts.checksum != checksum.clone().finalize() {
            return Err(damaged());
        }
        out.add(len);
        whole.combine(&checksum);
        watch.done(done.min(stream.len() - 1))?;
    }
    block.clear();
    let end = next(8, &mut block)?;
    #[allow(clippy::cast_possible_truncation)] // modulo 2^32, as in gzip
    let expected = [
        whole.finalize().to_le_bytes(),
        (out.len() as u32).to_le_bytes(),
    ];
    if block != expected.as_flattened() {
        return Err(Error::Gzip(
            "the checksum of the data does not match".into(),
        ));
    }
    Ok(end)
}
