//! Marks nodes of older versions of their types in a state. The upgrade runs only if a template
//! needs the node.

use pyo3::prelude::*;

use super::super::hooks::Hooks;
use super::super::memory::{dict_next, new_dict};
use super::super::watch::Signals;
use super::assembly::Assembled;
use super::nodes::{children, damaged, node_at};
use crate::grow;
use crate::structure::{Kind, Node, NodeType, Record};

#[pyfunction]
#[pyo3(signature = (state, record, mark, *, at=vec![]))]
pub fn mark_older<'py>(
    state: Bound<'py, PyAny>,
    record: &[u8],
    mark: Bound<'py, PyAny>,
    at: Vec<(u64, u64)>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = state.py();
    let record = Record::read(record)?;
    let mut older: Vec<bool> = grow::with_room(record.types.len())?;
    for class in &record.types {
        older.push(is_older(py, class)?);
    }
    // Older nodes and their ancestors; children come first.
    let mut marked: Vec<bool> = grow::with_room(record.nodes.len())?;
    for Node(kind, repeats) in &record.nodes {
        let here = matches!(kind, Kind::Typed(class, _) if older[*class as usize]);
        marked.push(here || repeats.iter().any(|repeat| marked[repeat.1 as usize]));
    }
    let marking = Marking {
        signals: Signals::new(py),
        record: &record,
        older: &older,
        marked: &marked,
        mark,
    };
    let mut at = at;
    let done = node_at(&record, &at).and_then(|node| marking.node(state, node, &mut at));
    done.map_err(|failure| failure.into_py(py, "loading"))
}

/// False if the record is damaged.
#[pyfunction]
pub fn has_older_types(py: Python<'_>, record: &[u8]) -> PyResult<bool> {
    let types = Record::read(record).map_or(Vec::new(), |record| record.types);
    for class in types {
        if is_older(py, &class)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_older(py: Python<'_>, class: &NodeType) -> PyResult<bool> {
    let upgrades = Hooks::get(py)?.upgrades.bind(py);
    upgrades.call1((&class.name, class.version))?.is_truthy()
}

struct Marking<'a, 'py> {
    signals: Signals<'py>,
    record: &'a Record,
    /// By index of the type.
    older: &'a [bool],
    /// By index of the node.
    marked: &'a [bool],
    /// Called with a state and the position of its node.
    mark: Bound<'py, PyAny>,
}

impl<'py> Marking<'_, 'py> {
    /// See `node_at` for `at`.
    fn node(
        &self,
        state: Bound<'py, PyAny>,
        node: usize,
        at: &mut Vec<(u64, u64)>,
    ) -> Assembled<'py> {
        if !self.marked[node] {
            return Ok(state);
        }
        let py = state.py();
        self.signals.check(py)?;
        let found = &self.record.nodes[node];
        let Ok(dict) = children(&state, found) else {
            return Ok(state); // missing or damaged: reported elsewhere
        };
        if matches!(&found.0, Kind::Typed(class, _) if self.older[*class as usize]) {
            return Ok(self.mark.call1((state, at.clone()))?);
        }
        let made = new_dict(py)?; // the caller's state must not change
        let mut position = 0;
        for (index, child) in (0..).zip(found.children()) {
            let Some((key, state)) = dict_next(dict, &mut position) else {
                return damaged("a dict has lost a key");
            };
            at.push((index, found.count()));
            let done = self.node(state, child, at);
            at.pop();
            let done = done.map_err(|failure| failure.below(key.to_string()))?;
            made.set_item(key, done)?;
        }
        Ok(made.into_any())
    }
}
