//! Reads extensions: arrays, NumPy scalars, complex numbers, and other types.

use super::read::{Reader, unhashable};
use super::{ArrayEntry, Event, Events, Span};
use crate::format::array::Dims;
use crate::format::dtypes;
use crate::format::wire::{AHEAD, Complex, EXT_COMPLEX, EXT_NDARRAY, EXT_NPSCALAR, Head};
use crate::{Error, Result, base::grow};

/// The longest name of a dtype; known ones have at most 17 bytes.
const MAX_DTYPE_NAME: usize = 64;

/// The most keys of a map whose types allow hash collisions: each is compared with all others of
/// its hash.
const MAX_EXT_KEYS: u32 = 1024;

/// Dtypes whose scalars hash like numbers, so that distinct ones differ.
const PLAIN_SCALARS: [&[u8]; 4] = [b"int", b"uint", b"bool", b"float"];

impl Reader<'_> {
    #[inline]
    fn forget_arrays(&mut self) {
        if !self.keep_all && self.needing == 0 {
            self.events.arrays.clear();
            self.events.spans.clear();
        }
    }

    #[inline]
    pub(super) fn ext(&mut self, code: i8, len: u32, offset: usize, is_key: bool) -> Result<Event> {
        if code == EXT_NDARRAY && !is_key {
            return Ok(Event::Array(self.array(len)?));
        }
        self.rare_ext(code, len, offset, is_key)
    }

    #[inline(never)]
    fn rare_ext(&mut self, code: i8, len: u32, offset: usize, is_key: bool) -> Result<Event> {
        let event = match code {
            EXT_NDARRAY => return Err(unhashable(offset, "numpy.ndarray")),
            EXT_NPSCALAR => Event::Scalar(self.array(len)?),
            EXT_COMPLEX => {
                let end = self.cursor.limit(len as usize);
                let Complex(real, imaginary) = Complex::read(&mut self.cursor)?;
                self.cursor.unlimit(end);
                let number = number(self.events.complex.len())?;
                grow::push(&mut self.events.complex, (real, imaginary))?;
                Event::Complex(number)
            }
            _ => Event::Ext(code, self.span(len)),
        };
        if let Event::Scalar(array) = event
            && is_key
            && !self.events.array(array).dims.is_empty()
        {
            return Err(unhashable(offset, "numpy.ndarray")); // as in flax
        }
        let is_plain = |array: u32| {
            let name = self.events.array(array).dtype;
            PLAIN_SCALARS.iter().any(|plain| name.starts_with(plain))
        };
        if is_key
            && !matches!(event, Event::Scalar(array) if is_plain(array))
            && let Some(open) = self.open.last_mut()
        {
            open.ext_keys += 1;
            if open.ext_keys > MAX_EXT_KEYS {
                let reason = format!(
                    "a map with more than {MAX_EXT_KEYS} keys that are neither strings nor \
                     plain numbers"
                );
                return Err(Error::malformed(offset, reason));
            }
        }
        Ok(event)
    }

    /// Reads the body of an array, `[shape, dtype name, bytes]`, as leniently as flax.
    #[inline]
    fn array(&mut self, len: u32) -> Result<u32> {
        let Some(ahead) = self.cursor.ahead() else {
            return self.other_array(len, None);
        };
        let Some((headers, array)) = self.recent.find(ahead, len) else {
            return self.other_array(len, Some(ahead));
        };
        let offset = self.cursor.offset();
        let span = Span {
            len: len - u32::try_from(headers).unwrap_or(len),
            start: offset + headers,
        };
        let entry = ArrayEntry { offset, ..array };
        self.cursor.skip(len as usize);
        self.forget_arrays();
        self.events.add_entry(entry, &[span])
    }

    #[inline(never)]
    fn other_array(&mut self, len: u32, ahead: Option<[u8; AHEAD]>) -> Result<u32> {
        let offset = self.cursor.offset();
        let end = self.cursor.limit(len as usize);
        let Head::Array(3) = self.cursor.head()? else {
            let reason = "an array must be [shape, dtype, bytes]";
            return Err(Error::malformed(offset, reason));
        };
        let dims = Dims::read(&mut self.cursor)?;
        // Old writers used one type for strings and bytes.
        let at = self.cursor.offset();
        let (Head::Str(name) | Head::Bin(name)) = self.cursor.head()? else {
            return Err(Error::malformed(at, "an array's dtype must be a string"));
        };
        let dtype = self.dtype(name as usize, at)?;
        let at = self.cursor.offset();
        let (Head::Str(nbytes) | Head::Bin(nbytes)) = self.cursor.head()? else {
            return Err(Error::malformed(
                at,
                "an array's data must be a byte string",
            ));
        };
        let span = self.span(nbytes);
        self.cursor.finish()?;
        self.cursor.unlimit(end);
        self.forget_arrays();
        let array = self
            .events
            .add_array(dims.as_slice(), dtype, &[span], offset)?;
        if let Some(ahead) = ahead {
            let entry = self.events.arrays[array as usize];
            self.recent.remember(ahead, span.start - offset, len, entry);
        }
        Ok(array)
    }

    #[inline]
    fn dtype(&mut self, len: usize, offset: usize) -> Result<u32> {
        if len > MAX_DTYPE_NAME {
            let mut name = Vec::new();
            self.cursor.read(MAX_DTYPE_NAME, &mut name)?;
            return Err(dtypes::no_dtype(&name, offset));
        }
        // The name is read into the text, and removed again.
        let start = self.events.text.len();
        self.cursor.read(len, &mut self.events.text)?;
        let name = &self.events.text[start..];
        let last = self.events.dtypes.get(self.last_dtype);
        if last.is_none_or(|last| last != name) {
            let dtypes = &mut self.events.dtypes;
            let known = self.dtype_numbers.get(name).copied();
            self.last_dtype = known.unwrap_or(dtypes.len());
            if known.is_none() {
                self.dtype_numbers.try_reserve(1)?;
                self.dtype_numbers.insert(grow::to_vec(name)?, dtypes.len());
                grow::push(dtypes, grow::to_vec(name)?)?;
            }
        }
        self.events.text.truncate(start);
        number(self.last_dtype)
    }
}

impl Events {
    #[inline]
    pub(super) fn add_array(
        &mut self,
        dims: &[isize],
        dtype: u32,
        spans: &[Span],
        offset: usize,
    ) -> Result<u32> {
        self.dims.try_reserve(dims.len())?;
        let entry = ArrayEntry {
            offset,
            dims_start: self.dims.len(),
            spans_start: 0,
            spans: 0,
            dtype,
            ndim: u8::try_from(dims.len()).map_err(|_| too_many())?,
        };
        self.dims.extend_from_slice(dims);
        self.add_entry(entry, spans)
    }

    #[inline]
    fn add_entry(&mut self, entry: ArrayEntry, spans: &[Span]) -> Result<u32> {
        self.arrays.try_reserve(1)?;
        self.spans.try_reserve(spans.len())?;
        let array = number(self.arrays.len())?;
        self.arrays.push(ArrayEntry {
            spans_start: self.spans.len(),
            spans: number(spans.len())?,
            ..entry
        });
        self.spans.extend_from_slice(spans);
        Ok(array)
    }
}

#[inline]
fn number(index: usize) -> Result<u32> {
    u32::try_from(index).map_err(|_| too_many())
}

#[cold]
fn too_many() -> Error {
    Error::malformed(0, "more than 2**32 values of one kind")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_foreseeable_hashes_are_few() {
        let map = |count: u16| {
            let mut bytes = vec![0xde];
            bytes.extend_from_slice(&count.to_be_bytes());
            for index in 0..count {
                let [high, low] = index.to_be_bytes();
                // ext 2 of 5 bytes: [high, low]; nil
                bytes.extend_from_slice(&[0xc7, 5, 2, 0x92, 0xcc, high, 0xcc, low, 0xc0]);
            }
            bytes
        };
        assert!(Events::read(&map(1024)).is_ok());
        let error = Events::read(&map(1025)).unwrap_err();
        assert!(error.to_string().contains("more than 1024 keys"));
    }
}
