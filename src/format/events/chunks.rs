//! Joins the chunks of an array: `{marker: …, "shape": {"0": …}, "chunks": {"0": array, …}}`.
//!
//! The marker's value does not matter; other keys are ignored; of equal keys the last counts.

use std::collections::HashMap;

use super::read::Open;
use super::{Event, Events, Span};
use crate::format::array::Dims;
use crate::format::wire::{CHUNKED_MARKER, Head};
use crate::{Error, Result, base::grow};

impl Events {
    pub(super) fn join_chunks(&self, open: &Open) -> Result<(Dims, u32, Vec<Span>)> {
        let offset = open.offset;
        let fail = |reason: &str| {
            let reason = format!("a map with the key {CHUNKED_MARKER:?} {reason}");
            Error::malformed(offset, reason)
        };
        if open.has_other_keys {
            return Err(fail("has a key that is not a string"));
        }
        let shape = open.shape.ok_or_else(|| fail("must have a map 'shape'"))?;
        let chunks = open
            .chunks
            .ok_or_else(|| fail("must have a map 'chunks'"))?;
        let mut dims = Dims::default();
        for event in self.indexed(shape, offset)? {
            let head = match event {
                Event::Int(value) => Head::Int(value),
                Event::Uint(value) => Head::Uint(value),
                _ => Head::Nil, // which `push` rejects
            };
            dims.push(head, offset)?;
        }
        let mut spans = Vec::new();
        let mut dtype = None;
        for event in self.indexed(chunks, offset)? {
            let chunk = match event {
                Event::Array(chunk) if self.array(chunk).spans.len() == 1 => chunk,
                // Chunks of chunks would take memory at each level.
                _ => return Err(Error::malformed(offset, "a chunk must be an array")),
            };
            let has_shape = self.array(chunk).shape().is_some();
            let chunk = self.arrays[chunk as usize];
            if !has_shape {
                let reason = "the bytes of a chunk do not match its shape and dtype";
                return Err(Error::malformed(chunk.offset, reason));
            }
            if *dtype.get_or_insert(chunk.dtype) != chunk.dtype {
                return Err(Error::malformed(chunk.offset, "the chunks differ in dtype"));
            }
            grow::push(&mut spans, self.spans[chunk.spans_start])?;
        }
        let dtype = dtype.ok_or_else(|| fail("has no chunks"))?;
        Ok((dims, dtype, spans))
    }

    fn indexed(&self, map: usize, offset: usize) -> Result<Vec<Event>> {
        let fail = || {
            Error::malformed(
                offset,
                "the shape and the chunks of an array must be maps with the keys '0', '1', …",
            )
        };
        let Event::Map(container) = self.list[map] else {
            return Err(fail());
        };
        let mut chunks = HashMap::new();
        let mut key = map + 1;
        while key < container.end {
            let value = self.after(key);
            let Event::Str(name) = self.list[key] else {
                return Err(fail());
            };
            chunks.try_reserve(1)?;
            chunks.insert(self.text_bytes(name), self.list[value]);
            key = self.after(value);
        }
        let value = |index: usize| chunks.get(index.to_string().as_bytes()).copied();
        grow::try_collect((0..chunks.len()).map(|index| value(index).ok_or_else(fail)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_chunks_take_no_memory_at_each_level() {
        let text = |bytes: &mut Vec<u8>, text: &str| rmp::encode::write_str(bytes, text).unwrap();
        let chunked = |chunks: &[Vec<u8>]| {
            let mut bytes = vec![0x83];
            text(&mut bytes, CHUNKED_MARKER);
            bytes.push(0xc3);
            text(&mut bytes, "shape");
            bytes.extend(b"\x81\xa10\x00"); // {"0": 0}
            text(&mut bytes, "chunks");
            bytes.extend([0xde, 0, u8::try_from(chunks.len()).unwrap()]);
            for (number, chunk) in chunks.iter().enumerate() {
                text(&mut bytes, &number.to_string());
                bytes.extend(chunk);
            }
            bytes
        };
        let empty = b"\xc7\x08\x01\x93\x91\x00\xa2u1\xc4\x00".to_vec();
        let one = chunked(std::slice::from_ref(&empty));
        assert!(Events::read(&chunked(&[one.clone(), one])).is_ok());
        let two = chunked(&[empty.clone(), empty]);
        assert!(Events::read(&two).is_ok());
        let error = Events::read(&chunked(&[two])).unwrap_err();
        assert!(
            error.reason().contains("a chunk must be an array"),
            "{error}"
        );
    }
}
