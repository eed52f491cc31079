//! Restores a template: one walk over the template and the saved data, in any form.
//!
//! ```text
//! template + cursor ──walk──▶ plan, open leaves ──settle──▶ leaves ──▶ tree
//! ```
//!
//! Matching leaves are taken; Python compares and converts the others, in batches. Rust handles
//! exact dicts, lists, tuples and types with fixed fields, if the saved container has their
//! children. Python restores all other parts (`Restore.restore_child`). Most data of templates need no
//! `Restore`, so it may begin during the walk.

use std::cell::OnceCell;

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::super::failure::{Built, Walked};
use super::super::memory::{dict_next, new_dict, new_list_of, new_tuple_of};
use super::super::watch::Signals;
use super::cursor::{Container, Found, Named, TemplateChild};
use super::keys::{Here, Name};
use super::matching::Matching;
use crate::base::grow;
use crate::format::wire::MAX_DEPTH;

enum Plan<'py> {
    Keep(Bound<'py, PyAny>),
    /// A finished part.
    Ready(Bound<'py, PyAny>),
    /// The open leaf with this number.
    Open(usize),
    Node(Box<PlannedNode<'py>>),
    /// A part that Python restores after all leaves are converted.
    Later(Box<Later<'py>>),
}

/// Keys, template and state.
type Later<'py> = (Vec<Bound<'py, PyAny>>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A container, the names of its children if it is a dict, and their plans.
type PlannedNode<'py> = (Container<'py>, Vec<Name<'py>>, Vec<Plan<'py>>);

type Any<'py> = Bound<'py, PyAny>;

/// The `Restore` of `restore/session.py` that a walk is part of.
pub struct Session<'py> {
    restore: OnceCell<Bound<'py, PyAny>>,
    /// If the walk begins it: the function that returns it, and its arguments.
    later: Option<(Any<'py>, (Any<'py>, Any<'py>))>,
    /// The length of its path at the root of the walk.
    depth: usize,
    name: Bound<'py, PyString>,
    /// Whether Python collects leaves, to convert all before nodes are made.
    collects: bool,
    /// Whether this walk makes its tree after that.
    keeps_plan: bool,
    /// The selected leaves, and whether Python notes which are loaded and kept.
    pub partial: Option<Bound<'py, PyAny>>,
    pub notes: bool,
}

impl<'py> Session<'py> {
    /// Reads the `Restore` under way. The walk restores its child of this name.
    pub fn new(
        restore: &Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
        keeps_plan: bool,
    ) -> PyResult<Self> {
        let py = restore.py();
        let partial = restore.getattr(intern!(py, "partial"))?;
        let partial = (!partial.is_none()).then_some(partial);
        let notes = match &partial {
            Some(partial) => partial.getattr(intern!(py, "notes"))?.is_truthy()?,
            None => false,
        };
        Ok(Self {
            depth: restore.getattr(intern!(py, "path"))?.len()?,
            name: name.clone(),
            collects: restore.getattr(intern!(py, "collects"))?.is_truthy()?,
            keeps_plan,
            partial,
            notes,
            restore: OnceCell::from(restore.clone()),
            later: None,
        })
    }

    /// Begins a `Restore` of a whole tree once the walk needs it.
    pub fn later(
        begin: Bound<'py, PyAny>,
        reading: Bound<'py, PyAny>,
        convert: Bound<'py, PyAny>,
        name: &Bound<'py, PyString>,
    ) -> Self {
        Self {
            restore: OnceCell::new(),
            depth: 0,
            name: name.clone(),
            collects: !convert.is_none(),
            later: Some((begin, (reading, convert))),
            keeps_plan: true,
            partial: None,
            notes: false,
        }
    }

    fn restore(&self) -> PyResult<&Bound<'py, PyAny>> {
        if self.restore.get().is_none()
            && let Some((begin, given)) = &self.later
        {
            let _ = self.restore.set(begin.call1(given.clone())?);
        }
        Ok(self.restore.get().expect("it has begun"))
    }

    pub fn matching(&self) -> PyResult<Matching<'py>> {
        let restore = self.restore()?;
        let py = restore.py();
        let flag = |name| restore.getattr(name)?.is_truthy();
        Ok(Matching::new(
            py,
            flag(intern!(py, "strict"))?,
            flag(intern!(py, "converts"))?,
            flag(intern!(py, "everywhere"))?,
        ))
    }

    pub fn absent(&self) -> PyResult<Option<Bound<'py, PyAny>>> {
        let absent = |partial: &Bound<'py, PyAny>| partial.getattr(intern!(partial.py(), "absent"));
        self.partial.as_ref().map(absent).transpose()
    }

    fn restore_child(
        &self,
        keys: &[Bound<'py, PyAny>],
        template: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = template.py();
        let restore = self.restore()?;
        // The list that `current_path` joins.
        let path: Bound<'py, PyList> = restore.getattr(intern!(py, "path"))?.cast_into()?;
        let restore_child = restore.getattr(intern!(py, "restore_child"))?;
        let (name, above) = match keys.split_last() {
            Some((last, above)) => {
                path.append(&self.name)?;
                (last.clone(), above)
            }
            None => (self.name.clone().into_any(), keys),
        };
        let restored = above
            .iter()
            .try_for_each(|key| path.append(key))
            .and_then(|()| restore_child.call1((template, state, name, restore)));
        path.del_slice(self.depth, path.len())?;
        restored
    }
}

pub struct Walk<'py, C> {
    py: Python<'py>,
    pub cursor: C,
    matching: Matching<'py>,
    session: Session<'py>,
    signals: Signals<'py>,
    /// Stacks of children and plans under way, which save small containers an allocation.
    children: Vec<TemplateChild<'py>>,
    plans: Vec<Plan<'py>>,
    /// Leaves that Python has not settled: trail, template, saved leaf.
    open: Vec<Bound<'py, PyAny>>,
    settled: Vec<Bound<'py, PyAny>>,
    /// Trails of loaded leaves; trails and templates of kept parts.
    loaded: Vec<Bound<'py, PyAny>>,
    kept: Vec<Bound<'py, PyAny>>,
}

impl<'py, C: Named<'py>> Walk<'py, C> {
    pub fn new(py: Python<'py>, cursor: C, matching: Matching<'py>, session: Session<'py>) -> Self {
        Self {
            py,
            cursor,
            matching,
            session,
            signals: Signals::new(py),
            children: Vec::new(),
            plans: Vec::new(),
            open: Vec::new(),
            settled: Vec::new(),
            loaded: Vec::new(),
            kept: Vec::new(),
        }
    }

    pub fn restore(&mut self, place: C::Place, template: &Bound<'py, PyAny>) -> Built<'py> {
        let plan = self.value(place, template, &Here::root(None))?;
        self.flush()?;
        self.cursor.copy()?;
        let (py, session) = (self.py, &self.session);
        let Some(restore) = session.restore.get() else {
            return Ok(plan.tree(py, &self.settled, session)?);
        };
        let mismatches = restore.getattr(intern!(py, "mismatches"))?;
        if mismatches.is_truthy()? || (session.collects && !session.keeps_plan) {
            return Ok(template.clone()); // an error follows, or another walk
        }
        if session.collects {
            restore.call_method0(intern!(py, "convert_found"))?;
            for cell in &mut self.settled {
                *cell = cell.get_item(0)?;
            }
        }
        Ok(plan.tree(py, &self.settled, session)?)
    }

    /// Exits the `Restore` that the walk has begun, without an error, and returns it.
    pub fn exit(&self) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(restore) = self.session.restore.get() else {
            return Ok(None);
        };
        let kind = self.py.get_type::<PyException>();
        restore.call_method1(intern!(self.py, "__exit__"), (kind,))?;
        Ok(Some(restore.clone()))
    }

    /// Lets Python settle open leaves, and reports notes, which keeps the order.
    #[inline(never)]
    fn flush(&mut self) -> PyResult<()> {
        let py = self.py;
        let session = &self.session;
        if let Some(partial) = &session.partial
            && session.notes
        {
            let loaded = new_list_of(py, std::mem::take(&mut self.loaded))?;
            let kept = new_list_of(py, std::mem::take(&mut self.kept))?;
            partial.call_method1(intern!(py, "restored"), (loaded, kept))?;
        }
        if self.open.is_empty() {
            return Ok(());
        }
        let count = self.open.len();
        let open = new_list_of(py, std::mem::take(&mut self.open))?;
        let restore = session.restore()?;
        let settled = restore.call_method1(intern!(py, "settle"), (open,))?;
        let settled = settled.cast_into::<PyList>()?;
        assert!(settled.len() == count, "each leaf is settled");
        for leaf in settled {
            grow::push(&mut self.settled, leaf)?;
        }
        Ok(())
    }

    /// Plans a part of the template. Recurses through `node`.
    fn value(
        &mut self,
        place: C::Place,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        self.signals.check(self.py)?;
        // A map in the place of an array is an array in chunks.
        let matching = &self.matching;
        match self.cursor.enter(place, || matching.is_array(template))? {
            Found::Leaf(found) => self.leaf(found, template, here),
            Found::Node(node) => self.node(node, template, here),
            Found::Kept(_) if self.matching.is_leaf(template)? => self.keep(template, here),
            Found::State(state) | Found::Absent(state) | Found::Kept(state) => {
                self.delegate(&state, template, here)
            }
        }
    }

    #[inline(never)]
    fn leaf(
        &mut self,
        found: Bound<'py, PyAny>,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        let is_taken = self.matching.leaf(template, &found)?;
        let is_leaf = |value| self.matching.is_leaf(value);
        if !(is_taken || is_leaf(template)? && is_leaf(&found)?) {
            return self.delegate(&found, template, here);
        }
        if self.session.notes {
            let trail = self.trail(here)?;
            grow::push(&mut self.loaded, trail)?;
        }
        if is_taken {
            return Ok(Plan::Ready(found));
        }
        let open = [self.trail(here)?, template.clone(), found];
        grow::push(&mut self.open, new_tuple_of(self.py, open)?.into_any())?;
        Ok(Plan::Open(self.settled.len() + self.open.len() - 1))
    }

    #[inline(never)]
    fn keep(&mut self, template: &Bound<'py, PyAny>, here: &Here<'_, 'py>) -> Walked<Plan<'py>> {
        if self.session.notes {
            let kept = new_tuple_of(self.py, [self.trail(here)?, template.clone()])?;
            grow::push(&mut self.kept, kept.into_any())?;
        }
        Ok(Plan::Keep(template.clone()))
    }

    fn trail(&self, here: &Here<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        here.trail_from(self.py, || {
            let path_of = intern!(self.py, "path_of");
            let session = &self.session;
            session.restore()?.call_method1(path_of, (&session.name,))
        })
    }

    /// Restores a part in Python.
    #[inline(never)]
    fn delegate(
        &mut self,
        state: &Bound<'py, PyAny>,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        self.flush()?;
        self.cursor.copy()?; // Python may look at arrays
        let session = &self.session;
        let keys = here.names(self.py)?;
        let restored = session.restore_child(&keys, template, state)?;
        Ok(if session.collects && session.keeps_plan {
            Plan::Later(Box::new((keys, template.clone(), state.clone())))
        } else {
            Plan::Ready(restored)
        })
    }

    #[inline(never)] // most values are leaves
    fn node(
        &mut self,
        mut node: C::Node,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        if self.cursor.is_empty(&node) && self.matching.is_code(template)? {
            return self.keep(template, here);
        }
        let (first_child, first_plan) = (self.children.len(), self.plans.len());
        let Some(container) = self.opened(&mut node, template, here)? else {
            self.children.truncate(first_child);
            let state = self.cursor.state(node)?;
            return self.delegate(&state, template, here);
        };
        for index in 0..self.children.len() - first_child {
            let (name, child) = &self.children[first_child + index].clone();
            let plan = match self.cursor.child(&node, index) {
                Some(place) => self.value(place, child, &here.below(name))?,
                None => self.keep(child, &here.below(name))?,
            };
            grow::push(&mut self.plans, plan)?;
        }
        let plan = self.planned(template, container, first_child, first_plan)?;
        self.children.truncate(first_child);
        Ok(plan)
    }

    /// Pushes the children of a container; `None` unless it is of a known kind, and was saved with
    /// these children.
    #[inline(never)]
    fn opened(
        &mut self,
        node: &mut C::Node,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked<Option<Container<'py>>> {
        let first_child = self.children.len();
        let Some(container) = add_children(template, &self.matching, &mut self.children)? else {
            return Ok(None);
        };
        if self.session.depth + here.depth >= MAX_DEPTH {
            return Err(PyValueError::new_err(format!(
                "the tree is nested more than {MAX_DEPTH} levels deep, or contains itself"
            ))
            .into());
        }
        let children = &self.children[first_child..];
        let is_like = self.cursor.pair(node, children, &container)?;
        Ok(is_like.then_some(container))
    }

    #[inline(never)]
    fn planned(
        &mut self,
        template: &Bound<'py, PyAny>,
        container: Container<'py>,
        first_child: usize,
        first_plan: usize,
    ) -> PyResult<Plan<'py>> {
        let plans = &self.plans[first_plan..];
        let is_partial = self.session.partial.is_some();
        let is_kept = |plan: &Plan<'_>| matches!(plan, Plan::Keep(_));
        if is_partial && !plans.is_empty() && plans.iter().all(is_kept) {
            self.plans.truncate(first_plan);
            return Ok(Plan::Keep(template.clone()));
        }
        let is_ready = !matches!(container, Container::Node(..))
            && plans.iter().all(|plan| matches!(plan, Plan::Ready(_)));
        let plans = self.plans.drain(first_plan..);
        let names = self.children[first_child..].iter().map(|(name, _)| name);
        if is_ready {
            let parts = plans.map(|plan| match plan {
                Plan::Ready(part) => part,
                _ => unreachable!("all are ready"),
            });
            return Ok(Plan::Ready(made(self.py, &container, names, parts)?));
        }
        let names = match container {
            Container::Dict => grow::collect(names.cloned())?,
            _ => Vec::new(),
        };
        Ok(Plan::Node(Box::new((
            container,
            names,
            grow::collect(plans)?,
        ))))
    }
}

fn made<'a, 'py: 'a>(
    py: Python<'py>,
    container: &Container<'py>,
    names: impl Iterator<Item = &'a Name<'py>>,
    parts: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    match container {
        Container::List => Ok(new_list_of(py, parts)?.into_any()),
        Container::Tuple => Ok(new_tuple_of(py, parts)?.into_any()),
        Container::Node(template, fields) => fields.make.call1((template, new_list_of(py, parts)?)),
        Container::Dict => {
            let dict = new_dict(py)?;
            for (name, part) in names.zip(parts) {
                match name {
                    Name::Text(text) => dict.set_item(text, part)?, // takes no new reference
                    name => dict.set_item(name.object(py)?, part)?,
                }
            }
            Ok(dict.into_any())
        }
    }
}

#[inline(never)]
fn add_children<'py>(
    template: &Bound<'py, PyAny>,
    matching: &Matching<'py>,
    children: &mut Vec<TemplateChild<'py>>,
) -> PyResult<Option<Container<'py>>> {
    let at = |(index, child)| (Name::Index(index), child);
    if let Ok(dict) = template.cast_exact::<PyDict>() {
        let mut position = 0;
        while let Some((key, child)) = dict_next(dict, &mut position) {
            let Ok(key) = key.cast_into_exact::<PyString>() else {
                return Ok(None);
            };
            grow::push(children, (Name::Text(key), child))?;
        }
        return Ok(Some(Container::Dict));
    }
    if let Ok(list) = template.cast_exact::<PyList>() {
        grow::add_all(children, list.iter().enumerate().map(at))?;
        return Ok(Some(Container::List));
    }
    if let Ok(tuple) = template.cast_exact::<PyTuple>() {
        grow::add_all(children, tuple.iter().enumerate().map(at))?;
        return Ok(Some(Container::Tuple));
    }
    let Some((fields, values)) = matching.fields(template)? else {
        return Ok(None);
    };
    let names = fields.names.iter().cloned().map(Name::Text);
    grow::add_all(children, names.zip(values))?;
    Ok(Some(Container::Node(template.clone(), fields)))
}

impl<'py> Plan<'py> {
    fn tree(
        self,
        py: Python<'py>,
        settled: &[Bound<'py, PyAny>],
        session: &Session<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Keep(part) | Self::Ready(part) => Ok(part),
            Self::Open(number) => Ok(settled[number].clone()),
            Self::Node(node) => {
                let (container, names, plans) = *node;
                let mut parts = grow::with_room(plans.len())?;
                for plan in plans {
                    parts.push(plan.tree(py, settled, session)?);
                }
                made(py, &container, names.iter(), parts.into_iter())
            }
            Self::Later(later) => {
                let (keys, template, state) = *later;
                session.restore_child(&keys, &template, &state)
            }
        }
    }
}
