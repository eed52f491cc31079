//! Trees of which only some leaves were read: what is not whole becomes a dict of what there is.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::memory::{dict_next, new_dict};
use super::record::{Assembled, Assembly};
use crate::grow;

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
        let mut children = grow::with_room(dict.len())?;
        let mut position = 0;
        while let Some((_, child)) = dict_next(dict, &mut position) {
            grow::push(&mut children, self.pruned(child)?)?;
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
        let found = new_dict(self.py)?;
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
}

/// A dict of the state, with its children in their places.
fn replaced<'py>(dict: &Bound<'py, PyDict>, built: Vec<Bound<'py, PyAny>>) -> Assembled<'py> {
    let mut position = 0;
    for new in built {
        // The dict is fresh, and stays as large.
        if let Some((key, old)) = dict_next(dict, &mut position)
            && !new.is(&old)
        {
            dict.set_item(key, new)?;
        }
    }
    Ok(dict.clone().into_any())
}
