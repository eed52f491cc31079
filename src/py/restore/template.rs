//! The restoring of a template's containers around leaves that were loaded.
//!
//! This is the fast path of `_restore.restore_tree`: exact dicts, lists and
//! tuples whose state has what they need, and leaves that plainly match. Anything
//! else, and everything that is wrong, is left to `_restore.restore_child`,
//! which knows all containers, decides what matches, and words all errors.

use std::cell::Cell;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::super::hooks::Hooks;
use super::super::memory::{dict_next, new_list_of, new_string, new_tuple_of};
use super::super::watch::Signals;
use super::keys::dict_of;
use super::matching::Matching;
use crate::grow;
use crate::wire::MAX_DEPTH;

/// Restores one child of a template, natively where that is possible; see `_core.pyi`.
#[pyfunction]
pub fn rebuild<'py>(
    target: &Bound<'py, PyAny>,
    state: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    restore: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = target.py();
    let path: Bound<'py, PyList> = restore.getattr(intern!(py, "path"))?.cast_into()?;
    let strict = restore.getattr(intern!(py, "strict"))?;
    let converts = restore.getattr(intern!(py, "converts"))?.is_truthy()?;
    let everywhere = restore.getattr(intern!(py, "everywhere"))?.is_truthy()?;
    let collects = restore.getattr(intern!(py, "collects"))?.is_truthy()?;
    let partial = !restore.getattr(intern!(py, "partial"))?.is_none();
    let rebuild = Rebuild {
        hooks: Hooks::get(py)?,
        signals: Signals::new(),
        depth: Cell::new(path.len()),
        restore,
        path,
        exact: partial || strict.is_instance_of::<PyString>(),
        partial,
        collects,
        matching: Matching::new(py, strict.is_truthy()?, converts, everywhere),
    };
    rebuild.child(target, state, name)
}

struct Rebuild<'a, 'py> {
    hooks: &'static Hooks,
    signals: Signals,
    /// The `Restore` of `restore/session.py` that this is part of, and the list that `current_path` joins.
    restore: &'a Bound<'py, PyAny>,
    path: Bound<'py, PyList>,
    depth: Cell<usize>,
    /// Whether a state may have nothing else than the template.
    exact: bool,
    /// Whether Python takes note of all leaves.
    partial: bool,
    /// Whether leaves are collected only, and nothing is made of them yet.
    collects: bool,
    matching: Matching<'py>,
}

/// What is made of the restored children.
enum Container<'py> {
    Dict,
    List,
    Tuple,
    /// What this function makes of them.
    Made(Bound<'py, PyAny>),
}

/// A child of the template, its state and its name.
type Child<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyString>);

impl<'py> Rebuild<'_, 'py> {
    /// A child with its state. This and `children` are the recursion, which must not need much of
    /// the stack: what they call is not inlined.
    fn child(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.signals.check(target.py())?;
        if !self.partial && self.matching.leaf(target, state)? {
            return Ok(state.clone());
        }
        match self.pairs(target, state)? {
            Some((children, container)) => {
                let values = self.children(&children, name)?;
                self.made(&container, target, &children, values)
            }
            None => self.ask(target, state, name),
        }
    }

    /// A container of the restored children.
    #[inline(never)]
    fn made(
        &self,
        container: &Container<'py>,
        target: &Bound<'py, PyAny>,
        children: &[Child<'py>],
        values: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Container::Made(_) = container {
            if self.collects {
                return Ok(target.clone());
            }
            // Code of the type might not like children that do not fit; an error follows anyway.
            let mismatches = self.restore.getattr(intern!(target.py(), "mismatches"))?;
            if mismatches.is_truthy()? {
                return Ok(target.clone());
            }
        }
        let py = target.py();
        let keys = || children.iter().map(|(_, _, key)| key.clone().into_any());
        match container {
            Container::Dict => Ok(dict_of(py, keys(), values)?.into_any()),
            Container::List => Ok(new_list_of(py, values)?.into_any()),
            Container::Tuple => Ok(new_tuple_of(py, values)?.into_any()),
            Container::Made(make) => make.call1((target, values)),
        }
    }

    /// What Python makes of a child that is not plain.
    #[inline(never)]
    fn ask(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let restore_child = self.hooks.restore_child.bind(target.py());
        restore_child.call1((target, state, name, self.restore))
    }

    /// The children of a container with their state, if that has what they need.
    #[inline(never)]
    fn pairs(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Vec<Child<'py>>, Container<'py>)>> {
        let Ok(state) = state.cast_exact::<PyDict>() else {
            return Ok(None);
        };
        Ok(if let Ok(target) = target.cast_exact::<PyDict>() {
            if self.exact && target.len() != state.len() {
                return Ok(None);
            }
            pair_items(target, state, &self.signals)?.map(|children| (children, Container::Dict))
        } else if let Ok(target) = target.cast_exact::<PyList>() {
            pair_elements(target.iter(), state, &self.signals)?
                .map(|children| (children, Container::List))
        } else if let Ok(target) = target.cast_exact::<PyTuple>() {
            pair_elements(target.iter(), state, &self.signals)?
                .map(|children| (children, Container::Tuple))
        } else {
            let pairs = self.pair_fields(target, state)?;
            pairs.map(|(children, make)| (children, Container::Made(make)))
        })
    }

    /// The restored children, with `name` on the path meanwhile.
    fn children(
        &self,
        children: &[Child<'py>],
        name: &Bound<'py, PyString>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let depth = self.depth.get();
        if depth >= MAX_DEPTH {
            return Err(PyValueError::new_err(format!(
                "the tree is nested more than {MAX_DEPTH} levels deep, or contains itself"
            )));
        }
        self.path.append(name)?;
        self.depth.set(depth + 1);
        let mut restored = grow::with_room(children.len())?;
        let mut failed = None;
        for (target, state, name) in children {
            match self.child(target, state, name) {
                Ok(child) => restored.push(child),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        self.depth.set(depth);
        self.path.del_slice(depth, self.path.len())?;
        failed.map_or(Ok(restored), Err)
    }

    /// The children of a container whose fields are fixed, with their state, and what makes
    /// such a container; unless the state has other children.
    #[inline(never)]
    fn pair_fields(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyDict>,
    ) -> PyResult<Option<(Vec<Child<'py>>, Bound<'py, PyAny>)>> {
        let Some((fields, found)) = self.matching.fields(target)? else {
            return Ok(None);
        };
        if fields.names.len() != state.len() {
            return Ok(None);
        }
        let mut children = grow::with_room(found.len())?;
        for (child, name) in found.into_iter().zip(&fields.names) {
            let Some(state) = state.get_item(name)? else {
                return Ok(None);
            };
            children.push((child, state, name.clone()));
        }
        Ok(Some((children, fields.make.clone())))
    }
}

/// The children of a dict with their state, unless a key is missing or no string.
#[inline(never)]
fn pair_items<'py>(
    target: &Bound<'py, PyDict>,
    state: &Bound<'py, PyDict>,
    signals: &Signals,
) -> PyResult<Option<Vec<Child<'py>>>> {
    let mut children = grow::with_room(target.len())?;
    let mut position = 0;
    while let Some((key, child)) = dict_next(target, &mut position) {
        signals.check(target.py())?;
        let Ok(key) = key.cast_into_exact::<PyString>() else {
            return Ok(None);
        };
        let Some(state) = state.get_item(&key)? else {
            return Ok(None);
        };
        // It may have grown meanwhile.
        grow::push(&mut children, (child, state, key))?;
    }
    Ok(Some(children))
}

/// The elements of a sequence with their state, unless there are more or fewer of them.
#[inline(never)]
fn pair_elements<'py>(
    targets: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    state: &Bound<'py, PyDict>,
    signals: &Signals,
) -> PyResult<Option<Vec<Child<'py>>>> {
    if state.len() != targets.len() {
        return Ok(None);
    }
    let mut children = grow::with_room(targets.len())?;
    for (index, target) in targets.enumerate() {
        signals.check(target.py())?;
        let key = new_string(target.py(), index.to_string().as_bytes())?;
        let Some(state) = state.get_item(&key)? else {
            return Ok(None);
        };
        children.push((target, state, key));
    }
    Ok(Some(children))
}
