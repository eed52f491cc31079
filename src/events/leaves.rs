//! Arrays by their paths, and their bytes: what a program needs that is not Python.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{ArrayEvent, Event, Events, Span};
use crate::array::resolve;
use crate::error::Path;
use crate::source::{Source, read_to};
use crate::{Error, Result};

/// An array of a tree.
#[derive(Debug)]
pub struct Leaf<'a> {
    /// The keys that lead to it.
    pub path: Path,
    /// The name of its dtype, such as `float32`.
    pub dtype: &'a str,
    /// Its dimensions.
    pub shape: SmallVec<[usize; 6]>,
    /// How many bytes its elements have.
    pub nbytes: usize,
    spans: &'a [Span],
}

impl Leaf<'_> {
    /// Reads its elements, in C order and little-endian, from the source of the events.
    pub fn read(&self, source: &dyn Source) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.nbytes)?;
        for span in self.spans {
            read_to(source, span.range(), &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// The arrays of a tree in order.
pub struct Leaves<'a> {
    events: &'a Events,
    next: usize,
    /// The containers around the next event: where it ends, whether it is a map, the number
    /// of its elements so far, and the last key.
    open: Vec<(usize, bool, usize, Cow<'a, str>)>,
}

impl Events {
    /// All arrays in order, with their paths. (Other leaves are left out, and scalars.)
    #[must_use]
    pub fn leaves(&self) -> Leaves<'_> {
        Leaves {
            events: self,
            next: 0,
            open: Vec::new(),
        }
    }
}

impl<'a> Iterator for Leaves<'a> {
    type Item = Result<Leaf<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(&event) = self.events.as_slice().get(self.next) {
            while self.open.last().is_some_and(|open| open.0 <= self.next) {
                self.open.pop();
            }
            self.next += 1;
            if let Some((_, is_map, count, key)) = self.open.last_mut() {
                *count += 1;
                if !*is_map {
                    *key = (*count - 1).to_string().into();
                } else if !count.is_multiple_of(2) {
                    *key = self.events.key_text(event);
                    continue;
                }
            }
            match event {
                // No deeper than the events were allowed to be.
                Event::List(list) => self.open.push((list.end, false, 0, Cow::default())),
                Event::Map(map) | Event::PrngKey(map) => {
                    self.open.push((map.end, true, 0, Cow::default()));
                }
                Event::Array(number) => return Some(self.leaf(&self.events.array(number))),
                _ => {}
            }
        }
        None
    }
}

impl<'a> Leaves<'a> {
    fn leaf(&self, array: &ArrayEvent<'a>) -> Result<Leaf<'a>> {
        let mut path = Path::default();
        for (_, _, _, key) in self.open.iter().rev() {
            path.try_push_outer(key)?;
        }
        let dtype = std::str::from_utf8(array.dtype).unwrap_or("?");
        let itemsize = array.itemsize();
        let itemsize = itemsize.ok_or_else(|| super::no_dtype(array.dtype, array.offset));
        let shape = itemsize.and_then(|it| resolve(array.dims, array.nbytes(), it, array.offset));
        match shape {
            Ok(shape) => Ok(Leaf {
                path,
                dtype,
                shape,
                nbytes: array.nbytes(),
                spans: array.spans,
            }),
            Err(error) => Err(Error::At {
                path,
                error: Box::new(error),
            }),
        }
    }
}

/// How many bytes an element of a dtype takes, by its name: `float32`, `bfloat16`, `int4`.
/// Those of less than a byte take one. Nothing for names of another form.
pub fn itemsize(name: &str) -> Option<usize> {
    if name == "bool" {
        return Some(1);
    }
    if name == "bfloat16" {
        return Some(2);
    }
    // With a unit, or of none.
    if name.starts_with("datetime64") || name.starts_with("timedelta64") {
        return Some(8);
    }
    let digits = name.find(|c: char| c.is_ascii_digit())?;
    let (kind, rest) = name.split_at(digits);
    let end = rest.find(|c: char| !c.is_ascii_digit());
    let bits: usize = rest[..end.unwrap_or(rest.len())].parse().ok()?;
    let known = matches!(kind, "int" | "uint" | "float" | "complex");
    (known && bits <= 256).then(|| bits.div_ceil(8))
}

#[cfg(test)]
mod tests {
    use super::itemsize;

    #[test]
    fn elements_have_the_size_that_their_name_tells() {
        let known = [
            ("float32", 4),
            ("bfloat16", 2),
            ("float8_e4m3fn", 1),
            ("float4_e2m1fn", 1),
            ("int4", 1),
            ("uint64", 8),
            ("complex128", 16),
            ("bool", 1),
            ("datetime64[ns]", 8),
            ("timedelta64", 8),
        ];
        for (name, size) in known {
            assert_eq!(itemsize(name), Some(size), "{name}");
        }
        for name in [
            "",
            "float",
            "object",
            "<f4",
            "int99999999999999999999",
            "str32",
        ] {
            assert_eq!(itemsize(name), None, "{name}");
        }
    }
}
