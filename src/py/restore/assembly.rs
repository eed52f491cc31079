//! Makes the planned nodes of a record from their children and static data.

use std::collections::HashSet;
use std::mem;
use std::rc::Rc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::super::failure::{Built, Failure, Walked};
use super::super::hashes::{check_hashes, check_key};
use super::super::hooks::Hooks;
use super::super::memory::{copied, list_of_results, new_dict, new_list_of, new_tuple_of, row};
use super::super::watch::Signals;
use super::super::{errors, value};
use super::keys::Here;
use super::known::{Known, is_constant};
use super::nodes::damaged;
use super::plan::{Names, Options, Parts, Plan, PlannedNode, below};
use crate::base::grow;
use crate::format::structure::{self, Kind, Node, Record, Repeat, Value};

/// Part of all encoded placeholders; see `registry/placeholders.py`.
const PLACEHOLDER: &[u8] = structure::PLACEHOLDER.as_bytes();

/// The type of placeholders for code.
const CODE: &str = "treepack.code";

/// Bytes of static data that may be restored again for any record, see `room`.
const AGAIN_BYTES: usize = 32 << 20;

/// Static data up to this number of bytes take no room, like a value.
const SMALL_BYTES: usize = 300;

/// The source of the keys of a dict in place of a node.
#[derive(Clone)]
enum Plain<'py> {
    Names,
    /// The keys of a mapping, and their texts: if these are the names of the children, the keys.
    Keys(Bound<'py, PyAny>, Bound<'py, PyList>),
}

pub struct Assembly<'a, 'py> {
    py: Python<'py>,
    pub(super) signals: Signals<'py>,
    record: &'a Record,
    pub(super) options: Options<'py>,
    pub(super) leaves: Vec<Bound<'py, PyAny>>,
    types: Vec<Option<Rc<Known<'py>>>>,
    /// Static data or keys by node, and whether they have placeholders: many children may be the
    /// same node.
    decoded: Vec<Option<(Bound<'py, PyAny>, bool)>>,
    /// By node; filled when needed.
    plain: Vec<Option<Plain<'py>>>,
    /// Whether code is in or below each node; filled when needed.
    code: Vec<bool>,
    /// Nodes that become dicts wherever they are.
    unknown: HashSet<usize>,
    /// See `registry/lookups.py`; made when needed.
    lookups: Option<Bound<'py, PyAny>>,
    /// Whether placeholders have no value, which `lookups` describes.
    has_unfilled: bool,
    /// Nodes whose static data were decoded.
    known: Vec<bool>,
    /// Bytes of static data that may still be filled, or decoded once more: nodes may share data,
    /// and each is filled separately, and has its own where they can change.
    room: usize,
}

impl<'a, 'py> Assembly<'a, 'py> {
    /// `nbytes` is the size of the record.
    pub fn new(
        py: Python<'py>,
        record: &'a Record,
        nbytes: usize,
        options: Options<'py>,
    ) -> PyResult<Self> {
        Ok(Self {
            py,
            signals: Signals::new(py),
            record,
            leaves: Vec::new(),
            types: grow::filled(None, record.types.len())?,
            decoded: grow::filled(None, record.nodes.len())?,
            plain: Vec::new(),
            code: Vec::new(),
            unknown: HashSet::new(),
            lookups: None,
            has_unfilled: false,
            known: grow::filled(false, record.nodes.len())?,
            room: AGAIN_BYTES.saturating_add(8 * nbytes),
            options,
        })
    }

    pub fn root(mut self, planned: Walked<Plan<'py>>) -> PyResult<Bound<'py, PyAny>> {
        let absent = self.options.absent.clone();
        let tree = planned.and_then(|plan| self.tree(plan, &Here::root(None)));
        let tree = tree.map(|tree| tree.or(absent).expect("only a part may be absent"));
        let tree = self.first_error(tree);
        tree.map_err(|failure| failure.into_py(self.py, "loading"))
    }

    /// Makes a part of the tree; `None` if nothing in it was selected. Recurses through `node`.
    fn tree(&mut self, plan: Plan<'py>, here: &Here<'_, 'py>) -> Walked<Option<Bound<'py, PyAny>>> {
        match plan {
            Plan::Ready(part) => Ok(Some(part)),
            Plan::Open(number) => Ok(Some(self.leaves[number].clone())),
            Plan::Absent => Ok(None),
            Plan::Node(node) => self.node(node, here),
        }
    }

    #[allow(clippy::boxed_local)]
    fn node(
        &mut self,
        node: Box<PlannedNode<'py>>,
        here: &Here<'_, 'py>,
    ) -> Walked<Option<Bound<'py, PyAny>>> {
        self.signals.check(self.py)?;
        let (number, names, parts) = *node;
        let plans = match parts {
            Parts::Ready(built) => return self.container(number, names, built, here).map(Some),
            Parts::Plans(plans) => plans,
        };
        let mut built = grow::with_room(plans.len())?;
        for (name, plan) in names.names().zip(plans) {
            let part = self.tree(plan, &here.below(&name));
            built.push(part.map_err(|failure| below(failure, &name))?);
        }
        self.of_parts(number, names, built, here)
    }

    /// Makes a container, or a dict if only some children were selected.
    #[inline(never)]
    fn of_parts(
        &mut self,
        number: usize,
        names: Names<'py>,
        parts: Vec<Option<Bound<'py, PyAny>>>,
        here: &Here<'_, 'py>,
    ) -> Walked<Option<Bound<'py, PyAny>>> {
        if parts.iter().all(Option::is_some) {
            let built = grow::collect(parts.into_iter().flatten())?;
            return self.container(number, names, built, here).map(Some);
        }
        if let Some(keys) = self.dict_keys(number)? {
            let dict = with_keys(&keys, parts)?;
            return Ok((dict.len()? > 0).then_some(dict));
        }
        let dict = new_dict(self.py)?;
        for (name, part) in names.names().zip(parts) {
            if let Some(part) = part {
                dict.set_item(name.object(self.py)?, part)?;
            }
        }
        Ok((!dict.is_empty()).then(|| dict.into_any()))
    }

    #[inline(never)]
    pub(super) fn container(
        &mut self,
        node: usize,
        names: Names<'py>,
        built: Vec<Bound<'py, PyAny>>,
        here: &Here<'_, 'py>,
    ) -> Built<'py> {
        let py = self.py;
        let record = self.record;
        match &record.nodes[node].0 {
            Kind::Tuple if !self.options.only_plain => {
                return Ok(new_tuple_of(py, built)?.into_any());
            }
            Kind::List | Kind::Tuple => return Ok(new_list_of(py, built)?.into_any()),
            Kind::Typed(class, data) if self.options.only_plain => {
                return self.plain_node(node, *class as usize, data, names, built);
            }
            _ if self.unknown.contains(&node) => {}
            Kind::Typed(class, data) => {
                let made = self.typed(node, *class as usize, data, &names, &built, here);
                if let Some(made) = self.unless_unknown(made)? {
                    return Ok(made);
                }
                return Ok(names.dict(py, built)?.into_any());
            }
            Kind::DictWithKeys(_) => {
                if let Some(keys) = self.dict_keys(node)? {
                    return with_keys(&keys, built.into_iter().map(Some));
                }
            }
            _ => {}
        }
        Ok(names.dict(py, built)?.into_any())
    }

    /// Returns the keys of a dict whose keys are not all strings, unless strings replace them.
    #[inline(never)]
    fn dict_keys(&mut self, node: usize) -> Walked<Option<Bound<'py, PyAny>>> {
        let Kind::DictWithKeys(keys) = &self.record.nodes[node].0 else {
            return Ok(None);
        };
        let keys = self.keys(node, keys).map(Some);
        self.unless_unknown(keys)
    }

    /// Makes a dict instead of a node, with the keys of the mapping that it was; `None` for code.
    #[inline(never)]
    fn plain_node(
        &mut self,
        node: usize,
        class: usize,
        data: &[u8],
        names: Names<'py>,
        built: Vec<Bound<'py, PyAny>>,
    ) -> Built<'py> {
        let py = self.py;
        if self.record.types[class].name == CODE {
            return Ok(py.None().into_bound(py));
        }
        let Plain::Keys(keys, texts) = self.plain_keys(node, data, built.len())? else {
            return Ok(names.dict(py, built)?.into_any());
        };
        for (text, name) in texts.iter().zip(names.names()) {
            if !text.eq(name.object(py)?)? {
                return Ok(names.dict(py, built)?.into_any());
            }
        }
        with_keys(&keys, built.into_iter().map(Some))
    }

    fn plain_keys(&mut self, node: usize, data: &[u8], count: usize) -> Walked<Plain<'py>> {
        if self.plain.is_empty() {
            self.plain = grow::filled(None, self.record.nodes.len())?;
        }
        if let Some(known) = &self.plain[node] {
            return Ok(known.clone());
        }
        let mut found = Plain::Names;
        if let Value::Tuple(parts) = Value::decode(data)?
            && let Some(Value::List(keys)) = parts.into_iter().next()
            && keys.len() == count
            && keys.iter().all(Value::is_simple)
        {
            let keys = self.keys(node, &Value::List(keys).encode()?)?;
            let texts = keys.cast::<PyList>()?.iter();
            let texts = list_of_results(self.py, texts.map(|key| key.str()))?;
            found = Plain::Keys(keys, texts);
        }
        Ok(self.plain[node].insert(found).clone())
    }

    /// Returns `None` if a dict replaces the failed part.
    fn unless_unknown<T>(&self, made: Walked<Option<T>>) -> Walked<Option<T>> {
        match made {
            Err(failure) if self.is_unknown(&failure) => Ok(None),
            made => made,
        }
    }

    fn is_unknown(&self, failure: &Failure) -> bool {
        let unknown = |error: &PyErr| {
            ["UnregisteredTypeError", "PlaceholderError"]
                .iter()
                .any(|name| errors::is(self.py, error, name))
        };
        self.options.unknown_as_dict && failure.raised().is_some_and(unknown)
    }

    fn keys(&mut self, node: usize, keys: &[u8]) -> Built<'py> {
        if let Some((known, _)) = &self.decoded[node] {
            return Ok(known.clone());
        }
        let keys = value::decode_value(self.py, keys);
        let keys = keys.map_err(|error| self.remembered(node, error.into()))?;
        if let Ok(keys) = keys.cast_exact::<PyList>() {
            keys.iter().try_for_each(|key| check_key(&key))?;
        }
        check_hashes(&keys).map_err(|error| unhashable(self.py, error))?;
        self.decoded[node] = Some((keys.clone(), false));
        Ok(keys)
    }

    /// Makes an object of a registered type; `None` if a dict replaces it.
    fn typed(
        &mut self,
        node: usize,
        class: usize,
        data: &[u8],
        names: &Names<'py>,
        built: &[Bound<'py, PyAny>],
        here: &Here<'_, 'py>,
    ) -> Walked<Option<Bound<'py, PyAny>>> {
        let py = self.py;
        let found = &self.record.types[class];
        let known = match &self.types[class] {
            Some(known) => Some(known.clone()),
            None => self.find(class)?,
        };
        let Some(class) = known else {
            self.unknown.insert(node);
            return Ok(None);
        };
        let of_type = |error: PyErr| {
            if errors::stays(py, &error) {
                error.into()
            } else {
                Failure::node(&found.name, error)
            }
        };
        let nbytes = data.len();
        let (mut data, has_placeholders) = if let Some(known) = &self.decoded[node] {
            known.clone()
        } else {
            if mem::replace(&mut self.known[node], true) {
                self.take_room(nbytes.saturating_sub(SMALL_BYTES))?;
            }
            let has_placeholders = data
                .windows(PLACEHOLDER.len())
                .any(|part| part == PLACEHOLDER);
            let data = new_tuple_of(py, [copied(py, data)?.into_any()])?;
            let data = class.decode.call1(data).map_err(of_type);
            let data = data.map_err(|failure| self.remembered(node, failure))?;
            if is_constant(&data)? {
                self.decoded[node] = Some((data.clone(), has_placeholders));
            }
            (data, has_placeholders)
        };
        if has_placeholders {
            if self.options.unknown_as_dict && self.options.r#static.is_none() {
                self.unknown.insert(node);
            }
            let (filled, is_filled) = self.filled(data, nbytes, &class.class, here)?;
            if !is_filled {
                // Reported for all nodes at once; until then this is a dict.
                self.has_unfilled = true;
                return Ok(None);
            }
            data = filled;
        }
        if class.foreign && self.code_below(node)? {
            let reason = format!(
                "code of a library makes nodes of the type '{}', and receives no functions from \
                 files, such as those in the nodes below; pass a template as target, or \
                 unknown=\"dict\" to get dicts in their place",
                found.name
            );
            let error = errors::make(py, "UnregisteredTypeError", [&reason]).into();
            return Err(self.remembered(node, error));
        }
        if let Some(made) = class.made(names.names(), built, &data).map_err(of_type)? {
            return Ok(Some(made));
        }
        let mut keys = grow::with_room(built.len())?;
        for name in names.names().take(built.len()) {
            keys.push(name.object(py)?);
        }
        let names = new_list_of(py, keys)?;
        let children = new_list_of(py, built.iter().cloned())?;
        let parts = row!(py, data, names, children)?;
        class.make.call1(parts).map(Some).map_err(of_type)
    }

    #[inline(never)]
    fn code_below(&mut self, node: usize) -> Walked<bool> {
        let below = |node: &Node, code: &[bool]| {
            let mut children = node.1.iter();
            children.any(|Repeat(_, child)| code[*child as usize])
        };
        if self.code.is_empty() {
            let holds_code = self.lookups()?.getattr(intern!(self.py, "holds_code"))?;
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

    #[inline(never)]
    fn find(&mut self, class: usize) -> PyResult<Option<Rc<Known<'py>>>> {
        let node_type = intern!(self.py, "node_type");
        let found = self.lookups()?.call_method1(node_type, (class,))?;
        if found.is_none() {
            return Ok(None);
        }
        let known = Rc::new(Known::of(&found, self.options.placeholders)?);
        Ok(Some(self.types[class].insert(known).clone()))
    }

    fn lookups(&mut self) -> PyResult<Bound<'py, PyAny>> {
        if let Some(lookups) = &self.lookups {
            return Ok(lookups.clone());
        }
        let py = self.py;
        let types = self.record.types.iter().map(|class| {
            let class = (&class.name, &class.fields, class.version);
            Ok(class.into_pyobject(py)?.into_any())
        });
        let types = list_of_results(py, types)?;
        let options = &self.options;
        let is_part = options.absent.is_some();
        let given = (types, &options.r#static, options.unknown_as_dict, is_part);
        let made = Hooks::get(py)?.lookups.bind(py).call1(given)?;
        Ok(self.lookups.insert(made).clone())
    }

    /// Notes a failure that is the same wherever the node is, to save further attempts.
    fn remembered(&mut self, node: usize, failure: Box<Failure>) -> Box<Failure> {
        if self.is_unknown(&failure) {
            self.unknown.insert(node);
        }
        failure
    }

    #[inline(never)]
    fn filled(
        &mut self,
        data: Bound<'py, PyAny>,
        nbytes: usize,
        class: &Bound<'py, PyAny>,
        here: &Here<'_, 'py>,
    ) -> Walked<(Bound<'py, PyAny>, bool)> {
        let py = self.py;
        self.take_room(nbytes)?;
        let path = new_list_of(py, here.names(py)?)?;
        let lookups = self.lookups()?;
        let filled = lookups.call_method1(intern!(py, "fill"), (data, path, class))?;
        Ok(filled.extract()?)
    }

    fn take_room(&mut self, nbytes: usize) -> Walked {
        let Some(room) = self.room.checked_sub(nbytes) else {
            self.has_unfilled = false; // filling those would not help
            let reason = "restoring the static data takes too long: too many nodes share large ones; \
                          pass a template as target, or unknown=\"dict\" to get dicts in place of \
                          those that were not saved";
            return Err(errors::make(self.py, "TreepackError", [&reason]).into());
        };
        self.room = room;
        Ok(())
    }

    /// In this order: unregistered types, placeholders, types that fail because a child became a
    /// dict.
    fn first_error(&mut self, done: Built<'py>) -> Built<'py> {
        let is_first = |failure: &Failure| {
            let unknown = |error| errors::is(self.py, error, "UnregisteredTypeError");
            failure.must_be_raised(self.py) || failure.raised().is_some_and(unknown)
        };
        match done {
            _ if !self.has_unfilled => done,
            Err(failure) if is_first(&failure) => Err(failure),
            _ => {
                let error = self
                    .lookups()?
                    .call_method0(intern!(self.py, "placeholder_error"))?;
                Err(PyErr::from_value(error).into())
            }
        }
    }
}

/// Makes a dict of the parts that were selected.
fn with_keys<'py>(
    keys: &Bound<'py, PyAny>,
    parts: impl IntoIterator<Item = Option<Bound<'py, PyAny>>, IntoIter: ExactSizeIterator>,
) -> Built<'py> {
    let (py, parts) = (keys.py(), parts.into_iter());
    let Ok(keys) = keys.cast::<PyList>() else {
        return damaged("the keys of a dict are not a list");
    };
    let (key_count, child_count) = (keys.len(), parts.len());
    if key_count != child_count {
        let reason = format!("a dict has {key_count} keys and {child_count} children");
        return damaged(reason);
    }
    let dict = new_dict(py)?;
    let mut count = 0;
    for (key, part) in keys.iter().zip(parts) {
        if let Some(part) = part {
            let set = dict.set_item(key, part);
            set.map_err(|error| unhashable(py, error))?;
            count += 1;
        }
    }
    if dict.len() != count {
        return damaged("a key occurs twice");
    }
    Ok(dict.into_any())
}

fn unhashable(py: Python<'_>, error: PyErr) -> Box<Failure> {
    if errors::stays(py, &error) {
        return error.into();
    }
    Failure::structure(format!("a key cannot be hashed: {error}"))
}
