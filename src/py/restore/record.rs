//! Restores a tree by its record: one walk over the record and the saved data, in order.
//!
//! ```text
//! record + cursor ──walk──▶ plan, open leaves ──convert──▶ leaves ──assembly.rs──▶ tree
//! ```
//!
//! The walk compares containers with the record and collects the leaves that go to devices. A node
//! is made only after all its leaves, because code of its type may look at them.

use std::mem;
use std::rc::Rc;

use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyList, PyMemoryView};

use super::super::classes::is_plain;
use super::super::failure::Walked;
use super::super::hooks::Hooks;
use super::super::memory::{
    copied, dict_next, list_of, list_of_results, new_list_of, new_string, new_tuple_of, new_uint,
};
use super::super::value;
use super::assembly::Assembly;
use super::cursor::{Found, Ordered};
use super::keys::{Here, Name};
use super::nodes::{check_count, damaged, node_at, numbers};
use super::plan::{Names, Options, Parts, Plan, below};
use super::state::State;
use crate::base::grow;
use crate::format::mesh::{Axis, Sharding};
use crate::format::structure::{Kind, Record, Tie};

#[pyfunction]
#[pyo3(signature = (
    state, record, *, convert=None, everywhere=false, unknown_as_dict=false, plain=false,
    placeholders=false, r#static=None, absent=None, at=vec![], parts=None
))]
pub fn assemble<'py>(
    state: Bound<'py, PyAny>,
    record: Option<&[u8]>,
    convert: Option<Bound<'py, PyAny>>,
    everywhere: bool,
    unknown_as_dict: bool,
    plain: bool,
    placeholders: bool,
    r#static: Option<Bound<'py, PyAny>>,
    absent: Option<Bound<'py, PyAny>>,
    at: Vec<(u64, u64)>,
    parts: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = state.py();
    let nbytes = record.map_or(0, <[u8]>::len);
    let record = record.map_or_else(|| Ok(Record::plain()), Record::read)?;
    let root = node_at(&record, &at).map_err(|failure| failure.into_py(py, "loading"))?;
    let options = Options {
        convert,
        everywhere,
        unknown_as_dict,
        only_plain: plain,
        placeholders,
        r#static,
        absent,
        parts,
    };
    let cursor = State {
        exact: false,
        absent: options.absent.clone(),
        kinds: None,
    };
    let mut walk = Walk::new(py, cursor, &record, nbytes, options)?;
    let planned = walk.value(state, root, &Here::root(None));
    walk.tree(planned)
}

#[pyfunction]
#[pyo3(signature = (record, *, unknown_as_dict))]
pub fn record_metadata<'py>(
    py: Python<'py>,
    record: &[u8],
    unknown_as_dict: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let record = Record::read(record)?;
    let Some(metadata) = record.metadata else {
        return Ok(py.None().into_bound(py));
    };
    let value = value::decode_at(py, &metadata, unknown_as_dict);
    value.map_err(|failure| failure.below("metadata").into_py_at(py, "loading"))
}

#[pyfunction]
pub fn record_digests<'py>(
    py: Python<'py>,
    record: &[u8],
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let digests = Record::read(record)?.digests;
    digests.map(|digests| copied(py, &digests)).transpose()
}

#[pyfunction]
pub fn record_ties<'py>(py: Python<'py>, record: &[u8]) -> PyResult<Bound<'py, PyList>> {
    ties(py, &Record::read(record)?)
}

fn ties<'py>(py: Python<'py>, record: &Record) -> PyResult<Bound<'py, PyList>> {
    list_of(
        py,
        record.ties.iter().map(|Tie(first, again)| [first, again]),
    )
}

pub struct Walk<'a, 'py, C> {
    py: Python<'py>,
    pub cursor: C,
    record: &'a Record,
    assembly: Assembly<'a, 'py>,
    /// By index; empty if arrays do not go to devices.
    shardings: Bound<'py, PyList>,
    /// Names of children by type, once needed.
    names: Vec<Option<Rc<Vec<Name<'py>>>>>,
    /// Leaves for Python to convert: trail, `None` as template, leaf, weak dtype, sharding.
    open: Vec<Bound<'py, PyAny>>,
    /// Open leaves in plain parts: container, key, index in `open`.
    places: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>, usize)>,
}

impl<'a, 'py, C: Ordered<'py>> Walk<'a, 'py, C> {
    /// `nbytes` is the size of the record.
    pub fn new(
        py: Python<'py>,
        cursor: C,
        record: &'a Record,
        nbytes: usize,
        options: Options<'py>,
    ) -> PyResult<Self> {
        let is_placed = options.placeholders || options.convert.is_some();
        let shardings = if is_placed {
            &record.shardings[..]
        } else {
            &[]
        };
        Ok(Self {
            py,
            cursor,
            record,
            assembly: Assembly::new(py, record, nbytes, options)?,
            shardings: resolved(py, shardings)?,
            names: grow::filled(None, record.types.len())?,
            open: Vec::new(),
            places: Vec::new(),
        })
    }

    pub fn tree(mut self, planned: Walked<Plan<'py>>) -> PyResult<Bound<'py, PyAny>> {
        if planned.is_ok() {
            self.convert()?;
        }
        let parts = self.assembly.options.parts.clone();
        let tree = self.assembly.root(planned)?;
        match parts {
            Some(parts) if !self.record.ties.is_empty() => {
                let lookups = Hooks::get(self.py)?.lookups.bind(self.py);
                let given = (tree, ties(self.py, self.record)?, parts);
                lookups.call_method1(intern!(self.py, "tied"), given)
            }
            _ => Ok(tree),
        }
    }

    fn convert(&mut self) -> PyResult<()> {
        let convert = self.assembly.options.convert.as_ref();
        let Some(convert) = convert.filter(|_| !self.open.is_empty()) else {
            return Ok(());
        };
        let open = mem::take(&mut self.open);
        let count = open.len();
        let converted = convert.call1((new_list_of(self.py, open)?,))?;
        let converted = converted.cast_into::<PyList>()?;
        assert!(converted.len() == count, "each leaf is converted");
        for (container, key, number) in &self.places {
            container.set_item(key, converted.get_item(*number)?)?;
        }
        self.assembly.leaves = grow::collect(converted.iter())?;
        Ok(())
    }

    pub fn has_raised(&self) -> bool {
        self.assembly.signals.has_raised()
    }

    /// Plans a part of the tree. Recurses through `container`.
    pub fn value(
        &mut self,
        place: C::Place,
        number: usize,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        let kind = &self.record.nodes[number].0;
        let is_container = self.is_container(number);
        if is_container {
            self.assembly.signals.check(self.py)?;
        }
        let options = &self.assembly.options;
        let converts_plain = options.everywhere && options.convert.is_some();
        let is_ready = matches!(kind, Kind::Plain) && !converts_plain;
        match self.cursor.enter(place, || Ok(!is_container))? {
            Found::Leaf(leaf) if is_ready => Ok(Plan::Ready(leaf)),
            Found::Node(node) => self.container(node, number, here),
            Found::Leaf(leaf) | Found::State(leaf) => self.leaf(leaf, number, here),
            Found::Kept(_) | Found::Absent(_) => Ok(Plan::Absent),
        }
    }

    #[inline]
    fn is_container(&self, number: usize) -> bool {
        match self.record.nodes[number].0 {
            Kind::Plain => self.assembly.options.absent.is_some(),
            Kind::Jax | Kind::WeakJax | Kind::Bytearray | Kind::Memoryview => false,
            _ => true,
        }
    }

    #[inline(never)] // most values are leaves
    fn container(
        &mut self,
        mut node: C::Node,
        number: usize,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        let count = self.cursor.count(&node);
        let (mut names, mut parts) = self.opened(&node, number)?;
        for (index, child) in numbers(self.record, number, count).enumerate() {
            let (name, place) = self.next(&mut node, &names, index)?;
            if let Names::Keys(names) = &mut names {
                grow::push(names, name.clone())?;
            }
            let plan = self.value(place, child, &here.below(&name));
            let plan = plan.map_err(|failure| below(failure, &name))?;
            parts.push(plan)?;
        }
        if !self.cursor.leave(&node)? {
            return damaged("a container has more children than it was saved with");
        }
        self.planned(number, names, parts, here)
    }

    // This and `next` are apart to keep frames of the recursion small.
    #[inline(never)]
    fn opened(&mut self, node: &C::Node, number: usize) -> Walked<(Names<'py>, Parts<'py>)> {
        let count = self.cursor.count(node);
        let kind = &self.record.nodes[number].0;
        if !matches!(kind, Kind::Plain) {
            check_count(&self.record.nodes[number], count as u64)?;
        }
        let names = match self.shared_names(kind)? {
            _ if matches!(kind, Kind::List | Kind::Tuple) => Names::Indices,
            Some(shared) if shared.len() == count => Names::Shared(shared),
            _ => Names::Keys(Vec::new()),
        };
        // A damaged file may have any count.
        Ok((names, Parts::Ready(grow::with_room(count.min(1 << 10))?)))
    }

    #[inline(never)]
    fn next(
        &mut self,
        node: &mut C::Node,
        names: &Names<'py>,
        index: usize,
    ) -> Walked<(Name<'py>, C::Place)> {
        let known = match names {
            Names::Indices => Some(Name::Index(index)),
            Names::Shared(shared) => shared.get(index).cloned(),
            Names::Keys(_) => None,
        };
        let next = match known {
            Some(name) => (self.cursor.next_is(node, &name)?).map(|place| (name, place)),
            None => self.cursor.next(node)?,
        };
        match next {
            Some(next) => Ok(next),
            None => damaged("a container has a key that its record does not have"),
        }
    }

    /// Returns the children's names, if all nodes of this type have the same in this order.
    #[inline(never)]
    fn shared_names(&mut self, kind: &Kind) -> PyResult<Option<Rc<Vec<Name<'py>>>>> {
        let class = match kind {
            Kind::Typed(class, _) if C::IS_STRICT => *class as usize,
            _ => return Ok(None),
        };
        let Some((names, _)) = &self.record.types[class].fields else {
            return Ok(None);
        };
        if let Some(known) = &self.names[class] {
            return Ok(Some(known.clone()));
        }
        let mut made = grow::with_room(names.len())?;
        for name in names {
            made.push(Name::Text(new_string(self.py, name)?));
        }
        Ok(Some(self.names[class].insert(Rc::new(made)).clone()))
    }

    #[inline(never)]
    fn planned(
        &mut self,
        number: usize,
        names: Names<'py>,
        parts: Parts<'py>,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        let kind = &self.record.nodes[number].0;
        // Code of types may look at arrays.
        let has_all =
            !matches!(kind, Kind::Typed(..)) || (self.places.is_empty() && self.cursor.is_copied());
        match parts {
            Parts::Ready(built) if has_all => {
                let made = self.assembly.container(number, names, built, here);
                made.map(Plan::Ready)
            }
            parts => Ok(Plan::Node(Box::new((number, names, parts)))),
        }
    }

    #[inline(never)]
    fn leaf(
        &mut self,
        leaf: Bound<'py, PyAny>,
        number: usize,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        Ok(Plan::Ready(match self.record.nodes[number].0 {
            Kind::Plain => return self.plain(leaf, here),
            Kind::Jax | Kind::WeakJax => return self.jax(leaf, number, here),
            Kind::Bytearray => PyByteArray::from(bytes(&leaf)?)?.into_any(),
            Kind::Memoryview => PyMemoryView::from(bytes(&leaf)?)?.into_any(),
            _ => return damaged("expected a container, found a leaf"),
        }))
    }

    fn plain(&mut self, part: Bound<'py, PyAny>, here: &Here<'_, 'py>) -> Walked<Plan<'py>> {
        if part.is_instance_of::<PyUntypedArray>() || self.is_deferred(&part)? {
            return self.open(part, None, None, here);
        }
        self.inside(&part, here)?;
        Ok(Plan::Ready(part))
    }

    fn is_deferred(&self, part: &Bound<'py, PyAny>) -> PyResult<bool> {
        let is_other = is_plain(part)
            || part.is_exact_instance_of::<PyDict>()
            || part.is_exact_instance_of::<PyList>();
        Ok(!is_other && part.hasattr(intern!(self.py, "_deferred"))?)
    }

    fn inside(&mut self, container: &Bound<'py, PyAny>, here: &Here<'_, 'py>) -> Walked {
        if let Ok(dict) = container.cast_exact::<PyDict>() {
            let mut position = 0;
            while let Some((key, child)) = dict_next(dict, &mut position) {
                let name = Name::of(key.clone());
                self.inside_at(container, key, child, &here.below(&name))?;
            }
        } else if let Ok(list) = container.cast_exact::<PyList>() {
            for (index, child) in list.iter().enumerate() {
                let key = new_uint(self.py, index as u64)?.into_any();
                self.inside_at(container, key, child, &here.below(&Name::Index(index)))?;
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn inside_at(
        &mut self,
        container: &Bound<'py, PyAny>,
        key: Bound<'py, PyAny>,
        child: Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked {
        if let Plan::Open(number) = self.plain(child, here)? {
            grow::push(&mut self.places, (container.clone(), key, number))?;
        }
        Ok(())
    }

    fn jax(
        &mut self,
        leaf: Bound<'py, PyAny>,
        number: usize,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        let py = self.py;
        let is_weak = self.record.nodes[number].0 == Kind::WeakJax;
        let split = match self.record.sharding_of(number) {
            Some(number) if number < self.shardings.len() => Some(self.shardings.get_item(number)?),
            _ => None,
        };
        if self.assembly.options.convert.is_some() {
            return self.open(leaf, Some(is_weak), split, here);
        }
        if leaf.is_instance_of::<PyDict>() {
            return damaged(
                "expected an array, found a dict, such as a PRNG key of an unknown \
                 implementation, or any PRNG key if jax is not installed: pip install jax, or leave it out with \
                 treepack.load(exclude=)",
            );
        }
        if self.assembly.options.placeholders
            && (is_weak || split.as_ref().is_some_and(|split| !split.is_none()))
            && leaf.hasattr(intern!(py, "shape"))?
        {
            let shape = leaf.getattr(intern!(py, "shape"))?;
            let dtype = leaf.getattr(intern!(py, "dtype"))?;
            let abstract_array = Hooks::get(py)?.abstract_array.bind(py);
            return Ok(Plan::Ready(
                abstract_array.call1((shape, dtype, is_weak, split))?,
            ));
        }
        Ok(Plan::Ready(leaf))
    }

    fn open(
        &mut self,
        leaf: Bound<'py, PyAny>,
        weak: Option<bool>,
        split: Option<Bound<'py, PyAny>>,
        here: &Here<'_, 'py>,
    ) -> Walked<Plan<'py>> {
        let none = || self.py.None().into_bound(self.py);
        let weak = weak.map_or_else(none, |weak| {
            PyBool::new(self.py, weak).to_owned().into_any()
        });
        let split = split.unwrap_or_else(none);
        let leaf = [here.trail(self.py)?, none(), leaf, weak, split];
        grow::push(&mut self.open, new_tuple_of(self.py, leaf)?.into_any())?;
        Ok(Plan::Open(self.open.len() - 1))
    }
}

/// Makes jax shardings; `None` where devices are missing.
fn resolved<'py>(py: Python<'py>, shardings: &[Sharding]) -> PyResult<Bound<'py, PyList>> {
    let axis = |Axis(name, size, is_explicit): &Axis| {
        let parts = (new_string(py, name)?, *size, *is_explicit);
        Ok(parts.into_pyobject(py)?.into_any())
    };
    let resolve = Hooks::get(py)?.resolve_sharding.bind(py);
    let described = shardings.iter().map(|Sharding { mesh, spec, memory }| {
        let mesh = list_of_results(py, mesh.iter().map(axis))?;
        let spec = list_of_results(py, spec.iter().map(|axes| list_of(py, &axes.0)))?;
        resolve.call1((mesh, spec, list_of(py, memory)?))
    });
    list_of_results(py, described)
}

fn bytes<'a, 'py>(state: &'a Bound<'py, PyAny>) -> Walked<&'a Bound<'py, PyBytes>> {
    match state.cast_exact::<PyBytes>() {
        Ok(bytes) => Ok(bytes),
        Err(_) => damaged("expected bytes, found another value"),
    }
}
