//! The arrays in a file, checked as the reader of safetensors checks them.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::json::{Key, Object, Text, read, shortened};
use crate::base::grow::{self, decode};
use crate::base::source::{Source, bytes_of};
use crate::format::array::MAX_NDIM;
use crate::{Error, Result};

/// From the reader of safetensors.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const LENGTH_BYTES: usize = 8;

/// The most memory that a byte of JSON takes.
const VALUE_BYTES: usize = 64;

/// The most arrays that a description of damage names.
const MOST_LISTED: usize = 10;

const METADATA: &str = "__metadata__";

/// Each dtype's name in safetensors, NumPy's name, and the bits of an element. Its writer sorts
/// arrays in this order: the largest elements first, so that all are aligned.
pub const DTYPES: &[(&str, &str, u64)] = &[
    ("U64", "uint64", 64),
    ("I64", "int64", 64),
    ("F64", "float64", 64),
    ("C64", "complex64", 64),
    ("F32", "float32", 32),
    ("U32", "uint32", 32),
    ("I32", "int32", 32),
    ("BF16", "bfloat16", 16),
    ("F16", "float16", 16),
    ("U16", "uint16", 16),
    ("I16", "int16", 16),
    ("F8_E5M2FNUZ", "float8_e5m2fnuz", 8),
    ("F8_E4M3FNUZ", "float8_e4m3fnuz", 8),
    ("F8_E8M0", "float8_e8m0fnu", 8),
    ("F8_E4M3", "float8_e4m3fn", 8),
    ("F8_E5M2", "float8_e5m2", 8),
    ("I8", "int8", 8),
    ("U8", "uint8", 8),
    ("BOOL", "bool", 8),
    ("F6_E3M2", "", 6),
    ("F6_E2M3", "", 6),
    ("F4", "", 4),
];

/// The longest name of a dtype that this release lacks.
const MAX_DTYPE_BYTES: usize = 32;

/// Ends the names of bytes that stand for elements, and of those with an unknown dtype.
const PACKED: &str = "_packed";
const UNKNOWN: &str = "_unknown";

#[derive(Debug)]
pub struct Tensor {
    pub name: String,
    /// NumPy's name, or the name of bytes for elements or a shape that NumPy lacks.
    pub dtype: Cow<'static, str>,
    /// In bytes, where NumPy lacks it.
    pub shape: Vec<usize>,
    pub itemsize: usize,
    /// The offset of its bytes in the file.
    pub start: usize,
    pub nbytes: usize,
}

#[derive(Debug, Default)]
pub struct Header {
    /// In the order of their bytes.
    pub arrays: Vec<Tensor>,
    pub metadata: Option<Vec<(String, String)>>,
    /// The CRC-32 of its text.
    pub checksum: u32,
    /// In a salvage, where the file ends too early or too late, and the arrays that it lacks.
    pub damage: Option<String>,
}

impl Header {
    /// With `salvage`, a file of another size than its arrays has those that are whole in it.
    pub fn read(source: &dyn Source, salvage: bool) -> Result<Self> {
        let len = source.len();
        if len < LENGTH_BYTES {
            let reason = "not a safetensors file: it ends before the size of its header";
            return Err(Error::malformed(len, reason));
        }
        let mut length = [0; LENGTH_BYTES];
        length.copy_from_slice(&bytes_of(source, 0..LENGTH_BYTES)?);
        let length = u64::from_le_bytes(length);
        if length > (len - LENGTH_BYTES) as u64 {
            let reason = format!(
                "not a safetensors file: its header of {length} bytes does not fit into {len} bytes"
            );
            return Err(Error::malformed(0, reason));
        }
        if length > MAX_HEADER_BYTES {
            let reason = format!(
                "the header has {length} bytes, but safetensors allows at most {MAX_HEADER_BYTES}"
            );
            return Err(Error::malformed(0, reason));
        }
        let start = LENGTH_BYTES + usize::try_from(length).unwrap_or(0);
        let text = bytes_of(source, LENGTH_BYTES..start)?;
        let mut header = Self::parse(&text)?;
        header.checksum = crc32fast::hash(&text);
        header.place(start, len, salvage)?;
        Ok(header)
    }

    fn parse(text: &[u8]) -> Result<Self> {
        if !text.trim_ascii_start().starts_with(b"{") {
            let reason = "not a safetensors file: its header does not begin with a brace";
            return Err(Error::malformed(LENGTH_BYTES, reason));
        }
        let text = std::str::from_utf8(text).map_err(|error| {
            let reason = "not a safetensors file: invalid header: it is not UTF-8";
            Error::malformed(LENGTH_BYTES + error.valid_up_to(), reason)
        })?;
        if text.contains('\\') {
            // The parser aborts where its buffer of strings with escapes cannot grow.
            grow::check_room(3 * text.len())?;
        }
        let entries: Object<&RawValue> = read(text, LENGTH_BYTES, |reason| {
            format!("not a safetensors file: invalid header: {reason}")
        })?;
        let mut header = Self::default();
        for (Key(name), entry) in entries.0 {
            let offset = LENGTH_BYTES + (entry.get().as_ptr().addr() - text.as_ptr().addr());
            if name == METADATA {
                header.metadata = metadata(entry, offset)?;
                continue;
            }
            let array = Tensor::read(&name, entry, offset).map_err(|error| match error {
                Error::OutOfMemory => error,
                error => Error::at_key(&name, error),
            })?;
            grow::push(&mut header.arrays, array)?;
        }
        Ok(header)
    }

    /// Sorts the arrays, and checks that they fill the file.
    fn place(&mut self, start: usize, len: usize, salvage: bool) -> Result<()> {
        let order = |array: &Tensor| (array.start, array.nbytes);
        if !self.arrays.is_sorted_by_key(order) {
            // Equal places have equal names in the order of the header.
            self.arrays.sort_by_key(order);
        }
        let mut end = 0;
        for array in &mut self.arrays {
            if array.start != end {
                let reason = format!(
                    "the array begins at byte {} of the data, expected {end}, where the previous \
                     array ends: arrays must not overlap or leave gaps",
                    array.start
                );
                return Err(Error::at_key(&array.name, Error::malformed(start, reason)));
            }
            end += array.nbytes;
            array.start = start.saturating_add(array.start);
        }
        let end = start.saturating_add(end);
        if end == len {
            return Ok(());
        }
        let reason =
            format!("the arrays end at byte {end}, but the file at byte {len}: copy it again");
        let error = Error::malformed(end.min(len), reason);
        if !salvage {
            return Err(error);
        }
        let is_whole = |array: &Tensor| array.start.saturating_add(array.nbytes) <= len;
        let whole = self.arrays.partition_point(is_whole);
        let lost = &self.arrays[whole..];
        let few = lost.iter().take(MOST_LISTED);
        let names: Vec<_> = few.map(|array| shortened(&array.name)).collect();
        let more = match lost.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let mut damage = error.to_string();
        if !names.is_empty() {
            damage = format!("{damage}, without all bytes of {}{more}", names.join(", "));
        }
        self.damage = Some(damage);
        self.arrays.truncate(whole);
        Ok(())
    }
}

fn metadata(entry: &RawValue, offset: usize) -> Result<Option<Vec<(String, String)>>> {
    let object: Option<Object<Text>> = read(entry.get(), offset, |reason| {
        format!("invalid __metadata__: expected a map of strings to strings: {reason}")
    })?;
    let texts = |object: Object<Text>| {
        let pairs = object.0.into_iter();
        grow::collect(pairs.map(|(Key(key), Text(text))| (key.into_owned(), text)))
    };
    object.map(texts).transpose()
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    #[serde(deserialize_with = "decode::list")]
    shape: Vec<usize>,
    data_offsets: (usize, usize),
    /// Read with limits of depth and of numbers.
    #[serde(flatten)]
    _others: IgnoredAny,
}

impl Tensor {
    /// Reads the entry of an array; its start is relative to the data.
    fn read(name: &str, entry: &RawValue, offset: usize) -> Result<Self> {
        let refused = |reason: String| Err(Error::malformed(offset, reason));
        // Cannot fail where memory ends.
        grow::check_room(VALUE_BYTES * entry.get().len())?;
        let text = entry.get();
        let fields: Fields = read(text, offset, |reason| {
            format!("invalid header entry {}: {reason}", shortened(text))
        })?;
        let (named, shape, (begin, end)) = (fields.dtype, fields.shape, fields.data_offsets);
        let product = shape
            .iter()
            .try_fold(1_u64, |product, size| product.checked_mul(*size as u64));
        let span = end as i128 - begin as i128;
        let known = DTYPES.iter().find(|(name, ..)| *name == named);
        let (dtype, bits) = match known {
            Some(&(_, dtype, bits)) => (dtype, bits),
            // Of a later release, whose arrays are not readable; the others of the file are.
            None if is_name(&named) => match bits_of(product, span) {
                Some(bits) => ("", bits),
                None => {
                    return refused(format!(
                        "size mismatch: {span} bytes are no whole number of bits for each element \
                         of the shape {shape:?} and the unknown dtype {named}"
                    ));
                }
            },
            None => return refused(format!("unknown dtype {}", shortened(&named))),
        };
        let nbits = product.and_then(|product| product.checked_mul(bits));
        let Some(nbits) = nbits else {
            return refused(format!(
                "invalid shape {shape:?}: the array is larger than any memory"
            ));
        };
        if nbits % 8 != 0 {
            return refused(format!(
                "invalid shape {shape:?}: {nbits} bits do not end with a byte"
            ));
        }
        let nbytes = usize::try_from(nbits / 8).map_err(|_| Error::OutOfMemory)?;
        if end.checked_sub(begin) != Some(nbytes) {
            return refused(format!(
                "size mismatch: the dtype and shape need {nbytes} bytes, the offsets span {span}"
            ));
        }
        let (dtype, itemsize, shape) = if !dtype.is_empty() && is_for_numpy(&shape, bits) {
            (Cow::Borrowed(dtype), (bits / 8) as usize, shape)
        } else {
            let end = if known.is_some() { PACKED } else { UNKNOWN };
            let mut packed = String::new();
            packed.try_reserve(named.len() + end.len())?;
            packed.push_str(&named);
            packed.push_str(end);
            (Cow::Owned(packed), 1, grow::to_vec(&[nbytes])?)
        };
        Ok(Self {
            name: grow::to_string(name)?,
            dtype,
            shape,
            itemsize,
            start: begin,
            nbytes,
        })
    }
}

/// Returns whether a dtype that this release lacks has a name as the dtypes of safetensors have.
fn is_name(dtype: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    dtype.len() <= MAX_DTYPE_BYTES
        && dtype.starts_with(|first: char| first.is_ascii_uppercase())
        && dtype.bytes().all(is_allowed)
}

/// Returns the bits of each of `product` elements in `span` bytes, if they are a whole number.
fn bits_of(product: Option<u64>, span: i128) -> Option<u64> {
    let (product, nbits) = (product?, u64::try_from(span).ok()?.checked_mul(8)?);
    match product {
        0 => (nbits == 0).then_some(8),
        _ => (nbits > 0 && nbits % product == 0).then(|| nbits / product),
    }
}

/// Returns whether NumPy has such arrays. It bounds the size that one without elements would have.
fn is_for_numpy(shape: &[usize], bits: u64) -> bool {
    let some = shape.iter().filter(|size| **size > 0);
    let mut sizes = some.map(|size| *size as u128);
    let size = sizes.try_fold(u128::from(bits / 8), u128::checked_mul);
    bits >= 8 && shape.len() <= MAX_NDIM && size.is_some_and(|size| size <= isize::MAX as u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_may_claim_all_offsets() {
        const SIZE: usize = usize::MAX / 16;
        let entry = |number: usize| {
            let (begin, end) = (number * SIZE, (number + 1) * SIZE);
            format!(
                r#""{number}":{{"dtype":"U8","shape":[{SIZE}],"data_offsets":[{begin},{end}]}}"#
            )
        };
        let entries: Vec<_> = (0..16).map(entry).collect();
        let text = format!("{{{}}}", entries.join(","));
        let file = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
        assert!(Header::read(&file, false).is_err());
        let salvaged = Header::read(&file, true).unwrap();
        assert!(salvaged.arrays.is_empty() && salvaged.damage.is_some());
    }
}
