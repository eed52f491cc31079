//! Writes an array's headers and places its payload.
//!
//! An array has one of two forms:
//!
//! * plain: `key? ext(1, [shape, dtype, bin])`
//! * chunked: `key? {marker: true, shape: {'0': …}, chunks: {'0': ext, …}}`, for arrays above
//!   flax's `MAX_CHUNK_SIZE`.
//!
//! Wider headers align the payload. Where the plain form cannot, a single chunk can: it has more
//! headers, and leading unit dimensions, which readers reshape away.

use std::borrow::Cow;
use std::ops::Range;

use super::align::widen;
use super::headers::Array;
use super::recent::{Like, RecentHeaders, RecentPlace};
use crate::base::raw::Buffer;
use crate::format::layout::{LayoutBuilder, Payload};
use crate::format::wire::{CHUNKED_MARKER, EXT_NDARRAY, Head, length};
use crate::{Error, Result, base::parallel};

/// Smaller arrays are aligned only by [`Alignment::of_all`]: headers would outweigh the gain.
pub const ALIGN_MIN_BYTES: usize = 1024;

/// The most header bytes of an array, without its key.
pub const HEADERS_MAX_BYTES: usize = 4096;

/// The most leading unit dimensions of a lone chunk; with wider headers, every residue modulo 64
/// needs fewer.
const MAX_UNIT_DIMS: usize = 12;

const EXT_HEADROOM: usize = 4096;

const ELEMENT_MAX_ALIGN: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    bytes: usize,
    of_all: bool,
}

impl Alignment {
    pub fn new(align: i64) -> Result<Self> {
        match usize::try_from(align) {
            Ok(bytes) if bytes.is_power_of_two() && bytes <= 64 => Ok(Self {
                bytes,
                of_all: false,
            }),
            _ => Err(Error::Option(format!(
                "align must be a power of two from 1 to 64, got {align}"
            ))),
        }
    }

    /// Also aligns small arrays: fully where wider headers suffice, otherwise to their elements.
    #[must_use]
    pub fn of_all(self) -> Self {
        Self {
            of_all: true,
            ..self
        }
    }

    fn leaves(self, array: &Array<'_>, nbytes: usize) -> bool {
        let is_meant =
            nbytes >= ALIGN_MIN_BYTES || self.of_all && nbytes > 0 && array.code == EXT_NDARRAY;
        self.bytes == 1 || !is_meant
    }

    fn least(self, array: &Array<'_>, nbytes: usize) -> usize {
        if nbytes >= ALIGN_MIN_BYTES {
            return self.bytes;
        }
        let elements = 1 << array.itemsize.trailing_zeros();
        self.bytes.min(elements).min(ELEMENT_MAX_ALIGN)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChunkLimit(f64);

impl ChunkLimit {
    /// flax's default, 1 GiB.
    pub const DEFAULT: Self = Self(1_073_741_824.0);

    /// A float, since flax's `MAX_CHUNK_SIZE` may be one.
    pub fn new(bytes: f64) -> Self {
        Self(bytes)
    }

    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn elements(self, array: &Array<'_>, nbytes: usize) -> Option<usize> {
        const MOST: usize = u32::MAX as usize - EXT_HEADROOM;
        let above = nbytes as f64 > self.0 || nbytes > MOST;
        // Zero chunks could not be joined again.
        if array.code != EXT_NDARRAY || !above || nbytes == 0 {
            return None;
        }
        let limit = if self.0 > MOST as f64 || self.0.is_nan() {
            Self::DEFAULT.0
        } else {
            self.0
        };
        // flax: max(1, int(MAX_CHUNK_SIZE / itemsize)), a division of floats.
        Some(((limit / array.itemsize as f64) as usize).max(1))
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Framing {
    pub align: Alignment,
    pub chunks: ChunkLimit,
    /// Whether a lone chunk may align. flax joins chunks only below maps.
    pub may_box: bool,
}

/// As flax writes.
impl Default for Framing {
    fn default() -> Self {
        Self {
            align: Alignment {
                bytes: 1,
                of_all: false,
            },
            chunks: ChunkLimit::DEFAULT,
            may_box: true,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct KeyPlace {
    pub start: usize,
    pub head: usize,
}

/// Appends the headers of `array` and calls `payload` for the range of its bytes (once per chunk).
/// Returns the offset of the value, after its key.
///
/// The header of `key`, right before the array, may be widened, too. `recent` must belong to this
/// layout.
#[inline]
pub fn frame<P: Payload>(
    layout: &mut LayoutBuilder<P>,
    recent: &mut RecentHeaders,
    key: Option<KeyPlace>,
    array: &Array<'_>,
    framing: &Framing,
    mut payload: impl FnMut(&mut LayoutBuilder<P>, Range<usize>) -> Result<()>,
) -> Result<usize> {
    let nbytes = array.nbytes();
    layout.headers().try_reserve(HEADERS_MAX_BYTES)?;
    let mut start = layout.len();
    recent.begin();
    if let Some(elements) = framing.chunks.elements(array, nbytes) {
        frame_chunks(layout, array, elements, payload)?;
        return Ok(start);
    }
    if framing.align.leaves(array, nbytes) {
        recent.write(layout.headers(), array)?;
    } else {
        let key = match key {
            Some(key) => Some((layout.take_headers(key.start)?, key.head)),
            None => None,
        };
        let text = key.as_ref().map(|(bytes, head)| &bytes[*head..]);
        let place = RecentPlace::of(layout.len(), text.map(<[u8]>::len), framing.may_box);
        if let Some((width, headers)) = recent.aligned(array, place) {
            write_key(layout.headers(), text, width)?;
            start = layout.len();
            layout.headers().extend_from_within(headers);
        } else {
            let text = text
                .map(std::str::from_utf8)
                .transpose()
                .map_err(|_| Error::Option("a key that is not UTF-8".into()))?;
            let headers = aligned_headers(layout.len(), text, array, framing)?;
            let key_len = headers.size(0..usize::from(text.is_some()));
            start = layout.len() + key_len;
            headers.write(layout.headers());
            let width = key_len - text.map_or(0, str::len);
            let end = layout.headers().len();
            let len = layout.len() - start;
            recent.add_aligned(array, place, width, end - len..end)?;
        }
    }
    payload(layout, 0..nbytes)?;
    Ok(start)
}

/// Appends the headers of an array like an earlier one, if known for this offset.
#[inline]
pub fn frame_like<P: Payload>(
    layout: &mut LayoutBuilder<P>,
    recent: &RecentHeaders,
    key: Option<KeyPlace>,
    like: &Like,
    may_box: bool,
) -> Result<bool> {
    let offset = key.map_or(layout.len(), |key| key.start);
    let key_len = key.map(|key| layout.len() - key.start - key.head);
    let Some((width, headers)) = recent.like(like, offset, key_len, may_box) else {
        return Ok(false);
    };
    let out = layout.headers();
    out.try_reserve(Head::MAX_BYTES + RecentPlace::SHORT + headers.len())?;
    if let (Some(key), Some(len)) = (key, key_len)
        && key.head != width
    {
        let mut text = [0; RecentPlace::SHORT];
        let start = out.len() - len;
        text[..len].copy_from_slice(&out[start..]);
        out.truncate(start - key.head);
        write_key(out, Some(&text[..len]), width)?;
    }
    out.extend_from_within(headers);
    Ok(true)
}

fn write_key(out: &mut Buffer, key: Option<&[u8]>, width: usize) -> Result<()> {
    if let Some(key) = key {
        Head::Str(length("string", key.len())?).write_wide(width, out);
        out.extend_from_slice(key);
    }
    Ok(())
}

fn aligned_headers<'a>(
    offset: usize,
    key: Option<&'a str>,
    array: &Array<'a>,
    framing: &Framing,
) -> Result<Headers<'a>> {
    let mut plain = Headers::new(key)?;
    plain.ext(array, array.shape, 0)?;
    let nbytes = array.nbytes();
    let least = framing.align.least(array, nbytes);
    if plain.align(offset, nbytes, framing.align.bytes)? || plain.align(offset, nbytes, least)? {
        return Ok(plain);
    }
    if framing.may_box {
        for unit_dims in 0..=MAX_UNIT_DIMS {
            let mut boxed = Headers::new(key)?;
            boxed.chunks(array.shape, 1)?;
            boxed.string("0")?;
            boxed.ext(array, &[array.shape.iter().product()], unit_dims)?;
            if boxed.align(offset, nbytes, least)? {
                return Ok(boxed);
            }
        }
    }
    // Lists rule out the chunked form; readers then copy the array.
    Ok(plain)
}

fn frame_chunks<P: Payload>(
    layout: &mut LayoutBuilder<P>,
    array: &Array<'_>,
    elements: usize,
    mut payload: impl FnMut(&mut LayoutBuilder<P>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let total: usize = array.shape.iter().product();
    let mut before = Headers::new(None)?;
    before.chunks(array.shape, total.div_ceil(elements))?;
    before.write(layout.headers());
    for (index, range) in parallel::blocks(0..total, elements).enumerate() {
        let chunk = Array {
            shape: &[range.len()],
            ..*array
        };
        let key = index.to_string();
        let mut headers = Headers::new(Some(&key))?;
        headers.ext(&chunk, chunk.shape, 0)?;
        layout.headers().try_reserve(HEADERS_MAX_BYTES)?;
        headers.write(layout.headers());
        payload(
            layout,
            range.start * array.itemsize..range.end * array.itemsize,
        )?;
    }
    Ok(())
}

struct Headers<'a> {
    heads: Vec<Head>,
    tails: Vec<Cow<'a, [u8]>>,
    ext: usize,
    /// Chosen widths; while empty, the smallest.
    widths: Vec<usize>,
}

impl<'a> Headers<'a> {
    fn new(key: Option<&'a str>) -> Result<Self> {
        const USUAL: usize = 12;
        let mut headers = Self {
            heads: Vec::with_capacity(USUAL),
            tails: Vec::with_capacity(USUAL),
            ext: 0,
            widths: Vec::new(),
        };
        if let Some(key) = key {
            headers.string(key)?;
        }
        Ok(headers)
    }

    fn head(&mut self, head: Head) {
        self.heads.push(head);
        self.tails.push((&[][..]).into());
    }

    fn string(&mut self, text: impl Into<Cow<'a, str>>) -> Result<()> {
        let bytes: Cow<'a, [u8]> = match text.into() {
            Cow::Borrowed(text) => text.as_bytes().into(),
            Cow::Owned(text) => text.into_bytes().into(),
        };
        self.heads.push(Head::Str(length("string", bytes.len())?));
        self.tails.push(bytes);
        Ok(())
    }

    /// The headers of the chunked form, up to the map of `count` chunks.
    fn chunks(&mut self, shape: &[usize], count: usize) -> Result<()> {
        self.head(Head::Map(3));
        self.string(CHUNKED_MARKER)?;
        self.head(Head::Bool(true));
        self.string("shape")?;
        self.head(Head::Map(length("map", shape.len())?));
        for (index, &dim) in shape.iter().enumerate() {
            self.string(index.to_string())?;
            self.head(Head::Uint(dim as u64));
        }
        self.string("chunks")?;
        self.head(Head::Map(length("map", count)?));
        Ok(())
    }

    fn ext(&mut self, array: &Array<'a>, shape: &[usize], unit_dims: usize) -> Result<()> {
        self.ext = self.heads.len();
        self.head(Head::Ext(array.code, 0));
        self.head(Head::Array(3));
        self.head(Head::Array(length("shape", unit_dims + shape.len())?));
        for _ in 0..unit_dims {
            self.head(Head::Uint(1));
        }
        for &dim in shape {
            self.head(Head::Uint(dim as u64));
        }
        self.string(array.dtype)?;
        let nbytes = length("array", array.nbytes())?;
        self.head(Head::Bin(nbytes));
        self.set_ext_len(array.nbytes())
    }

    fn width(&self, index: usize) -> usize {
        self.widths
            .get(index)
            .copied()
            .unwrap_or_else(|| self.heads[index].width())
    }

    fn size(&self, range: Range<usize>) -> usize {
        range.map(|i| self.width(i) + self.tails[i].len()).sum()
    }

    fn set_ext_len(&mut self, nbytes: usize) -> Result<()> {
        let body = self.size(self.ext + 1..self.heads.len()) + nbytes;
        if let Head::Ext(code, _) = self.heads[self.ext] {
            self.heads[self.ext] = Head::Ext(code, length("array", body)?);
        }
        Ok(())
    }

    /// Widens the headers to align the payload, if possible.
    ///
    /// Wider headers can widen the extension's header, so the search then repeats with the wider
    /// forms.
    fn align(&mut self, offset: usize, nbytes: usize, align: usize) -> Result<bool> {
        loop {
            let extra = (offset + self.size(0..self.heads.len())).wrapping_neg() % align;
            let Some(widths) = widen(&self.heads, extra) else {
                self.set_ext_len(nbytes)?;
                return Ok(false);
            };
            let chosen = widths[self.ext];
            self.widths = widths;
            self.set_ext_len(nbytes)?;
            if self.heads[self.ext].widths().any(|width| width == chosen) {
                return Ok(true);
            }
            self.widths.clear();
        }
    }

    fn write(&self, out: &mut Buffer) {
        for (index, head) in self.heads.iter().enumerate() {
            head.write_wide(self.width(index), out);
            out.extend_from_slice(&self.tails[index]);
        }
    }
}
