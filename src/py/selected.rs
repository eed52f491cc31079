//! Leaves of a file in the place of those of a template: all of them, or only some.
//!
//! The walk goes through the file and the template together. What is not meant stays as the
//! template has it, and is not looked at. What is not plainly alike is left to Python: a leaf to
//! `settle`, such as one that goes to a device; a container, and all that is wrong, by giving up,
//! so that `restore/template.rs` and the one in Python find out what is the matter.
//!
//! ```text
//! file + template ──walk──▶ plan, leaves to settle ──settle──▶ leaves ──▶ tree
//! ```
//!
//! No container is made before all leaves are what they are to be, because code of its type may
//! look at them.

use std::collections::HashSet;
use std::rc::Rc;

use pyo3::exceptions::{PyException, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::catalog::Catalog;
use super::fields::Fields;
use super::memory::{dict_next, new_dict, new_list_of, new_string, new_tuple_of};
use super::objects::Parts;
use super::options::integer_or_none;
use super::restore::{Keys, Matching};
use super::select::{Marks, Selector};
use super::watch::Signals;
use crate::catalog;
use crate::select::{self, State};
use crate::{Error, grow};

/// Restores leaves of a file in a template, if the containers plainly fit; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (
    file, value, template, settle, *, marks, selector, strict, converts, everywhere,
    keeps_missing, takes_more, note, copy, threads,
))]
#[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // as in Python
pub fn restore_selected<'py>(
    file: &Bound<'py, Catalog>,
    value: usize,
    template: &Bound<'py, PyAny>,
    settle: &Bound<'py, PyAny>,
    marks: Option<&Marks>,
    selector: Option<&Selector>,
    strict: bool,
    converts: bool,
    everywhere: bool,
    keeps_missing: bool,
    takes_more: Option<bool>,
    note: bool,
    copy: Option<bool>,
    #[pyo3(from_py_with = integer_or_none)] threads: Option<i64>,
) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyTuple>)>> {
    let py = template.py();
    let catalog = file.get().core();
    if value >= catalog.values() {
        return Ok(None);
    }
    let selector = selector.map(Selector::get);
    let mut walk = Walk {
        file: file.get(),
        catalog,
        marks: marks.map(|marks| marks.of(catalog)).transpose()?,
        selector,
        matching: Matching::new(py, strict, converts, everywhere),
        parts: file.get().parts(py, value, copy.into(), threads)?,
        keeps_missing,
        takes_more,
        note,
        signals: Signals::new(),
        path: Keys::default(),
        open: Vec::new(),
        noted: (Vec::new(), Vec::new()),
    };
    let start = selector.map(|selector| match catalog.leaf(value) {
        Some(_) => selector.root(),
        None => selector.start(),
    });
    let plan = walk.value(value, template, start.as_ref());
    file.get().release();
    let Some(plan) = plan? else {
        return Ok(None);
    };
    walk.parts.finish()?;
    let mut settled = Vec::new();
    if !walk.open.is_empty() {
        let count = walk.open.len();
        let found = settle.call1((new_list_of(py, walk.open)?,))?;
        if found.is_none() {
            return Ok(None);
        }
        settled = grow::with_room(count)?;
        for leaf in found.try_iter()? {
            grow::push(&mut settled, leaf?)?;
        }
        if settled.len() != count {
            return Err(PyRuntimeError::new_err("not as many leaves were settled"));
        }
    }
    match plan.tree(py, &settled) {
        // The other way tells what a type did not like.
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        tree => Ok(Some((tree?, told(py, walk.noted)?))),
    }
}

/// The trails of leaves that come from the file; pairs of the trails of parts of the template that
/// stay, and these parts.
type Noted<'py> = (Vec<Bound<'py, PyAny>>, Vec<Bound<'py, PyAny>>);

fn told<'py>(py: Python<'py>, (loaded, kept): Noted<'py>) -> PyResult<Bound<'py, PyTuple>> {
    let lists = [new_list_of(py, loaded)?, new_list_of(py, kept)?];
    new_tuple_of(py, lists.map(Bound::into_any))
}

/// How a tree is put together.
enum Plan<'py> {
    /// A part of the template, as it is.
    Keep(Bound<'py, PyAny>),
    /// A leaf that was read.
    Leaf(Bound<'py, PyAny>),
    /// The leaf that was settled with this number.
    Settled(usize),
    Dict(Vec<(Bound<'py, PyString>, Self)>),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    /// A container like one of the template.
    Node(Bound<'py, PyAny>, Rc<Fields<'py>>, Vec<Self>),
}

impl<'py> Plan<'py> {
    fn tree(self, py: Python<'py>, settled: &[Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyAny>> {
        let all = |plans: Vec<Self>| -> PyResult<Vec<_>> {
            let mut parts = grow::with_room(plans.len())?;
            for plan in plans {
                parts.push(plan.tree(py, settled)?);
            }
            Ok(parts)
        };
        match self {
            Self::Keep(part) => Ok(part),
            Self::Leaf(leaf) => Ok(leaf),
            Self::Settled(number) => Ok(settled[number].clone()),
            Self::Dict(items) => {
                let dict = new_dict(py)?;
                for (key, plan) in items {
                    dict.set_item(key, plan.tree(py, settled)?)?;
                }
                Ok(dict.into_any())
            }
            Self::List(plans) => Ok(new_list_of(py, all(plans)?)?.into_any()),
            Self::Tuple(plans) => Ok(new_tuple_of(py, all(plans)?)?.into_any()),
            Self::Node(template, fields, plans) => {
                fields.make.call1((template, new_list_of(py, all(plans)?)?))
            }
        }
    }

    fn is_kept(&self) -> bool {
        matches!(self, Self::Keep(_))
    }
}

/// What makes a container of the plans for its children.
enum Container<'py> {
    Dict,
    List,
    Tuple,
    Node(Rc<Fields<'py>>),
}

/// The children of a container of the template, by their names.
type Children<'py> = Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>;

struct Walk<'a, 'py> {
    file: &'a Catalog,
    catalog: &'a catalog::Catalog,
    /// What is meant; everything without.
    marks: Option<&'a catalog::Marks>,
    /// What tells it of paths that the file lacks, if it can be told.
    selector: Option<&'a select::Selector>,
    matching: Matching<'py>,
    parts: Parts<'a, 'py>,
    keeps_missing: bool,
    /// Whether the file may have more than the template; if nothing tells, where that has a dict.
    takes_more: Option<bool>,
    /// Whether paths are noted.
    note: bool,
    signals: Signals,
    /// The names that lead here.
    path: Keys<'py>,
    /// Leaves to be settled: the trail of each, that of the template, and that of the file.
    open: Vec<Bound<'py, PyAny>>,
    noted: Noted<'py>,
}

impl<'py> Walk<'_, 'py> {
    /// What becomes of a part of the template; nothing if that cannot be told here. This and
    /// `children` are the recursion, which must not need much of the stack.
    fn value(
        &mut self,
        value: usize,
        template: &Bound<'py, PyAny>,
        state: Option<&State>,
    ) -> PyResult<Option<Plan<'py>>> {
        self.signals.check(template.py())?;
        let inside = value..self.catalog.after(value);
        let meant = self.marks.is_none_or(|marks| marks.count(inside) > 0);
        if !meant && !self.may_mean(state) {
            return self.keep(template);
        }
        match self.catalog.leaf(value) {
            Some(leaf) => self.leaf(value, leaf, meant, template),
            None if self.catalog.is_list(value) => Ok(None),
            None if self.is_left_out(value, template)? => self.keep(template),
            None => match self.children_of(template)? {
                Some((children, container)) => {
                    self.children(value, template, &children, container, state)
                }
                None => Ok(None),
            },
        }
    }

    /// Whether a leaf that the file lacks may be meant.
    fn may_mean(&self, state: Option<&State>) -> bool {
        let (Some(selector), Some(state)) = (self.selector, state) else {
            return true;
        };
        let undecided = state.meant().is_none() && selector.pattern_count().is_none();
        state.meant() == Some(true) || undecided || selector.goes_on(state)
    }

    /// Whether a part of the template is code, in the place of which nothing was saved.
    #[inline(never)]
    fn is_left_out(&self, value: usize, template: &Bound<'py, PyAny>) -> PyResult<bool> {
        Ok(self.catalog.children(value).next().is_none() && self.matching.is_code(template)?)
    }

    #[inline(never)]
    fn leaf(
        &mut self,
        value: usize,
        leaf: usize,
        meant: bool,
        template: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Plan<'py>>> {
        if !self.matching.is_leaf(template)? {
            return Ok(None);
        }
        if !meant {
            return self.keep(template);
        }
        let found = self
            .file
            .read_leaf(template.py(), value, leaf, &mut self.parts)?;
        let py = template.py();
        if self.note {
            grow::push(&mut self.noted.0, self.path.trail(py)?)?;
        }
        if self.matching.leaf(template, &found)? {
            return Ok(Some(Plan::Leaf(found)));
        }
        let open = [self.path.trail(py)?, template.clone(), found];
        grow::push(&mut self.open, new_tuple_of(py, open)?.into_any())?;
        Ok(Some(Plan::Settled(self.open.len() - 1)))
    }

    #[inline(never)]
    fn keep(&mut self, template: &Bound<'py, PyAny>) -> PyResult<Option<Plan<'py>>> {
        if self.note {
            let py = template.py();
            let kept = new_tuple_of(py, [self.path.trail(py)?, template.clone()])?;
            grow::push(&mut self.noted.1, kept.into_any())?;
        }
        Ok(Some(Plan::Keep(template.clone())))
    }

    /// The children of a container of the template that is of a plain kind.
    #[inline(never)]
    fn children_of(
        &self,
        template: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Children<'py>, Container<'py>)>> {
        let py = template.py();
        let numbered = |elements: &mut dyn ExactSizeIterator<Item = Bound<'py, PyAny>>| {
            let mut children = grow::with_room(elements.len())?;
            for (index, child) in elements.enumerate() {
                let name = new_string(py, index.to_string().as_bytes())?;
                grow::push(&mut children, (name, child))?;
            }
            PyResult::Ok(children)
        };
        if let Ok(dict) = template.cast_exact::<PyDict>() {
            let mut children = grow::with_room(dict.len())?;
            let mut position = 0;
            while let Some((key, child)) = dict_next(dict, &mut position) {
                let Ok(key) = key.cast_into_exact::<PyString>() else {
                    return Ok(None);
                };
                grow::push(&mut children, (key, child))?;
            }
            return Ok(Some((children, Container::Dict)));
        }
        if let Ok(list) = template.cast_exact::<PyList>() {
            return Ok(Some((numbered(&mut list.iter())?, Container::List)));
        }
        if let Ok(tuple) = template.cast_exact::<PyTuple>() {
            return Ok(Some((numbered(&mut tuple.iter())?, Container::Tuple)));
        }
        let Some((fields, children)) = self.matching.fields(template)? else {
            return Ok(None);
        };
        let mut named = grow::with_room(fields.names.len())?;
        for pair in fields.names.iter().cloned().zip(children) {
            grow::push(&mut named, pair)?;
        }
        Ok(Some((named, Container::Node(fields))))
    }

    #[inline(never)]
    fn children(
        &mut self,
        value: usize,
        template: &Bound<'py, PyAny>,
        children: &Children<'py>,
        container: Container<'py>,
        state: Option<&State>,
    ) -> PyResult<Option<Plan<'py>>> {
        let catalog = self.catalog;
        // Most files have the children of the template, in its order.
        let mut next = catalog.children(value).peekable();
        let mut plans = grow::with_room(children.len())?;
        let mut common = 0;
        for (name, child) in children {
            let Ok(key) = name.to_str() else {
                return Ok(None);
            };
            let found = match next.next_if(|found| catalog.key(*found) == key) {
                Some(found) => Some(found),
                None => catalog.find(value, [key], &())?,
            };
            let below = self.selector.zip(state);
            let below = below.map(|(selector, state)| selector.below(state, key));
            self.path.push(name.clone().into_any())?;
            let plan = match found {
                Some(found) => {
                    common += 1;
                    self.value(found, child, below.as_ref())
                }
                None if self.keeps_missing || !self.may_mean(below.as_ref()) => self.keep(child),
                None => Ok(None),
            };
            self.path.pop();
            match plan? {
                Some(plan) => plans.push(plan),
                None => return Ok(None),
            }
        }
        let is_dict = matches!(container, Container::Dict);
        if catalog.children(value).count() > common && !self.takes_more(value, children, is_dict)? {
            return Ok(None);
        }
        Ok(Some(match container {
            _ if !plans.is_empty() && plans.iter().all(Plan::is_kept) => {
                Plan::Keep(template.clone())
            }
            Container::Dict => {
                let mut items = grow::with_room(plans.len())?;
                for ((name, _), plan) in children.iter().zip(plans) {
                    grow::push(&mut items, (name.clone(), plan))?;
                }
                Plan::Dict(items)
            }
            Container::List => Plan::List(plans),
            Container::Tuple => Plan::Tuple(plans),
            Container::Node(fields) => Plan::Node(template.clone(), fields, plans),
        }))
    }

    /// Whether the file may have what it has besides the children of the template.
    #[inline(never)]
    fn takes_more(
        &self,
        value: usize,
        children: &Children<'py>,
        is_dict: bool,
    ) -> Result<bool, Error> {
        let mut names = HashSet::new();
        names.try_reserve(children.len())?;
        names.extend(children.iter().filter_map(|it| it.0.to_str().ok()));
        let mut known = HashSet::new();
        known.try_reserve(names.len())?;
        Ok(self.catalog.children(value).all(|child| {
            let key = self.catalog.key(child);
            if names.contains(key) {
                return known.insert(key); // of two, the general way knows which counts
            }
            let inside = child..self.catalog.after(child);
            let meant = self.marks.is_none_or(|marks| marks.count(inside) > 0);
            !meant || (self.takes_more.unwrap_or(is_dict) && !self.note)
        }))
    }
}
