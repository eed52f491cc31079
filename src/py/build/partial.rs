//! Trees of which only some leaves were read: what is not whole becomes a dict of what there is.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::failure::{Failure, Walked};
use super::super::memory::dict_next;
use super::record::{Assembled, Assembly, children, damaged, replaced};
use crate::structure::Kind;

impl<'py> Assembly<'_, 'py> {
    /// Whether a state was not read.
    pub(super) fn is_absent(&self, state: &Bound<'py, PyAny>) -> bool {
        self.absent.as_ref().is_some_and(|absent| state.is(absent))
    }

    /// The state of a plain part of the tree without what is absent.
    #[inline(never)] // see `node`
    pub(super) fn pruned(&self, state: Bound<'py, PyAny>) -> Assembled<'py> {
        let Ok(dict) = state.cast_exact::<PyDict>() else {
            return Ok(state);
        };
        let mut children = Vec::with_capacity(dict.len());
        let mut position = 0;
        while let Some((_, child)) = dict_next(dict, &mut position) {
            children.push(self.pruned(child)?);
        }
        if children.iter().any(|child| self.is_absent(child)) {
            return self.partial(dict, &children);
        }
        replaced(dict, children)
    }

    /// A dict of the children that there are, if there are any.
    #[inline(never)] // see `node`
    pub(super) fn partial(
        &self,
        dict: &Bound<'py, PyDict>,
        built: &[Bound<'py, PyAny>],
    ) -> Assembled<'py> {
        let found = PyDict::new(self.py);
        let mut position = 0;
        for child in built {
            if let Some((key, _)) = dict_next(dict, &mut position)
                && !self.is_absent(child)
            {
                found.set_item(key, child)?;
            }
        }
        Ok(match &self.absent {
            Some(absent) if found.is_empty() => absent.clone(),
            _ => found.into_any(),
        })
    }

    /// The state that some keys lead to, and its node.
    pub(super) fn below(
        &self,
        mut state: Bound<'py, PyAny>,
        mut node: usize,
        keys: &[String],
    ) -> Walked<(Bound<'py, PyAny>, usize)> {
        for wanted in keys {
            let found = &self.trailer.nodes[node];
            let is_plain = found.0 == Kind::Plain;
            let dict = if is_plain {
                state.cast_exact::<PyDict>().map_err(|_| {
                    Failure::structure("there is a leaf where a container was saved")
                })?
            } else {
                children(&state, found)?
            };
            let mut position = 0;
            let mut index = 0;
            let child = loop {
                let Some((key, child)) = dict_next(dict, &mut position) else {
                    return damaged("a dict has lost a key");
                };
                if key.eq(wanted)? {
                    break child;
                }
                index += 1;
            };
            if !is_plain {
                let mut repeats = found.1.iter();
                let number = repeats.find(|repeat| {
                    let is_here = index < u64::from(repeat.0);
                    index = index.saturating_sub(u64::from(repeat.0));
                    is_here
                });
                node = number.map_or(0, |repeat| repeat.1 as usize);
            }
            state = child;
        }
        Ok((state, node))
    }
}
