//! The putting together of a state dict by the record of its structure.
//!
//! It is one recursion, and long because each kind of node can be damaged in its own way.

use std::collections::HashSet;
use std::mem;
use std::rc::Rc;

use pyo3::exceptions::{PyException, PyMemoryError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyList, PyMemoryView, PyString};

use super::super::failure::{Failure, Walked};
use super::super::hashes::{check_hashes, check_key};
use super::super::hooks::Hooks;
use super::super::memory::{
    copied, dict_next, list_of_results, new_list_of, new_string, new_tuple_of,
};
use super::super::watch::Signals;
use super::super::{errors, value};
use super::keys::{Keys, dict_of, is_decimal};
use super::known::{Known, UNFLATTEN, has_holes, is_constant};
use super::nodes::{children, damaged, node_at};
use crate::structure::{Axis, Kind, Node, NodeType, Record, Repeat, Sharding, Value};
use crate::{Error, grow};

/// The tree that a state dict was made of; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (
    state, record, *, convert=None, everywhere=false, unknown_as_dict=false, plain=false,
    placeholders=false, r#static=None, absent=None, at=vec![]
))]
#[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)] // they have names in Python
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
) -> PyResult<Bound<'py, PyAny>> {
    let py = state.py();
    let budget = FILLED_BYTES.saturating_add(8 * record.map_or(0, <[u8]>::len));
    let record = record.map_or_else(|| Ok(Record::plain()), Record::read)?;
    let is_placed = placeholders || convert.is_some();
    let shardings = if is_placed {
        &record.shardings[..]
    } else {
        &[]
    };
    let mut assembly = Assembly {
        py,
        signals: Signals::new(),
        record: &record,
        types: grow::filled(Asked::NotYet, record.types.len())?,
        decoded: grow::filled(None, record.nodes.len())?,
        code: Vec::new(),
        unknown: HashSet::new(),
        with_holes: HashSet::new(),
        unfilled: Vec::new(),
        told: 0,
        room: budget,
        placeholders,
        make: if placeholders {
            "unflatten_abstract"
        } else {
            UNFLATTEN
        },
        unknown_as_dict,
        plain,
        fillings: r#static.unwrap_or_else(|| py.None().into_bound(py)),
        path: Keys::default(),
        shardings: resolved(py, shardings)?,
        leaves: None,
        absent,
    };
    let root = node_at(&record, &at).map_err(|failure| failure.into_py(py, "loading"))?;
    let mut found = Vec::new();
    let has_arrays = record
        .nodes
        .iter()
        .any(|Node(kind, _)| matches!(kind, Kind::Jax | Kind::WeakJax));
    let done = match convert.filter(|_| has_arrays || everywhere) {
        None => assembly.node(state, root),
        Some(convert) => assembly.collect(&state, root, &mut found).and_then(|()| {
            if found.is_empty() && !everywhere {
                return assembly.node(state, root);
            }
            let found = new_list_of(py, found)?;
            let converted = convert.call1((&found,))?.cast_into::<PyList>()?;
            if converted.len() != found.len() {
                return Err(
                    PyTypeError::new_err("convert returned another number of leaves").into(),
                );
            }
            assembly.leaves = Some((converted, 0));
            assembly.node(state, root)
        }),
    };
    let done = assembly.told(done);
    done.map_err(|failure| failure.into_py(py, "loading"))
}

/// The value in the record that a user has added, or `None`; see `_core.pyi`.
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

/// The type of places where code was.
const CODE: &str = "treepack.code";

/// So many bytes of static data are filled for any record.
const FILLED_BYTES: usize = 8 << 20;

pub(super) type Assembled<'py> = Walked<Bound<'py, PyAny>>;

pub(super) struct Assembly<'a, 'py> {
    pub(super) py: Python<'py>,
    signals: Signals,
    pub(super) record: &'a Record,
    /// What is known of each type, once it has been asked for.
    types: Vec<Asked<'py>>,
    /// What has been decoded for each node: many children may be the same node.
    decoded: Vec<Option<Bound<'py, PyAny>>>,
    /// Whether something in or below each node could be called; empty until it is needed.
    code: Vec<bool>,
    /// The nodes that cannot be what they were, wherever they are: dicts take their places.
    unknown: HashSet<usize>,
    /// The nodes of these whose static data have holes.
    with_holes: HashSet<usize>,
    /// What tells of holes that nothing fills, and how many they are.
    unfilled: Vec<Bound<'py, PyAny>>,
    told: usize,
    /// How many bytes of static data may still be filled.
    room: usize,
    /// Whether the arrays are placeholders.
    placeholders: bool,
    /// What of a type makes nodes.
    make: &'static str,
    unknown_as_dict: bool,
    /// Whether containers become dicts and lists.
    plain: bool,
    /// What fills the holes of static data.
    fillings: Bound<'py, PyAny>,
    /// The keys that lead to the node that is being put together.
    path: Keys<'py>,
    /// How arrays are split over devices, by number; empty if they do not go to devices.
    shardings: Bound<'py, PyList>,
    /// What takes the place of the arrays of jax, in order, and how many are used.
    leaves: Option<(Bound<'py, PyList>, usize)>,
    /// What stands where nothing is to be loaded.
    pub(super) absent: Option<Bound<'py, PyAny>>,
}

/// What has become of a question for a type.
#[derive(Clone)]
enum Asked<'py> {
    NotYet,
    Known(Rc<Known<'py>>),
    /// There is none, and dicts take the place of its nodes.
    Unknown,
}

impl<'py> Assembly<'_, 'py> {
    /// What a node makes of its state. This and `built` are the recursion, as deep as the
    /// state, which must not need much of the stack: what they call is not inlined.
    fn node(&mut self, state: Bound<'py, PyAny>, node: usize) -> Assembled<'py> {
        self.signals.check(self.py)?;
        let Node(kind, repeats) = &self.record.nodes[node];
        if self.is_absent(&state) {
            return Ok(state);
        }
        match kind {
            Kind::Plain if self.absent.is_some() => self.pruned(state),
            Kind::Plain => Ok(state),
            Kind::Jax | Kind::WeakJax | Kind::Bytearray | Kind::Memoryview => {
                self.leaf(node, state)
            }
            Kind::Dict | Kind::DictWithKeys(_) | Kind::List | Kind::Tuple | Kind::Typed(..) => {
                let dict = children(&state, &self.record.nodes[node])?;
                let built = self.built(dict, repeats)?;
                if self.absent.is_some() && built.iter().any(|child| self.is_absent(child)) {
                    return self.partial(dict, &built);
                }
                self.container(node, dict, built)
            }
        }
    }

    /// The children of a container, which take the places of their states in the dict, too.
    fn built(
        &mut self,
        dict: &Bound<'py, PyDict>,
        repeats: &[Repeat],
    ) -> Walked<Vec<Bound<'py, PyAny>>> {
        let mut built = grow::with_room(dict.len())?;
        let mut position = 0;
        for Repeat(count, child) in repeats {
            let is_plain = self.absent.is_none()
                && matches!(self.record.nodes[*child as usize].0, Kind::Plain);
            for _ in 0..*count {
                let Some((key, state)) = dict_next(dict, &mut position) else {
                    return damaged("a dict has lost a key");
                };
                if is_plain {
                    grow::push(&mut built, state)?;
                    continue;
                }
                let before = state.as_ptr();
                self.path.push(key)?;
                let value = self.node(state, *child as usize);
                let key = self.path.pop();
                let value = value.map_err(|failure| failure.below(text(key.as_ref())))?;
                if let Some(key) = key
                    && value.as_ptr() != before
                {
                    // Frees the state, so that what Python's garbage collector goes through does
                    // not grow.
                    dict.set_item(key, &value)?;
                }
                grow::push(&mut built, value)?;
            }
        }
        Ok(built)
    }

    #[inline(never)] // see `node`
    fn leaf(&mut self, node: usize, state: Bound<'py, PyAny>) -> Assembled<'py> {
        let py = self.py;
        let kind = &self.record.nodes[node].0;
        let split = self.split(node)?;
        Ok(match (kind, &mut self.leaves) {
            (Kind::Jax | Kind::WeakJax, Some((leaves, used))) => {
                *used += 1;
                leaves.get_item(*used - 1)?
            }
            (Kind::Jax | Kind::WeakJax, None) if state.is_instance_of::<PyDict>() => {
                return damaged(
                    "there is a dict where an array was saved, such as a PRNG key of an \
                     implementation that is not known here, or any where jax is not installed",
                );
            }
            (Kind::Jax | Kind::WeakJax, None)
                if self.placeholders
                    && (*kind == Kind::WeakJax || !split.is_none())
                    && state.hasattr(intern!(py, "shape"))? =>
            {
                let shape = state.getattr(intern!(py, "shape"))?;
                let dtype = state.getattr(intern!(py, "dtype"))?;
                let abstract_array = Hooks::get(py)?.abstract_array.bind(py);
                abstract_array.call1((shape, dtype, *kind == Kind::WeakJax, split))?
            }
            (Kind::Bytearray, _) => PyByteArray::from(bytes(&state)?)?.into_any(),
            (Kind::Memoryview, _) => PyMemoryView::from(bytes(&state)?)?.into_any(),
            _ => state,
        })
    }

    /// A container with these children, which the dict has, too.
    #[inline(never)] // see `node`
    fn container(
        &mut self,
        node: usize,
        dict: &Bound<'py, PyDict>,
        built: Vec<Bound<'py, PyAny>>,
    ) -> Assembled<'py> {
        Ok(match &self.record.nodes[node].0 {
            Kind::Tuple if !self.plain => {
                indexed(dict)?;
                new_tuple_of(self.py, built)?.into_any()
            }
            Kind::List | Kind::Tuple => {
                indexed(dict)?;
                new_list_of(self.py, built)?.into_any()
            }
            Kind::Typed(class, data) if self.plain => {
                self.plain_node(node, *class as usize, data, dict, built)?
            }
            _ if self.unknown.contains(&node) => dict.clone().into_any(),
            Kind::Typed(class, data) => match self.typed(node, *class as usize, data, dict, &built)
            {
                Err(failure) if self.is_unknown(&failure) => dict.clone().into_any(),
                done => done?,
            },
            Kind::DictWithKeys(keys) => match self.keys(node, keys) {
                Err(failure) if self.is_unknown(&failure) => dict.clone().into_any(),
                keys => with_keys(&keys?, built)?,
            },
            _ => dict.clone().into_any(),
        })
    }

    /// A dict in the place of a node, with the keys of the mapping that it was, or `None` of code.
    #[inline(never)] // see `node`
    fn plain_node(
        &mut self,
        node: usize,
        class: usize,
        data: &[u8],
        dict: &Bound<'py, PyDict>,
        built: Vec<Bound<'py, PyAny>>,
    ) -> Assembled<'py> {
        if self.record.types[class].name == CODE {
            return Ok(self.py.None().into_bound(self.py));
        }
        if let Value::Tuple(parts) = Value::decode(data)?
            && let Some(Value::List(keys)) = parts.into_iter().next()
            && keys.len() == built.len()
            && keys.iter().all(Value::is_simple)
        {
            let keys = self.keys(node, &Value::List(keys).encode()?)?;
            let list = keys.cast::<PyList>()?;
            for (key, name) in list.iter().zip(dict.keys()) {
                if !key.str()?.into_any().eq(name)? {
                    return Ok(dict.clone().into_any());
                }
            }
            return with_keys(&keys, built);
        }
        Ok(dict.clone().into_any())
    }

    /// Whether a dict is to take the place of what has failed.
    fn is_unknown(&self, failure: &Failure) -> bool {
        let unknown = |error: &PyErr| {
            ["UnregisteredTypeError", "HoleError"]
                .iter()
                .any(|name| errors::is(self.py, error, name))
        };
        self.unknown_as_dict && failure.raised().is_some_and(unknown)
    }

    /// The keys of a dict. They do not change, so equal dicts can have the same.
    fn keys(&mut self, node: usize, keys: &[u8]) -> Assembled<'py> {
        if let Some(known) = &self.decoded[node] {
            return Ok(known.clone());
        }
        let keys = value::decode(self.py, keys);
        let keys = keys.map_err(|error| self.remembered(node, error.into()))?;
        if let Ok(keys) = keys.cast_exact::<PyList>() {
            keys.iter().try_for_each(|key| check_key(&key))?;
        }
        check_hashes(&keys).map_err(|error| unhashable(self.py, error))?;
        self.decoded[node] = Some(keys.clone());
        Ok(keys)
    }

    /// An object of a registered type.
    fn typed(
        &mut self,
        node: usize,
        class: usize,
        data: &[u8],
        dict: &Bound<'py, PyDict>,
        built: &[Bound<'py, PyAny>],
    ) -> Assembled<'py> {
        let py = self.py;
        let found = &self.record.types[class];
        let class = match &self.types[class] {
            Asked::Known(known) => known.clone(),
            Asked::NotYet => self.find(class)?,
            Asked::Unknown => return Err(self.no_type()),
        };
        let of_type = |error: PyErr| {
            if error.is_instance_of::<PyMemoryError>(py)
                || !error.is_instance_of::<PyException>(py)
                || errors::is(py, &error, "TreepackError")
            {
                error.into()
            } else {
                Failure::node(&found.name, error)
            }
        };
        let nbytes = data.len();
        let data = if let Some(known) = &self.decoded[node] {
            known.clone()
        } else {
            if has_holes(data) {
                self.with_holes.try_reserve(1).map_err(Error::from)?;
                self.with_holes.insert(node);
            }
            let data = new_tuple_of(py, [copied(py, data)?.into_any()])?;
            let data = class.decode.call1(data).map_err(of_type);
            let data = data.map_err(|failure| self.remembered(node, failure))?;
            if is_constant(&data)? {
                self.decoded[node] = Some(data.clone());
            }
            data
        };
        let data = if self.with_holes.contains(&node) {
            if self.unknown_as_dict && self.fillings.is_none() {
                self.unknown.insert(node);
            }
            let (data, unfilled) = self.filled(data, nbytes, &class.class)?;
            if let Some(unfilled) = unfilled {
                // All of them are told at once; until then this is a dict.
                grow::push(&mut self.unfilled, unfilled)?;
                return Ok(dict.clone().into_any());
            }
            data
        } else {
            data
        };
        if class.foreign && self.code_below(node)? {
            let reason = format!(
                "code of a library makes nodes of the type '{}', and receives no functions from \
                 files, such as those in the nodes below; pass a template as target, or \
                 unknown=\"dict\" to get dicts in their place",
                found.name
            );
            let error = errors::make(py, "UnregisteredTypeError", (reason,)).into();
            return Err(self.remembered(node, error));
        }
        if let Some(made) = class.made(dict, built, &data).map_err(of_type)? {
            return Ok(made);
        }
        let names = new_list_of(py, keys(dict))?;
        let children = new_list_of(py, built.iter().cloned())?;
        let parts = new_tuple_of(py, [data, names.into_any(), children.into_any()])?;
        class.make.call1(parts).map_err(of_type)
    }

    /// Whether static data or keys of the nodes below one could be called.
    #[inline(never)] // see `node`
    fn code_below(&mut self, node: usize) -> Walked<bool> {
        let below = |node: &Node, code: &[bool]| {
            let mut children = node.1.iter();
            children.any(|Repeat(_, child)| code[*child as usize])
        };
        if self.code.is_empty() {
            let holds_code = Hooks::get(self.py)?.holds_code.bind(self.py);
            let mut code = grow::with_room(self.record.nodes.len())?;
            for node in &self.record.nodes {
                self.signals.check(self.py)?;
                let own = match &node.0 {
                    Kind::Typed(_, data) | Kind::DictWithKeys(data) => {
                        holds_code.call1((copied(self.py, data)?,))?.is_truthy()?
                    }
                    _ => false,
                };
                code.push(own || below(node, &code)); // children come first
            }
            self.code = code;
        }
        Ok(below(&self.record.nodes[node], &self.code))
    }

    /// Asks for a type.
    #[inline(never)]
    fn find(&mut self, class: usize) -> Walked<Rc<Known<'py>>> {
        let py = self.py;
        let NodeType {
            name,
            fields,
            version,
        } = &self.record.types[class];
        let find = Hooks::get(py)?.find_node_type.bind(py);
        let found = find.call1((name, fields, version, self.unknown_as_dict, &self.fillings));
        let found = found.map_err(|error| self.unknown_types(error))?;
        if found.is_none() {
            self.types[class] = Asked::Unknown;
            return Err(self.no_type());
        }
        let known = Rc::new(Known::of(&found, self.make)?);
        self.types[class] = Asked::Known(known.clone());
        Ok(known)
    }

    /// The error about a type that nothing knows, which tells all of them.
    fn unknown_types(&self, error: PyErr) -> PyErr {
        let py = self.py;
        if self.absent.is_some() || !errors::is(py, &error, "UnregisteredTypeError") {
            return error; // other types may be those of leaves that are not meant
        }
        let told = || {
            let names = self.record.types.iter();
            let names = names.map(|it| Ok(new_string(py, it.name.as_bytes())?.into_any()));
            let names = list_of_results(py, names)?;
            Hooks::get(py)?
                .unknown_types
                .bind(py)
                .call1((names, error.value(py)))
        };
        told().map_or_else(|error| error, PyErr::from_value)
    }

    /// How it is told that there is no type, where `unknown_as_dict` is set.
    #[allow(clippy::unnecessary_box_returns)] // see `Walked`
    fn no_type(&self) -> Box<Failure> {
        errors::make(self.py, "UnregisteredTypeError", ("",)).into()
    }

    /// A failure of what is the same for a node wherever it is, which need not be tried again.
    #[allow(clippy::unnecessary_box_returns)] // see `Walked`
    fn remembered(&mut self, node: usize, failure: Box<Failure>) -> Box<Failure> {
        if self.is_unknown(&failure) {
            self.unknown.insert(node);
        }
        failure
    }

    /// Static data of so many bytes, of the node at `path`, with their holes filled, and what tells of others.
    #[inline(never)]
    fn filled(
        &mut self,
        data: Bound<'py, PyAny>,
        nbytes: usize,
        class: &Bound<'py, PyAny>,
    ) -> Walked<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let py = self.py;
        // Many nodes may share the data, and each is filled by itself.
        let Some(room) = self.room.checked_sub(nbytes) else {
            self.unfilled.clear(); // filling those would not help
            let reason = "filling in static data that were not saved takes too long: too many nodes \
                          share large ones; pass a template as target, or unknown=\"dict\" to get \
                          dicts in their place";
            return Err(errors::make(py, "TreepackError", (reason,)).into());
        };
        self.room = room;
        let path = new_list_of(py, self.path.iter())?;
        let fill = Hooks::get(py)?.fill_holes.bind(py);
        let told = (!self.unknown_as_dict).then_some(self.told);
        let filled = fill.call1((data, path, &self.fillings, class, told))?;
        let (data, unfilled): (_, Option<Bound<'py, PyAny>>) = filled.extract()?;
        if let Some(unfilled) = &unfilled {
            self.told += unfilled.getattr(intern!(py, "lines"))?.len()?;
        }
        Ok((data, unfilled))
    }

    /// The tree, or what is wrong with it: unknown types before holes, and holes before what code
    /// of types says of dicts in the places of nodes with holes.
    fn told(&mut self, done: Assembled<'py>) -> Assembled<'py> {
        let unfilled = mem::take(&mut self.unfilled);
        let is_first = |failure: &Failure| {
            let unknown = |error| errors::is(self.py, error, "UnregisteredTypeError");
            failure.must_be_raised(self.py) || failure.raised().is_some_and(unknown)
        };
        match done {
            _ if unfilled.is_empty() => done,
            Err(failure) if is_first(&failure) => Err(failure),
            _ => {
                let error = Hooks::get(self.py)?.hole_error.bind(self.py);
                let error = error.call1((new_list_of(self.py, unfilled)?,))?;
                Err(PyErr::from_value(error).into())
            }
        }
    }

    /// The sharding for a node, or `None`.
    fn split(&self, node: usize) -> PyResult<Bound<'py, PyAny>> {
        match self.record.sharding_of(node) {
            Some(number) if number < self.shardings.len() => self.shardings.get_item(number),
            _ => Ok(self.py.None().into_bound(self.py)),
        }
    }

    /// Collects all arrays of jax in the order in which `node` comes by them: their trails,
    /// nothing for the template that there is not, their states, whether they are weak, and
    /// their shardings.
    fn collect(
        &mut self,
        state: &Bound<'py, PyAny>,
        node: usize,
        found: &mut Vec<Bound<'py, PyAny>>,
    ) -> Walked {
        self.signals.check(self.py)?;
        let number = node;
        let node = &self.record.nodes[node];
        if self.is_absent(state) {
            return Ok(());
        }
        if matches!(node.0, Kind::Jax | Kind::WeakJax) {
            let path = self.path.trail(self.py)?;
            let no_template = self.py.None().into_bound(self.py);
            let weak = PyBool::new(self.py, node.0 == Kind::WeakJax);
            let weak = weak.to_owned().into_any();
            let split = self.split(number)?;
            let leaf = new_tuple_of(self.py, [path, no_template, state.clone(), weak, split])?;
            grow::push(found, leaf.into_any())?;
        } else if !node.1.is_empty() {
            let dict = children(state, node)?;
            let mut position = 0;
            for Repeat(count, child) in &node.1 {
                for _ in 0..*count {
                    let Some((key, state)) = dict_next(dict, &mut position) else {
                        return damaged("a dict has lost a key");
                    };
                    self.path.push(key)?;
                    let done = self.collect(&state, *child as usize, found);
                    let key = self.path.pop();
                    done.map_err(|failure| failure.below(text(key.as_ref())))?;
                }
            }
        }
        Ok(())
    }
}

/// The shardings of a record, each as an object of jax, or `None` where the devices for it are not
/// there.
fn resolved<'py>(py: Python<'py>, shardings: &[Sharding]) -> PyResult<Bound<'py, PyList>> {
    let texts = |texts: &[String]| {
        let texts = texts
            .iter()
            .map(|it| Ok(new_string(py, it.as_bytes())?.into_any()));
        Ok(list_of_results(py, texts)?.into_any())
    };
    let axis = |Axis(name, size, is_explicit): &Axis| {
        let parts = (new_string(py, name.as_bytes())?, *size, *is_explicit);
        Ok(parts.into_pyobject(py)?.into_any())
    };
    let resolve = Hooks::get(py)?.resolve_sharding.bind(py);
    let found = shardings.iter().map(|Sharding { mesh, spec, memory }| {
        let mesh = list_of_results(py, mesh.iter().map(axis))?;
        let spec = list_of_results(py, spec.iter().map(|axes| texts(&axes.0)))?;
        resolve.call1((mesh, spec, texts(memory)?))
    });
    list_of_results(py, found)
}

/// The keys of a dict, in order.
fn keys<'py>(dict: &Bound<'py, PyDict>) -> Vec<Bound<'py, PyAny>> {
    let mut keys = Vec::with_capacity(dict.len());
    let mut position = 0;
    while let Some((key, _)) = dict_next(dict, &mut position) {
        keys.push(key);
    }
    keys
}

/// A key, for a path.
fn text<'a>(key: Option<&'a Bound<'_, PyAny>>) -> &'a str {
    let key = key.and_then(|key| key.cast::<PyString>().ok());
    key.and_then(|key| key.to_str().ok()).unwrap_or_default()
}

/// A dict of children with other keys.
fn with_keys<'py>(keys: &Bound<'py, PyAny>, built: Vec<Bound<'py, PyAny>>) -> Assembled<'py> {
    let py = keys.py();
    let keys = match keys.cast::<PyList>() {
        Ok(keys) if keys.len() == built.len() => keys,
        Ok(_) => return damaged("there is another number of keys"),
        Err(_) => return damaged("the keys of a dict are no list"),
    };
    let count = built.len();
    let dict = dict_of(py, keys.iter(), built).map_err(|error| unhashable(py, error))?;
    if dict.len() != count {
        return damaged("a key occurs twice");
    }
    Ok(dict.into_any())
}

/// The failure for a key that Python does not take.
#[allow(clippy::unnecessary_box_returns)] // see `Walked`
fn unhashable(py: Python<'_>, error: PyErr) -> Box<Failure> {
    if error.is_instance_of::<PyMemoryError>(py)
        || !error.is_instance_of::<PyException>(py)
        || errors::is(py, &error, "TreepackError")
    {
        return error.into();
    }
    Failure::structure(format!("a key cannot be hashed: {error}"))
}

/// Checks that the keys of a dict are those of a list.
fn indexed(dict: &Bound<'_, PyDict>) -> Walked {
    let mut position = 0;
    let mut index = 0;
    while let Some((key, _)) = dict_next(dict, &mut position) {
        let text = key.cast::<PyString>().ok();
        let text = text.and_then(|key| key.to_str().ok());
        if !text.is_some_and(|text| is_decimal(text.as_bytes(), index)) {
            return damaged(format!("an element of a list has the key {key}"));
        }
        index += 1;
    }
    Ok(())
}

fn bytes<'a, 'py>(state: &'a Bound<'py, PyAny>) -> Walked<&'a Bound<'py, PyBytes>> {
    match state.cast_exact::<PyBytes>() {
        Ok(bytes) => Ok(bytes),
        Err(_) => damaged("there is something else where bytes were saved"),
    }
}
