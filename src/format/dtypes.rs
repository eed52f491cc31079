//! Names of dtypes: their element sizes, and the error for unknown ones.

use crate::Error;

/// The element size in bytes, at least one; `None` for unknown names.
pub fn itemsize(name: &str) -> Option<usize> {
    if name == "bool" {
        return Some(1);
    }
    if name == "bfloat16" {
        return Some(2);
    }
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

pub fn no_dtype(name: &[u8], offset: usize) -> Error {
    const MOST_BYTES: usize = 100;
    let name = String::from_utf8_lossy(&name[..name.len().min(MOST_BYTES)]);
    let cure = "select= and exclude= of treepack.load load the other leaves";
    Error::malformed(offset, format!("unsupported array dtype {name:?}: {cure}"))
}

#[cfg(test)]
mod tests {
    use super::itemsize;

    #[test]
    fn element_sizes_follow_from_names() {
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
