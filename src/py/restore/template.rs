//! Restores a template: one walk over the template and the saved data, in any form.
//!
//! ```text
//! template + cursor ──walk──▶ plan, open leaves ──settle──▶ leaves ──▶ tree
//! ```
//!
//! Matching leaves are taken; Python compares and converts the others, in batches. Rust handles
//! exact dicts, lists, tuples and types with fixed fields, if the saved container has their
//! children. Python restores all other parts (`template.restore_child`).

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::super::failure::Walked;
use super::super::hooks::Hooks;
use super::super::memory::{dict_next, new_dict, new_list_of, new_tuple_of};
use super::super::watch::Signals;
use super::cursor::{Child, Container, Found, Named, TemplateChild};
use super::keys::{Here, Name};
use super::matching::Matching;
use crate::grow;
use crate::wire::MAX_DEPTH;

/// `None` if the walk cannot go on.
type Fit<'py> = Walked<Option<Plan<'py>>>;

pub enum Plan<'py> {
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

/// The `Restore` of `restore/session.py` that a walk is part of.
pub struct Session<'py> {
    restore: Bound<'py, PyAny>,
    /// The list that `current_path` joins; `depth` is its length at the root of the walk.
    path: Bound<'py, PyList>,
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

pub struct Walk<'py, C> {
    py: Python<'py>,
    pub cursor: C,
    pub matching: Matching<'py>,
    /// Without one, the walk ends where it needs Python.
    session: Option<Session<'py>>,
    notes: bool,
    pub signals: Signals<'py>,
    /// Stacks of children and plans under way, which save small containers an allocation.
    children: Vec<TemplateChild<'py>>,
    plans: Vec<Plan<'py>>,
    /// Leaves that Python has not settled: trail, template, saved leaf.
    pub open: Vec<Bound<'py, PyAny>>,
    settled: Vec<Bound<'py, PyAny>>,
    /// Trails of loaded leaves; trails and templates of kept parts.
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
            notes: session.as_ref().is_some_and(|session| session.notes),
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

    pub fn restore(
        mut self,
        place: C::Place,
        template: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let plan = self.value(place, template, &Here::root(None));
        let plan = plan.map_err(|failure| failure.into_py(self.py, "restoring"))?;
        let plan = plan.expect("a walk with a session goes to the end");
        self.flush()?;
        self.cursor.copy()?;
        let session = self.session.as_ref().expect("see above");
        let mismatches = session.restore.getattr(intern!(self.py, "mismatches"))?;
        if mismatches.is_truthy()? || (session.collects && !session.keeps_plan) {
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

    /// Lets Python settle open leaves, and reports notes, which keeps the order.
    #[inline(never)]
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
        let settled = session
            .restore
            .call_method1(intern!(py, "settle"), (open,))?;
        let settled = settled.cast_into::<PyList>()?;
        assert!(settled.len() == count, "each leaf is settled");
        for leaf in settled {
            grow::push(&mut self.settled, leaf)?;
        }
        Ok(())
    }

    /// Plans a part of the template. Recurses through `node`.
    pub fn value(
        &mut self,
        place: C::Place,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        self.signals.check(self.py)?;
        // A map in the place of an array is an array in chunks.
        let matching = &self.matching;
        match self.cursor.enter(place, || matching.is_array(template))? {
            Found::Leaf(found) => self.leaf(found, template, here),
            Found::Node(node) => self.node(node, template, here),
            Found::Kept(_) if self.matching.is_leaf(template)? => self.keep(template, here),
            Found::State(state) | Found::Absent(state) | Found::Kept(state) => {
                self.delegate(Some(state), template, here)
            }
        }
    }

    #[inline(never)]
    fn leaf(
        &mut self,
        found: Bound<'py, PyAny>,
        template: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Fit<'py> {
        let is_taken = self.matching.leaf(template, &found)?;
        let is_leaf = |value| self.matching.is_leaf(value);
        if !(is_taken || is_leaf(template)? && is_leaf(&found)?) {
            return self.delegate(Some(found), template, here);
        }
        if self.notes {
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

    #[inline(never)]
    fn keep(&mut self, template: &Bound<'py, PyAny>, here: &Here<'_, 'py>) -> Fit<'py> {
        if self.notes {
            let kept = new_tuple_of(self.py, [self.trail(here)?, template.clone()])?;
            grow::push(&mut self.kept, kept.into_any())?;
        }
        Ok(Some(Plan::Keep(template.clone())))
    }

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

    /// Restores a part in Python, if there is a session and a state.
    #[inline(never)]
    fn delegate(
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
        let session = self.session.as_ref().expect("checked above");
        let keys = here.names(self.py)?;
        let restored = session.restore_child(&keys, template, &state)?;
        Ok(Some(if session.collects && session.keeps_plan {
            Plan::Later(Box::new((keys, template.clone(), state)))
        } else {
            Plan::Ready(restored)
        }))
    }

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
            let state = self.cursor.state(node)?;
            return self.delegate(state, template, here);
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
        let depth = self.session.as_ref().map_or(0, |session| session.depth);
        if depth + here.depth >= MAX_DEPTH {
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
        let is_partial = self
            .session
            .as_ref()
            .is_some_and(|session| session.partial.is_some());
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
    pub fn tree(
        self,
        py: Python<'py>,
        settled: &[Bound<'py, PyAny>],
        session: Option<&Session<'py>>,
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
                let session = session.expect("only a walk with a session has such plans");
                let (keys, template, state) = *later;
                session.restore_child(&keys, &template, &state)
            }
        }
    }
}
