//! Marks nodes of older versions of their types in a state. The upgrade runs only if a template
//! needs the node.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::failure::Built;
use super::super::hooks::Hooks;
use super::super::memory::{dict_next, new_dict};
use super::super::watch::Signals;
use super::nodes::{check_count, damaged, node_at, numbers};
use crate::base::grow;
use crate::format::structure::{Kind, NodeType, Record};

/// Also returns the kinds of containers by the identity of their state.
#[pyfunction]
#[pyo3(signature = (state, record, mark, *, at=vec![]))]
pub fn mark_older<'py>(
    state: Bound<'py, PyAny>,
    record: &[u8],
    mark: Bound<'py, PyAny>,
    mut at: Vec<(u64, u64)>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyDict>)> {
    let py = state.py();
    let record = Record::read(record)?;
    let mut older: Vec<bool> = grow::with_room(record.types.len())?;
    for class in &record.types {
        older.push(is_older(py, class)?);
    }
    let marking = Marking {
        signals: Signals::new(py),
        record: &record,
        older: &older,
        mark,
        kinds: new_dict(py)?,
    };
    let done = node_at(&record, &at).and_then(|node| marking.node(state, node, &mut at));
    let state = done.map_err(|failure| failure.into_py(py, "loading"))?;
    Ok((state, marking.kinds))
}

/// False if the record is damaged.
#[pyfunction]
pub fn has_older_types(py: Python<'_>, record: &[u8]) -> PyResult<bool> {
    if Record::is_untyped(record) {
        return Ok(false); // saves decoding it
    }
    let types = Record::read(record).map_or(Vec::new(), |record| record.types);
    for class in types {
        if is_older(py, &class)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_older(py: Python<'_>, class: &NodeType) -> PyResult<bool> {
    let lookups = Hooks::get(py)?.lookups.bind(py);
    let saved = (&class.name, class.version);
    lookups
        .call_method1(intern!(py, "upgrades"), saved)?
        .is_truthy()
}

struct Marking<'a, 'py> {
    signals: Signals<'py>,
    record: &'a Record,
    /// By index of the type.
    older: &'a [bool],
    /// Called with a state and the position of its node.
    mark: Bound<'py, PyAny>,
    kinds: Bound<'py, PyDict>,
}

impl<'py> Marking<'_, 'py> {
    /// See `node_at` for `at`.
    fn node(&self, state: Bound<'py, PyAny>, node: usize, at: &mut Vec<(u64, u64)>) -> Built<'py> {
        let py = state.py();
        self.signals.check(py)?;
        let found = &self.record.nodes[node];
        let kind = match &found.0 {
            Kind::Plain | Kind::Dict => "dict",
            Kind::List => "list",
            Kind::Tuple => "tuple",
            Kind::DictWithKeys(_) => "keys",
            Kind::Typed(class, _) => &self.record.types[*class as usize].name,
            Kind::Jax | Kind::WeakJax | Kind::Bytearray | Kind::Memoryview => return Ok(state),
        };
        let dict = match state.cast_exact::<PyDict>() {
            Ok(dict) if found.0 == Kind::Plain || check_count(found, dict.len() as u64).is_ok() => {
                dict
            }
            _ => return Ok(state), // missing or damaged: reported elsewhere
        };
        if matches!(&found.0, Kind::Typed(class, _) if self.older[*class as usize]) {
            return Ok(self.mark.call1((state, at.clone()))?);
        }
        let made = new_dict(py)?; // the caller's state must not change
        self.kinds.set_item(made.as_ptr().addr(), kind)?;
        let (count, mut position) = (dict.len(), 0);
        for (index, child) in numbers(self.record, node, count).enumerate() {
            let Some((key, state)) = dict_next(dict, &mut position) else {
                return damaged("a dict has lost a key");
            };
            at.push((index as u64, count as u64));
            let done = self.node(state, child, at);
            at.pop();
            let done = done.map_err(|failure| failure.below(key.to_string()))?;
            made.set_item(key, done)?;
        }
        Ok(made.into_any())
    }
}
