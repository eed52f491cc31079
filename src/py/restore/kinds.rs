//! Compares the kinds of saved containers with a template, for `strict="exact"`.

use std::cell::RefCell;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::super::failure::Walked;
use super::super::fields::FieldsByType;
use super::super::hooks::Hooks;
use super::super::memory::{dict_next, has_string_keys, new_dict};
use super::super::watch::Signals;
use super::keys::{Here, Name};
use super::nodes::{check_count, children, node_at, numbers};
use crate::structure::{Kind, Record};

/// Returns the kinds of saved containers by trail; `None` if the template has the same.
#[pyfunction]
#[pyo3(signature = (target, state, record, root, *, at=vec![]))]
pub fn other_kinds<'py>(
    target: &Bound<'py, PyAny>,
    state: &Bound<'py, PyAny>,
    record: &[u8],
    root: Bound<'py, PyAny>,
    at: Vec<(u64, u64)>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = state.py();
    let record = Record::read(record)?;
    let kinds = Kinds {
        signals: Signals::new(py),
        record: &record,
        fields: RefCell::default(),
        known: RefCell::default(),
    };
    let compare = |root| {
        let node = node_at(&record, &at)?;
        if kinds.is_same(target, state, node)? {
            return Ok(None);
        }
        let found = new_dict(py)?;
        kinds.collect(state, node, &Here::root(Some(root)), &found)?;
        Ok(Some(found))
    };
    let compared: Walked<_> = compare(root);
    compared.map_err(|failure| failure.into_py(py, "loading"))
}

struct Kinds<'a, 'py> {
    signals: Signals<'py>,
    record: &'a Record,
    fields: RefCell<FieldsByType<'py>>,
    /// A type of the template, a type number of the record, and whether they are the same.
    known: RefCell<Vec<(Bound<'py, PyType>, u32, bool)>>,
}

impl<'py> Kinds<'_, 'py> {
    /// Returns whether a template has the same kinds, whatever else differs.
    fn is_same(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
        node: usize,
    ) -> Walked<bool> {
        self.signals.check(target.py())?;
        let kind = &self.record.nodes[node].0;
        match kind {
            Kind::Plain if !state.is_exact_instance_of::<PyDict>() => Ok(true),
            Kind::Jax | Kind::WeakJax | Kind::Bytearray | Kind::Memoryview => Ok(true),
            Kind::DictWithKeys(_) => Ok(false),
            Kind::Plain | Kind::Dict => match target.cast_exact::<PyDict>() {
                Ok(target) if has_string_keys(target) => {
                    self.all(state, node, |_, key| target.get_item(key))
                }
                _ => Ok(false),
            },
            Kind::List => match target.cast_exact::<PyList>() {
                Ok(target) => self.all(state, node, |index, _| Ok(target.get_item(index).ok())),
                Err(_) => Ok(false),
            },
            Kind::Tuple => match target.cast_exact::<PyTuple>() {
                Ok(target) => self.all(state, node, |index, _| Ok(target.get_item(index).ok())),
                Err(_) => Ok(false),
            },
            Kind::Typed(class, _) => self.is_same_type(target, state, node, *class),
        }
    }

    #[inline(never)]
    fn is_same_type(
        &self,
        target: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
        node: usize,
        class: u32,
    ) -> Walked<bool> {
        if !self.is_named(&target.get_type(), class)? {
            return Ok(false);
        }
        let found = self.fields.borrow_mut().attributes(target, |_| Ok(true))?;
        let Some((fields, children)) = found else {
            return Ok(false);
        };
        let child = |key: &Bound<'py, PyAny>| {
            for (name, child) in fields.names.iter().zip(&children) {
                if name.as_any().eq(key)? {
                    return Ok(Some(child.clone()));
                }
            }
            Ok(None)
        };
        self.all(state, node, |_, key| child(key))
    }

    #[inline(never)]
    fn all(
        &self,
        state: &Bound<'py, PyAny>,
        node: usize,
        target: impl Fn(usize, &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>>,
    ) -> Walked<bool> {
        let found = &self.record.nodes[node];
        let dict = match state.cast_exact::<PyDict>() {
            Ok(dict) if found.0 == Kind::Plain || check_count(found, dict.len() as u64).is_ok() => {
                dict
            }
            _ => return Ok(true), // missing or damaged: reported elsewhere
        };
        let mut position = 0;
        for (index, child) in numbers(self.record, node, dict.len()).enumerate() {
            if let Some((key, state)) = dict_next(dict, &mut position)
                && let Some(target) = target(index, &key)?
                && !self.is_same(&target, &state, child)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_named(&self, class: &Bound<'py, PyType>, number: u32) -> PyResult<bool> {
        let same =
            |(known, of, _): &&(Bound<'py, PyType>, u32, bool)| *of == number && known.is(class);
        if let Some((.., answer)) = self.known.borrow().iter().find(same) {
            return Ok(*answer);
        }
        let is_named = Hooks::get(class.py())?.is_named.bind(class.py());
        let name = &self.record.types[number as usize].name;
        let answer = is_named.call1((class, name))?.is_truthy()?;
        self.known
            .borrow_mut()
            .push((class.clone(), number, answer));
        Ok(answer)
    }

    fn collect(
        &self,
        state: &Bound<'py, PyAny>,
        node: usize,
        here: &Here<'_, 'py>,
        found: &Bound<'py, PyDict>,
    ) -> Walked {
        let node = &self.record.nodes[node];
        let kind = match &node.0 {
            Kind::List => Some("list"),
            Kind::Tuple => Some("tuple"),
            Kind::DictWithKeys(_) => Some("keys"),
            Kind::Typed(class, _) => Some(&*self.record.types[*class as usize].name),
            _ => None,
        };
        if let Some(kind) = kind {
            found.set_item(here.trail(state.py())?, kind)?;
        }
        let Ok(dict) = children(state, node) else {
            return Ok(());
        };
        let mut position = 0;
        for child in node.children() {
            if let Some((key, state)) = dict_next(dict, &mut position) {
                let name = Name::of(key);
                self.collect(&state, child, &here.below(&name), found)?;
            }
        }
        Ok(())
    }
}
