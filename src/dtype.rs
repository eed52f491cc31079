//! The element types of arrays.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

macro_rules! dtypes {
    ($($variant:ident $name:literal $itemsize:literal $what:literal,)*) => {
        /// The element type of an array.
        ///
        /// Elements are little-endian. Those below a byte take one; the value is in its low bits.
        ///
        /// ```
        /// use treepack::Dtype;
        ///
        /// let dtype: Dtype = "bfloat16".parse()?;
        /// assert_eq!(dtype, Dtype::BF16);
        /// assert_eq!(dtype.itemsize(), 2);
        /// assert_eq!(Dtype::F8E4M3FN.to_string(), "float8_e4m3fn");
        /// assert_eq!("<f4".parse::<Dtype>()?, Dtype::F32); // one of NumPy's other names
        /// assert!("object".parse::<Dtype>().is_err());
        /// # Ok::<(), treepack::Error>(())
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = concat!($what, ": `", $name, "`.")] $variant,)*
            /// A time, in units since 1970: `datetime64[ns]`.
            Datetime64(TimeUnit),
            /// A difference between times: `timedelta64[ns]`.
            Timedelta64(TimeUnit),
        }

        const NAMED: &[(Dtype, &str, usize)] = &[$((Dtype::$variant, $name, $itemsize),)*];
    };
}

dtypes! {
    Bool "bool" 1 "A boolean, 0 or 1",
    I1 "int1" 1 "A signed integer of 1 bit",
    I2 "int2" 1 "A signed integer of 2 bits",
    I4 "int4" 1 "A signed integer of 4 bits",
    I8 "int8" 1 "A signed integer of 8 bits",
    I16 "int16" 2 "A signed integer of 16 bits",
    I32 "int32" 4 "A signed integer of 32 bits",
    I64 "int64" 8 "A signed integer of 64 bits",
    U1 "uint1" 1 "An unsigned integer of 1 bit",
    U2 "uint2" 1 "An unsigned integer of 2 bits",
    U4 "uint4" 1 "An unsigned integer of 4 bits",
    U8 "uint8" 1 "An unsigned integer of 8 bits",
    U16 "uint16" 2 "An unsigned integer of 16 bits",
    U32 "uint32" 4 "An unsigned integer of 32 bits",
    U64 "uint64" 8 "An unsigned integer of 64 bits",
    F16 "float16" 2 "A float of half precision",
    F32 "float32" 4 "A float of single precision",
    F64 "float64" 8 "A float of double precision",
    F128 "float128" 16 "A `long double` of the machine that wrote it",
    BF16 "bfloat16" 2 "The upper half of a float of single precision",
    F4E2M1FN "float4_e2m1fn" 1 "A float of 4 bits",
    F6E2M3FN "float6_e2m3fn" 1 "A float of 6 bits",
    F6E3M2FN "float6_e3m2fn" 1 "A float of 6 bits",
    F8E3M4 "float8_e3m4" 1 "A float of 8 bits",
    F8E4M3 "float8_e4m3" 1 "A float of 8 bits",
    F8E4M3B11FNUZ "float8_e4m3b11fnuz" 1 "A float of 8 bits",
    F8E4M3FN "float8_e4m3fn" 1 "A float of 8 bits",
    F8E4M3FNUZ "float8_e4m3fnuz" 1 "A float of 8 bits",
    F8E5M2 "float8_e5m2" 1 "A float of 8 bits",
    F8E5M2FNUZ "float8_e5m2fnuz" 1 "A float of 8 bits",
    F8E8M0FNU "float8_e8m0fnu" 1 "A power of two in 8 bits",
    C32 "complex32" 4 "A complex number of two `float16`",
    C64 "complex64" 8 "A complex number of two `float32`",
    C128 "complex128" 16 "A complex number of two `float64`",
    C256 "complex256" 32 "A complex number of two `float128`",
    BC32 "bcomplex32" 4 "A complex number of two `bfloat16`",
}

impl Dtype {
    /// Returns the size of an encoded element in bytes.
    #[must_use]
    pub fn itemsize(self) -> usize {
        let known = NAMED.iter().find(|(dtype, ..)| *dtype == self);
        known.map_or(size_of::<i64>(), |(.., itemsize)| *itemsize)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let known = NAMED.iter().find(|(_, known, _)| *known == name);
        let known = known.map(|(dtype, ..)| *dtype);
        known
            .or_else(|| Self::timed(name, "datetime64", "timedelta64"))
            .or_else(|| Self::coded(name))
    }

    fn timed(name: &str, times: &str, differences: &str) -> Option<Self> {
        match name.strip_prefix(times) {
            Some(unit) => TimeUnit::in_brackets(unit).map(Self::Datetime64),
            None => TimeUnit::in_brackets(name.strip_prefix(differences)?).map(Self::Timedelta64),
        }
    }

    fn coded(code: &str) -> Option<Self> {
        let code = code.strip_prefix(['<', '|', '=']).unwrap_or(code);
        Some(match code {
            "?" | "b1" => Self::Bool,
            "i1" => Self::I8,
            "i2" => Self::I16,
            "i4" => Self::I32,
            "i8" => Self::I64,
            "u1" => Self::U8,
            "u2" => Self::U16,
            "u4" => Self::U32,
            "u8" => Self::U64,
            "f2" => Self::F16,
            "f4" => Self::F32,
            "f8" => Self::F64,
            "f16" => Self::F128,
            "c8" => Self::C64,
            "c16" => Self::C128,
            "c32" => Self::C256,
            _ => return Self::timed(code, "M8", "m8"),
        })
    }
}

/// The name in NumPy and JAX.
impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = match self {
            Self::Datetime64(unit) => ("datetime64", unit),
            Self::Timedelta64(unit) => ("timedelta64", unit),
            plain => {
                let known = NAMED.iter().find(|(dtype, ..)| dtype == plain);
                return f.pad(known.map_or("?", |(_, name, _)| name));
            }
        };
        if *unit == TimeUnit::NONE {
            return f.pad(name);
        }
        f.pad(&format!("{name}[{unit}]"))
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::named(name).ok_or_else(|| Error::Option(format!("unsupported array dtype {name:?}")))
    }
}

/// The unit of a [`Dtype::Datetime64`] or [`Dtype::Timedelta64`].
///
/// ```
/// use treepack::{Dtype, TimeUnit};
///
/// let unit: TimeUnit = "25us".parse()?;
/// assert_eq!(Dtype::Timedelta64(unit).to_string(), "timedelta64[25us]");
/// assert_eq!(Dtype::Datetime64(TimeUnit::NONE).to_string(), "datetime64");
/// # Ok::<(), treepack::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimeUnit {
    count: u32,
    name: &'static str,
}

const UNITS: [&str; 13] = [
    "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as",
];

impl TimeUnit {
    /// The unit is unknown.
    pub const NONE: Self = Self { count: 1, name: "" };

    fn in_brackets(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::NONE);
        }
        let unit = text.strip_prefix('[')?.strip_suffix(']')?;
        Self::named(unit)
    }

    fn named(text: &str) -> Option<Self> {
        const MAX_DIGITS: usize = 9;
        let digits = text.len()
            - text
                .trim_start_matches(|char: char| char.is_ascii_digit())
                .len();
        let (count, name) = text.split_at(digits);
        let count = match count {
            "" => 1,
            _ if digits > MAX_DIGITS || count.starts_with('0') => return None,
            _ => count.parse().ok()?,
        };
        let name = UNITS.iter().find(|known| **known == name)?;
        Some(Self { count, name })
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count != 1 {
            write!(f, "{}", self.count)?;
        }
        f.write_str(self.name)
    }
}

impl FromStr for TimeUnit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::named(text).ok_or_else(|| Error::Option(format!("unsupported time unit {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::itemsize;

    #[test]
    fn names_come_back_and_tell_the_size() {
        for (dtype, name, size) in NAMED {
            assert_eq!(name.parse::<Dtype>().unwrap(), *dtype);
            assert_eq!(dtype.to_string(), *name);
            assert_eq!(dtype.itemsize(), *size);
            // Other sizes are derived from the bytes.
            assert_eq!(itemsize(name).unwrap_or(*size), *size, "{name}");
        }
    }

    #[test]
    fn times_have_units() {
        for name in [
            "datetime64",
            "datetime64[ns]",
            "timedelta64[25us]",
            "timedelta64[Y]",
        ] {
            let dtype: Dtype = name.parse().unwrap();
            assert_eq!(dtype.to_string(), name);
            assert_eq!(dtype.itemsize(), 8);
        }
        assert_eq!(
            "M8[ns]".parse::<Dtype>().unwrap().to_string(),
            "datetime64[ns]"
        );
        assert_eq!(
            "<m8[3D]".parse::<Dtype>().unwrap().to_string(),
            "timedelta64[3D]"
        );
    }

    #[test]
    fn other_names_are_none() {
        for name in [
            "",
            "?f4",
            "f",
            "f3",
            ">f4",
            "O",
            "object",
            "str",
            "S4",
            "U4",
            "V4",
            "float",
            "int",
            "datetime",
            "datetime64[]",
            "datetime64[0s]",
            "datetime64[x]",
            "datetime64[s",
            "datetime64[1234567890s]",
            "datetime[s]",
            "M",
            "M8[",
            "Ms",
            "é",
            "float32 ",
        ] {
            assert!(name.parse::<Dtype>().is_err(), "{name}");
        }
    }
}
