//! Restores a template: one walk over the template and what was saved, in any of its forms.
//!
//! ```text
//! template + cursor ──walk──▶ plan, open leaves ──settle──▶ leaves ──▶ tree
//! ```
//!
//! A leaf that plainly matches is taken. Other leaves are open: Python compares and converts them, many
//! at a time. Exact dicts, lists, tuples and types with fixed fields are handled here if what was saved
//! has their children; Python restores any other part of the template (`template.restore_child`), and
//! reports each difference.
//!
//! No node is made before all leaves are there and match, because code of its type may look at them.

use std::rc::Rc;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::super::failure::Walked;
use super::super::fields::Fields;
use super::super::hooks::Hooks;
use super::super::memory::{dict_next, new_dict, new_list_of, new_tuple_of};
use super::super::watch::Signals;
use super::cursor::{Child, Found, Named, TemplateChild};
use super::keys::{Here, Name};
use super::matching::Matching;
use crate::grow;
use crate::wire::MAX_DEPTH;

/// How a part of the tree is put together; `None` if what was saved cannot be read on.
type Fit<'py> = Walked<Option<Plan<'py>>>;

/// How a tree is put together.
pub enum Plan<'py> {
    /// A part of the template, as it is.
    Keep(Bound<'py, PyAny>),
    /// A part that is there.
    Ready(Bound<'py, PyAny>),
    /// The open leaf with this number.
    Open(usize),
    /// A dict, list or tuple of children with these names.
    Plain(Box<(Container<'py>, Vec<Name<'py>>, Vec<Self>)>),
    /// A container like one of the template.
    Node(Box<PlannedNode<'py>>),
    /// A part that Python restores once all leaves are converted.
    Later(Box<Later<'py>>),
}

/// A container of the template, what makes another one, and the plans for its children.
type PlannedNode<'py> = (Bound<'py, PyAny>, Rc<Fields<'py>>, Vec<Plan<'py>>);

/// A part of the template that Python restores, and its state.
pub struct Later<'py> {
    keys: Vec<Bound<'py, PyAny>>,
    template: Bound<'py, PyAny>,
    state: Bound<'py, PyAny>,
}

/// The container that a plan's children become.
pub enum Container<'py> {
    Dict,
    List,
    Tuple,
    Node(Rc<Fields<'py>>),
}

/// The `Restore` of `restore/session.py` that a walk is part of.
pub struct Session<'py> {
    restore: Bound<'py, PyAny>,
    /// The list that `current_path` joins, and its length at the root of the walk.
    path: Bound<'py, PyList>,
    depth: usize,
    /// The name of the root.
    name: Bound<'py, PyString>,
    /// Whether leaves are collected, to be converted before anything is made of them.
    collects: bool,
    /// Whether this walk makes its tree once they are converted; otherwise another walk does.
    keeps_plan: bool,
    /// The leaves that a selection covers, if there is one, and whether it notes them.
    partial: Option<Bound<'py, PyAny>>,
    notes: bool,
}

impl<'py> Session<'py> {
    /// Reads the restore under way, whose child of this name is restored.
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

    /// How leaves are compared.
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

    /// Whether Python notes the leaves that are loaded and kept.
    pub fn notes(&self) -> bool {
        self.notes
    }

    /// The leaves that a selection covers, if there is one.
    pub fn partial(&self) -> Option<&Bound<'py, PyAny>> {
        self.partial.as_ref()
    }

    /// What stands in states for parts that are not to be loaded, if there may be some.
    pub fn absent(&self) -> PyResult<Option<Bound<'py, PyAny>>> {
        let absent = |partial: &Bound<'py, PyAny>| partial.getattr(intern!(partial.py(), "absent"));
        self.partial.as_ref().map(absent).transpose()
    }

    /// Whether something does not match.
    fn has_mismatches(&self) -> PyResult<bool> {
        let py = self.restore.py();
        self.restore.getattr(intern!(py, "mismatches"))?.is_truthy()
    }

    /// Restores a part of the template in Python.
    fn restore_child(
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

/// A walk over a template.
pub struct Walk<'py, C> {
    py: Python<'py>,
    pub cursor: C,
    pub matching: Matching<'py>,
    /// The restore in Python; without one, the walk ends where only Python knows how to go on.
    session: Option<Session<'py>>,
    pub signals: Signals,
    /// The children of the containers that are being restored, and the plans for those done so far: stacks,
    /// which small containers need no memory of their own for.
    children: Vec<TemplateChild<'py>>,
    plans: Vec<Plan<'py>>,
    /// Open leaves that Python has not settled: the trail of each, the template's, the one found.
    open: Vec<Bound<'py, PyAny>>,
    /// What Python has made of others.
    settled: Vec<Bound<'py, PyAny>>,
    /// The trails of leaves that come from the file, and trails with the parts of the template that
    /// stay.
    loaded: Vec<Bound<'py, PyAny>>,
    kept: Vec<Bound<'py, PyAny>>,
}

impl<'py, C: Named<'py>> Walk<'py, C> {
    pub fn new(
        py: Python<'py>,
        cursor: C,
        matching: Matching<'py>,
        session: Option<Session<'py>>,
    ) -> Self {
        Self {
            py,
            cursor,
            matching,
            session,
            signals: Signals::new(),
            children: Vec::new(),
            plans: Vec::new(),
            open: Vec::new(),
            settled: Vec::new(),
            loaded: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Restores a template as a part of the restore under way.
    pub fn restore(
        mut self,
        place: C::Place,
        template: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let plan = self.value(place, template, &Here::root(None));
        let plan = plan.map_err(|failure| failure.into_py(self.py, "restoring"))?;
        let (Some(plan), Some(_)) = (plan, &self.session) else {
            return Err(PyRuntimeError::new_err("a state has no end"));
        };
        self.flush()?;
        self.cursor.copy()?;
        let session = self.session.as_ref().expect("there is one, as was seen");
        if session.has_mismatches()? || (session.collects && !session.keeps_plan) {
            return Ok(template.clone()); // an error follows, or another walk
        }
        if session.collects {
            session
                .restore
                .call_method0(intern!(self.py, "convert_found"))?;
            for cell in &mut self.settled {
                *cell = cell.get_item(0)?;
            }
        }
        plan.tree(self.py, &self.settled, Some(session))
    }

    /// The open leaves, for Python to settle.
    pub fn take_open(&mut self) -> Vec<Bound<'py, PyAny>> {
        std::mem::take(&mut self.open)
    }

    /// Lets Python settle open leaves, and takes note of others, so that all is noted in order.
    #[inline(never)] // see `value`
    fn flush(&mut self) -> PyResult<()> {
        let py = self.py;
        let Some(session) = &self.session else {
            return Ok(());
        };
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
        let settle = if session.collects && session.keeps_plan {
            intern!(py, "collect")
        } else {
            intern!(py, "settle")
        };
        let settled = session.restore.call_method1(settle, (open,))?;
        let settled = settled.cast_into::<PyList>()?;
        assert!(settled.len() == count, "each leaf is settled");
        for leaf in settled {
            grow::push(&mut self.settled, leaf)?;
        }
        Ok(())
    }

    /// Plans a part of the template. This and `node` are the recursion, which must not need much of the
    /// stack: what they call is not inlined.
    pub fn value(
        &mut self,
        place: C::Place,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        self.signals.check(self.py)?;
        // A map in the place of an array is one in chunks.
        let matching = &self.matching;
        match self.cursor.enter(place, || matching.is_array(template))? {
            Found::Leaf(found) => self.leaf(found, template, here),
            Found::Node(node) => self.node(node, template, here),
            Found::State(state) => self.ask(Some(state), template, here),
            Found::Kept => self.keep(template, here),
            Found::Absent => self.ask_absent(template, here),
        }
    }

    #[inline(never)] // see `value`
    fn leaf(
        &mut self,
        found: Bound<'py, PyAny>,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        let is_taken = self.matching.leaf(template, &found)?;
        let is_leaf = |it| self.matching.is_leaf(it);
        if !(is_taken || is_leaf(template)? && is_leaf(&found)?) {
            return self.ask(Some(found), template, here);
        }
        let notes = self.session.as_ref().is_some_and(|session| session.notes);
        if notes {
            let trail = self.trail(here)?;
            grow::push(&mut self.loaded, trail)?;
        }
        if is_taken {
            return Ok(Some(Plan::Ready(found)));
        }
        let open = [self.trail(here)?, template.clone(), found];
        grow::push(&mut self.open, new_tuple_of(self.py, open)?.into_any())?;
        Ok(Some(Plan::Open(self.settled.len() + self.open.len() - 1)))
    }

    #[inline(never)] // see `value`
    fn keep(&mut self, template: &Bound<'py, PyAny>, here: &Here<'_, 'py>) -> Fit<'py> {
        if self.session.as_ref().is_some_and(|session| session.notes) {
            let kept = new_tuple_of(self.py, [self.trail(here)?, template.clone()])?;
            grow::push(&mut self.kept, kept.into_any())?;
        }
        Ok(Some(Plan::Keep(template.clone())))
    }

    /// The trail of a place.
    fn trail(&self, here: &Here<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let (py, session) = (self.py, &self.session);
        here.trail_from(py, || match session {
            Some(session) => {
                let path_of = intern!(py, "path_of");
                session.restore.call_method1(path_of, (&session.name,))
            }
            None => Hooks::get(py)?.trail.bind(py).call0(),
        })
    }

    /// Restores a part of the template in Python, if that is possible.
    #[inline(never)] // see `value`
    fn ask(
        &mut self,
        state: Option<Bound<'py, PyAny>>,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        let Some(state) = state.filter(|_| self.session.is_some()) else {
            return Ok(None);
        };
        self.flush()?;
        self.cursor.copy()?; // Python may look at arrays
        let session = self.session.as_ref().expect("there is one, as was seen");
        let keys = here.names(self.py)?;
        let restored = session.restore_child(&keys, template, &state)?;
        Ok(Some(if session.collects && session.keeps_plan {
            let template = template.clone();
            Plan::Later(Box::new(Later {
                keys,
                template,
                state,
            }))
        } else {
            Plan::Ready(restored)
        }))
    }

    #[inline(never)] // see `value`
    fn ask_absent(&mut self, template: &Bound<'py, PyAny>, here: &Here<'_, 'py>) -> Fit<'py> {
        let absent = self.session.as_ref().map(Session::absent).transpose()?;
        self.ask(absent.flatten(), template, here)
    }

    #[inline(never)] // see `value`
    fn ask_node(
        &mut self,
        node: C::Node,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        let state = self.cursor.state(node)?;
        self.ask(state, template, here)
    }

    /// A container that was saved.
    #[inline(never)] // most values are leaves
    fn node(
        &mut self,
        mut node: C::Node,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        if self.cursor.is_empty(&node) && self.matching.is_code(template)? {
            let whole = self.cursor.leave(&node)?;
            return if whole {
                self.keep(template, here)
            } else {
                Ok(None)
            };
        }
        let (first_child, first_plan) = (self.children.len(), self.plans.len());
        let Some(container) = self.opened(&mut node, template, here)? else {
            self.children.truncate(first_child);
            return self.ask_node(node, template, here);
        };
        for index in 0..self.children.len() - first_child {
            let (name, child) = &self.children[first_child + index].clone();
            let plan = match self.cursor.child(&mut node, index, name)? {
                Child::At(place) => self.value(place, child, &here.below(name))?,
                Child::Kept => self.keep(child, &here.below(name))?,
                Child::Elsewhere => None,
            };
            let Some(plan) = plan else {
                return Ok(None);
            };
            grow::push(&mut self.plans, plan)?;
        }
        if !self.cursor.leave(&node)? {
            return Ok(None);
        }
        let plan = self.planned(template, container, first_child, first_plan)?;
        self.children.truncate(first_child);
        Ok(Some(plan))
    }

    /// Adds the children of a container of the template to the stack; `None` unless it is of a plain kind,
    /// and like the one saved.
    #[inline(never)] // see `value`
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
        let depth = self.session.as_ref().map_or(0, |session| session.depth);
        if depth + here.depth >= MAX_DEPTH {
            return Err(PyValueError::new_err(format!(
                "the tree is nested more than {MAX_DEPTH} levels deep, or contains itself"
            ))
            .into());
        }
        let is_dict = matches!(container, Container::Dict);
        let children = &self.children[first_child..];
        let is_like = self.cursor.pair(node, children, is_dict)?;
        Ok(is_like.then_some(container))
    }

    /// The plan for a container, which is made at once if it is plain and all of it is there.
    #[inline(never)] // see `value`
    fn planned(
        &mut self,
        template: &Bound<'py, PyAny>,
        container: Container<'py>,
        first_child: usize,
        first_plan: usize,
    ) -> PyResult<Plan<'py>> {
        let plans = &self.plans[first_plan..];
        let is_partial = self
            .session
            .as_ref()
            .is_some_and(|session| session.partial.is_some());
        let is_kept = |plan: &Plan<'_>| matches!(plan, Plan::Keep(_));
        if is_partial && !plans.is_empty() && plans.iter().all(is_kept) {
            self.plans.truncate(first_plan);
            return Ok(Plan::Keep(template.clone()));
        }
        let is_ready = plans.iter().all(|plan| matches!(plan, Plan::Ready(_)));
        let plans = self.plans.drain(first_plan..);
        let names = self.children[first_child..].iter().map(|(name, _)| name);
        Ok(match container {
            Container::Node(fields) => {
                Plan::Node(Box::new((template.clone(), fields, grow::collect(plans)?)))
            }
            container if is_ready => {
                let parts = plans.map(|plan| match plan {
                    Plan::Ready(part) => part,
                    _ => unreachable!("all are ready"),
                });
                Plan::Ready(made(self.py, &container, names, parts)?)
            }
            container => {
                let names = grow::collect(names.cloned())?;
                Plan::Plain(Box::new((container, names, grow::collect(plans)?)))
            }
        })
    }
}

/// A container of a plain kind.
fn made<'a, 'py: 'a>(
    py: Python<'py>,
    container: &Container<'py>,
    names: impl Iterator<Item = &'a Name<'py>>,
    parts: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    match container {
        Container::List => Ok(new_list_of(py, parts)?.into_any()),
        Container::Tuple => Ok(new_tuple_of(py, parts)?.into_any()),
        Container::Dict | Container::Node(_) => {
            let dict = new_dict(py)?;
            for (name, part) in names.zip(parts) {
                match name {
                    Name::Text(text) => dict.set_item(text, part)?,
                    name => dict.set_item(name.object(py)?, part)?,
                }
            }
            Ok(dict.into_any())
        }
    }
}

/// Adds the children of a container of a plain kind; `None` for other parts of a template.
#[inline(never)] // see `Walk::value`
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
    Ok(Some(Container::Node(fields)))
}

impl<'py> Plan<'py> {
    /// Makes the tree, of open leaves once they are settled.
    pub fn tree(
        self,
        py: Python<'py>,
        settled: &[Bound<'py, PyAny>],
        session: Option<&Session<'py>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let all = |plans: Vec<Self>| -> PyResult<Vec<_>> {
            let mut parts = grow::with_room(plans.len())?;
            for plan in plans {
                parts.push(plan.tree(py, settled, session)?);
            }
            Ok(parts)
        };
        match self {
            Self::Keep(part) | Self::Ready(part) => Ok(part),
            Self::Open(number) => Ok(settled[number].clone()),
            Self::Plain(plain) => {
                let (container, names, plans) = *plain;
                made(py, &container, names.iter(), all(plans)?.into_iter())
            }
            Self::Node(node) => {
                let (template, fields, plans) = *node;
                fields.make.call1((template, new_list_of(py, all(plans)?)?))
            }
            Self::Later(later) => {
                let session = session.expect("only a walk with a session has such plans");
                session.restore_child(&later.keys, &later.template, &later.state)
            }
        }
    }
}
