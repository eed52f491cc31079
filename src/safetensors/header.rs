//! The arrays in a file, checked as the reader of safetensors checks them.

use std::borrow::Cow;

use super::json::{Json, Keys, invalid, shortened, twice};
use crate::array::MAX_NDIM;
use crate::error::Path;
use crate::source::Source;
use crate::{Error, Result, grow};

/// From the reader of safetensors.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const LENGTH_BYTES: usize = 8;

const METADATA: &str = "__metadata__";

/// Each dtype's name in safetensors, its name here, and the bits of an element.
const DTYPES: &[(&str, &str, u64)] = &[
    ("BF16", "bfloat16", 16),
    ("F32", "float32", 32),
    ("F16", "float16", 16),
    ("F64", "float64", 64),
    ("BOOL", "bool", 8),
    ("I8", "int8", 8),
    ("I16", "int16", 16),
    ("I32", "int32", 32),
    ("I64", "int64", 64),
    ("U8", "uint8", 8),
    ("U16", "uint16", 16),
    ("U32", "uint32", 32),
    ("U64", "uint64", 64),
    ("C64", "complex64", 64),
    ("F8_E4M3", "float8_e4m3fn", 8),
    ("F8_E5M2", "float8_e5m2", 8),
    ("F8_E8M0", "float8_e8m0fnu", 8),
    ("F8_E4M3FNUZ", "float8_e4m3fnuz", 8),
    ("F8_E5M2FNUZ", "float8_e5m2fnuz", 8),
    ("F4", "F4_packed", 4),
    ("F6_E2M3", "F6_E2M3_packed", 6),
    ("F6_E3M2", "F6_E3M2_packed", 6),
];

#[derive(Debug)]
pub struct Tensor {
    pub name: String,
    /// NumPy's name, or the name of packed elements, which NumPy lacks.
    pub dtype: &'static str,
    /// In bytes where elements are packed.
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
}

impl Header {
    pub fn read(source: &dyn Source) -> Result<Self> {
        let len = source.len();
        if len < LENGTH_BYTES {
            let reason = "not a safetensors file: it ends before the size of its header";
            return Err(Error::malformed(len, reason));
        }
        let mut length = [0; LENGTH_BYTES];
        length.copy_from_slice(&bytes_of(source, 0, LENGTH_BYTES)?);
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
        let text = bytes_of(source, LENGTH_BYTES, usize::try_from(length).unwrap_or(0))?;
        let mut header = Self::parse(&text)?;
        header.checksum = crc32fast::hash(&text);
        header.place(LENGTH_BYTES + text.len(), len)?;
        Ok(header)
    }

    fn parse(text: &[u8]) -> Result<Self> {
        if !text.starts_with(b"{") {
            let reason = "not a safetensors file: its header does not begin with a brace";
            return Err(Error::malformed(LENGTH_BYTES, reason));
        }
        let mut json = Json::new(text, LENGTH_BYTES)?;
        let mut header = Self::default();
        let mut has_metadata = false;
        json.object(|json, key| {
            if key != METADATA {
                return grow::push(&mut header.arrays, Tensor::read(json, key)?);
            }
            if has_metadata {
                return Err(invalid(json.offset(), &twice(METADATA)));
            }
            has_metadata = true;
            header.metadata = metadata(json)?;
            Ok(())
        })?;
        json.end()?;
        let mut names = grow::collect(header.arrays.iter().map(|it| it.name.as_str()))?;
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(header),
            Some(pair) => Err(invalid(LENGTH_BYTES, &twice(pair[0]))),
        }
    }

    /// Sorts the arrays, and checks that they fill the file.
    fn place(&mut self, start: usize, len: usize) -> Result<()> {
        let order = |it: &Tensor| (it.start, it.nbytes);
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
                return Err(wrong(&array.name, start, reason));
            }
            end += array.nbytes;
            array.start += start;
        }
        if start + end != len {
            let found = start + end;
            let reason = format!("the arrays end at byte {found}, but the file at byte {len}");
            return Err(Error::malformed(found.min(len), reason));
        }
        Ok(())
    }
}

fn bytes_of(source: &dyn Source, start: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    crate::raw::append_with(&mut bytes, len, |target| source.read_at(start, target))?;
    Ok(bytes)
}

fn wrong(name: &str, offset: usize, reason: String) -> Error {
    let mut path = Path::default();
    path.push_outer(name);
    Error::at(path, Error::malformed(offset, reason))
}

fn metadata(json: &mut Json<'_>) -> Result<Option<Vec<(String, String)>>> {
    if json.null()? {
        return Ok(None);
    }
    let reason = "invalid __metadata__: expected a map of strings to strings";
    let error = Error::malformed(json.offset(), reason);
    if !json.is_object() {
        return Err(error);
    }
    let mut found = Vec::new();
    let mut keys = Keys::default();
    let mut are_texts = true;
    json.object(|json, key| {
        if json.is_string() {
            let text = json.string()?.into_owned();
            grow::push(&mut found, (grow::to_string(&key)?, text))?;
        } else {
            are_texts = false;
            json.skip()?;
        }
        keys.add(key)
    })?;
    keys.check(json)?;
    if are_texts {
        Ok(Some(found))
    } else {
        Err(error)
    }
}

/// The fields of an entry, in any order.
#[derive(Default)]
struct Fields<'a> {
    dtype: Option<std::result::Result<Cow<'a, str>, &'a str>>,
    shape: Option<std::result::Result<Vec<u64>, &'a str>>,
    offsets: Option<std::result::Result<Vec<u64>, &'a str>>,
}

impl Tensor {
    /// Reads the entry of an array; its start is relative to the data.
    fn read(json: &mut Json<'_>, name: Cow<'_, str>) -> Result<Self> {
        let offset = json.offset();
        let mut fields = Fields::default();
        let mut keys = Keys::default();
        if json.is_object() {
            json.object(|json, key| {
                match &*key {
                    "dtype" if json.is_string() => fields.dtype = Some(Ok(json.string()?)),
                    "dtype" => fields.dtype = Some(Err(json.skip()?)),
                    "shape" => fields.shape = Some(json.counts()?),
                    "data_offsets" => fields.offsets = Some(json.counts()?),
                    _ => drop(json.skip()?),
                }
                keys.add(key)
            })?;
            keys.check(json)?;
        } else {
            json.skip()?;
        }
        match checked(fields) {
            Ok((dtype, shape, begin, nbytes)) => Ok(Self {
                name: name.into_owned(),
                dtype: dtype.1,
                itemsize: if dtype.2 < 8 {
                    1
                } else {
                    (dtype.2 / 8) as usize
                },
                shape,
                start: begin,
                nbytes,
            }),
            Err(Refused::Entry(reason)) => Err(wrong(&name, offset, reason)),
            Err(Refused::Other(error)) => Err(error),
        }
    }
}

enum Refused {
    Entry(String),
    Other(Error),
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self::Entry(reason)
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

type Dtype = (&'static str, &'static str, u64);

/// Returns the dtype, the shape, the offset in the data and the size of an array.
fn checked(fields: Fields<'_>) -> std::result::Result<(Dtype, Vec<usize>, usize, usize), Refused> {
    let (Some(dtype), Some(shape), Some(offsets)) = (fields.dtype, fields.shape, fields.offsets)
    else {
        let reason = "invalid header entry: expected the keys dtype, shape, data_offsets";
        return Err(reason.to_owned().into());
    };
    let Ok(named) = dtype else {
        return Err("invalid dtype: expected a string".to_owned().into());
    };
    let shape = shape.map_err(|text| {
        format!(
            "invalid shape {}: expected a list of counts",
            shortened(text)
        )
    })?;
    let (begin, end) = match offsets.as_deref() {
        Ok(&[begin, end]) => (begin, end),
        Ok(other) => {
            return Err(format!(
                "invalid data_offsets of {} numbers: expected two byte offsets",
                other.len()
            )
            .into());
        }
        Err(text) => {
            let text = shortened(text);
            return Err(format!("invalid data_offsets {text}: expected two byte offsets").into());
        }
    };
    let Some(dtype) = DTYPES.iter().find(|(name, ..)| *name == named) else {
        return Err(format!("unknown dtype {}", shortened(&named)).into());
    };
    let nbits = shape
        .iter()
        .try_fold(1_u64, |product, size| product.checked_mul(*size));
    let Some(nbits) = nbits.and_then(|nbits| nbits.checked_mul(dtype.2)) else {
        return Err(format!("invalid shape {shape:?}: the array is larger than any memory").into());
    };
    if nbits % 8 != 0 {
        let reason = format!("invalid shape {shape:?}: {nbits} bits do not end with a byte");
        return Err(reason.into());
    }
    let nbytes = nbits / 8;
    let span = i128::from(end) - i128::from(begin);
    if i128::from(nbytes) != span {
        return Err(format!(
            "size mismatch: the dtype and shape need {nbytes} bytes, the offsets span {span}"
        )
        .into());
    }
    check_for_numpy(&shape, dtype.2)?;
    let too_large = |_| Error::OutOfMemory;
    let nbytes = usize::try_from(nbytes).map_err(too_large)?;
    let begin = usize::try_from(begin).map_err(too_large)?;
    let shape = if dtype.2 < 8 {
        grow::to_vec(&[nbytes])?
    } else {
        let sizes = shape
            .iter()
            .map(|size| usize::try_from(*size).map_err(too_large));
        grow::try_collect(sizes)?
    };
    Ok((*dtype, shape, begin, nbytes))
}

/// NumPy bounds the size that an array without elements would have.
fn check_for_numpy(shape: &[u64], bits: u64) -> std::result::Result<(), String> {
    let some = shape.iter().filter(|size| **size > 0);
    let mut sizes = some.map(|size| u128::from(*size));
    let itemsize = u128::from(bits.div_ceil(8));
    let size = sizes.try_fold(itemsize, u128::checked_mul);
    if shape.len() > MAX_NDIM || size.is_none_or(|size| size > isize::MAX as u128) {
        return Err(format!(
            "NumPy does not support this shape of {} dimensions",
            shape.len()
        ));
    }
    Ok(())
}
