//! Keys of dicts, names of children, and paths.

use std::borrow::Cow;
use std::cell::OnceCell;

use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;

use super::super::hooks::Hooks;
use super::super::memory::new_string;
use crate::base::grow;

#[derive(Clone)]
pub enum Name<'py> {
    Text(Bound<'py, PyString>),
    /// An element, whose key in a state is the index in decimal digits.
    Index(usize),
    Other(Bound<'py, PyAny>),
}

impl<'py> Name<'py> {
    pub fn of(key: Bound<'py, PyAny>) -> Self {
        match key.cast_into() {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Other(error.into_inner()),
        }
    }

    pub fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => text.to_str().ok().map(Cow::Borrowed),
            Self::Index(index) => Some(Cow::Owned(index.to_string())),
            Self::Other(_) => None,
        }
    }

    #[inline]
    pub fn is(&self, key: &str) -> bool {
        match self {
            Self::Index(index) => {
                let mut left = *index;
                let mut is_next = |digit| {
                    #[allow(clippy::cast_possible_truncation)] // a digit
                    let is_next = digit == b'0' + (left % 10) as u8;
                    left /= 10;
                    is_next
                };
                let is_same = key.bytes().rev().all(&mut is_next) && left == 0;
                is_same && !key.is_empty() && (key.len() == 1 || !key.starts_with('0'))
            }
            name => name.text().is_some_and(|text| text == key),
        }
    }

    fn part(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Other(key) => Ok(key.str()?.into_any()),
            name => name.object(py),
        }
    }

    #[inline]
    pub fn object(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Text(text) => Ok(text.as_any().clone()),
            Self::Index(index) => Ok(new_string(py, &index.to_string())?.into_any()),
            Self::Other(key) => Ok(key.clone()),
        }
    }
}

/// A position in a tree, linked to its parent. Its `Trail` (`paths.py`) is made on demand; a text
/// would repeat a long key for each leaf below it.
pub struct Here<'a, 'py> {
    above: Option<(&'a Here<'a, 'py>, &'a Name<'py>)>,
    trail: OnceCell<Bound<'py, PyAny>>,
    pub(super) depth: usize,
}

impl<'a, 'py> Here<'a, 'py> {
    pub fn root(trail: Option<Bound<'py, PyAny>>) -> Self {
        Self {
            above: None,
            trail: trail.map_or_else(OnceCell::new, OnceCell::from),
            depth: 0,
        }
    }

    #[inline]
    pub(super) fn below(&'a self, name: &'a Name<'py>) -> Self {
        Self {
            above: Some((self, name)),
            trail: OnceCell::new(),
            depth: self.depth + 1,
        }
    }

    pub(super) fn names(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut names = grow::with_room(self.depth)?;
        let mut here = self;
        while let Some((above, name)) = here.above {
            names.push(name.part(py)?);
            here = above;
        }
        names.reverse();
        Ok(names)
    }

    /// Returns the trail. `root` makes the root's, unless known.
    pub(super) fn trail_from(
        &self,
        py: Python<'py>,
        root: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut unknown: SmallVec<[&Self; 8]> = SmallVec::new();
        let mut here = self;
        let mut trail = loop {
            match (here.trail.get(), here.above) {
                (Some(trail), _) => break trail.clone(),
                (None, None) => {
                    let root = root()?;
                    let _ = here.trail.set(root.clone());
                    break root;
                }
                (None, Some((above, _))) => {
                    unknown.push(here);
                    here = above;
                }
            }
        };
        let class = Hooks::get(py)?.trail.bind(py);
        for here in unknown.into_iter().rev() {
            if let Some((_, name)) = here.above {
                trail = class.call1((trail, name.part(py)?))?;
                let _ = here.trail.set(trail.clone());
            }
        }
        Ok(trail)
    }

    pub(super) fn trail(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.trail_from(py, || Hooks::get(py)?.trail.bind(py).call0())
    }
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn numbers_are_as_they_are_written() {
        for number in [0, 1, 9, 10, 11, 99, 100, 101, 1000, usize::MAX] {
            let (name, text) = (Name::Index(number), number.to_string());
            assert!(name.is(&text));
            assert!(!Name::Index(number ^ 1).is(&text));
            assert!(!name.is(&format!("0{text}")));
            assert!(!name.is(&format!("+{text}")));
            assert!(!name.is(&format!("{text}0")));
            assert!(!name.is(&text[1..]));
        }
    }
}
