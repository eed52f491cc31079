//! Keys: dicts of them, paths of them, and those of elements.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::hooks::Hooks;
use super::super::memory::new_dict;
use crate::{Result, grow};

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

/// The keys that lead to a place of a tree, and the `Trail` of each that was asked for: see
/// `paths.py`. Trails share what is above them, where texts of paths would repeat a long key for
/// each leaf below it.
#[derive(Default)]
pub struct Keys<'py> {
    keys: Vec<Bound<'py, PyAny>>,
    /// The trail of the root, and those of the first keys.
    trails: Vec<Bound<'py, PyAny>>,
}

impl<'py> Keys<'py> {
    /// No keys below a place with this trail.
    pub(super) fn below(root: Bound<'py, PyAny>) -> Result<Self> {
        let mut found = Self::default();
        grow::push(&mut found.trails, root)?;
        Ok(found)
    }

    /// Goes one level down.
    pub fn push(&mut self, key: Bound<'py, PyAny>) -> PyResult<()> {
        Ok(grow::push(&mut self.keys, key)?)
    }

    /// Goes one level up, and returns the key that led down.
    pub fn pop(&mut self) -> Option<Bound<'py, PyAny>> {
        self.trails.truncate(self.keys.len());
        self.keys.pop()
    }

    /// The keys from the root on.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Bound<'py, PyAny>> {
        self.keys.iter().cloned()
    }

    /// The trail of this place.
    pub fn trail(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let trail = Hooks::get(py)?.trail.bind(py);
        if self.trails.is_empty() {
            grow::push(&mut self.trails, trail.call0()?)?;
        }
        for at in self.trails.len() - 1..self.keys.len() {
            let next = trail.call1((&self.trails[at], &self.keys[at]))?;
            grow::push(&mut self.trails, next)?;
        }
        Ok(self.trails[self.keys.len()].clone())
    }
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
