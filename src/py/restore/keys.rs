//! Keys: dicts of them, paths of them, and those of elements.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::memory::new_dict;
use crate::error::Path;

/// A dict with these keys, as many as there are children.
#[inline(never)] // what calls this is recursive
pub(super) fn dict_of<'py>(
    py: Python<'py>,
    keys: impl Iterator<Item = Bound<'py, PyAny>>,
    children: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = new_dict(py)?;
    for (key, child) in keys.zip(children) {
        dict.set_item(key, child)?;
    }
    Ok(dict)
}

/// How the place that keys lead to is written.
pub(super) fn path_text(keys: &[Bound<'_, PyAny>]) -> String {
    let mut path = Path::default();
    for key in keys.iter().rev() {
        path.push_outer(key.to_string());
    }
    path.to_string()
}

/// Whether a text is a number as `to_string` writes it.
pub fn is_decimal(text: &[u8], number: usize) -> bool {
    let mut left = number;
    for (position, digit) in text.iter().enumerate().rev() {
        #[allow(clippy::cast_possible_truncation)] // a digit
        if *digit != b'0' + (left % 10) as u8 || (left == 0 && position + 1 < text.len()) {
            return false;
        }
        left /= 10;
    }
    left == 0 && !text.is_empty()
}

#[cfg(test)]
mod tests {
    use super::is_decimal;

    #[test]
    fn numbers_are_as_they_are_written() {
        for number in [0, 1, 9, 10, 11, 99, 100, 101, 1000, usize::MAX] {
            let text = number.to_string();
            assert!(is_decimal(text.as_bytes(), number));
            assert!(!is_decimal(text.as_bytes(), number ^ 1));
            assert!(!is_decimal(format!("0{text}").as_bytes(), number));
            assert!(!is_decimal(format!("{text}0").as_bytes(), number));
            assert!(!is_decimal(&text.as_bytes()[1..], number));
        }
    }
}
