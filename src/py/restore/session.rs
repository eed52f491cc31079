//! The `Restore` of Python that a walk over a template is part of.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use super::super::hooks::Hooks;
use super::matching::Matching;

/// The `Restore` of `restore/session.py` that a walk is part of.
pub struct Session<'py> {
    pub(super) restore: Bound<'py, PyAny>,
    /// The list that `current_path` joins; `depth` is its length at the root of the walk.
    path: Bound<'py, PyList>,
    pub(super) depth: usize,
    pub(super) name: Bound<'py, PyString>,
    /// Whether Python collects leaves, to convert all before nodes are made.
    pub(super) collects: bool,
    /// Whether this walk makes its tree after that.
    pub(super) keeps_plan: bool,
    /// The selected leaves, and whether Python notes which are loaded and kept.
    pub(super) partial: Option<Bound<'py, PyAny>>,
    pub(super) notes: bool,
}

impl<'py> Session<'py> {
    /// Reads the `Restore` under way. The walk restores its child of this name.
    pub fn new(
        restore: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
        keeps_plan: bool,
    ) -> PyResult<Self> {
        let py = restore.py();
        let path: Bound<'py, PyList> = restore.getattr(intern!(py, "path"))?.cast_into()?;
        let partial = restore.getattr(intern!(py, "partial"))?;
        let partial = (!partial.is_none()).then_some(partial);
        let notes = match &partial {
            Some(partial) => partial.getattr(intern!(py, "notes"))?.is_truthy()?,
            None => false,
        };
        Ok(Self {
            depth: path.len(),
            path,
            name: name.clone(),
            collects: restore.getattr(intern!(py, "collects"))?.is_truthy()?,
            keeps_plan,
            partial,
            notes,
            restore: restore.clone(),
        })
    }

    pub fn matching(&self) -> PyResult<Matching<'py>> {
        let py = self.restore.py();
        let flag = |name| self.restore.getattr(name)?.is_truthy();
        Ok(Matching::new(
            py,
            flag(intern!(py, "strict"))?,
            flag(intern!(py, "converts"))?,
            flag(intern!(py, "everywhere"))?,
        ))
    }

    pub fn notes(&self) -> bool {
        self.notes
    }

    pub fn partial(&self) -> Option<&Bound<'py, PyAny>> {
        self.partial.as_ref()
    }

    pub fn absent(&self) -> PyResult<Option<Bound<'py, PyAny>>> {
        let absent = |partial: &Bound<'py, PyAny>| partial.getattr(intern!(partial.py(), "absent"));
        self.partial.as_ref().map(absent).transpose()
    }

    pub(super) fn has_mismatches(&self) -> PyResult<bool> {
        let py = self.restore.py();
        self.restore.getattr(intern!(py, "mismatches"))?.is_truthy()
    }

    pub(super) fn restore_child(
        &self,
        keys: &[Bound<'py, PyAny>],
        template: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let restore_child = Hooks::get(template.py())?.restore_child.bind(template.py());
        let (name, above) = match keys.split_last() {
            Some((last, above)) => {
                self.path.append(&self.name)?;
                (last.clone(), above)
            }
            None => (self.name.clone().into_any(), keys),
        };
        let restored = above
            .iter()
            .try_for_each(|key| self.path.append(key))
            .and_then(|()| restore_child.call1((template, state, name, &self.restore)));
        self.path.del_slice(self.depth, self.path.len())?;
        restored
    }
}
