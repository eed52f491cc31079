//! A state of nodes whose types were defined otherwise when it was saved, for a template of today.
//!
//! This goes through the state as `record.rs` does, but makes states of nodes, not nodes.

use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::errors;
use super::super::failure::Walked;
use super::super::hooks::Hooks;
use super::super::memory::dict_next;
use super::super::watch::Signals;
use super::dict_of;
use super::record::{Assembled, Assembly, Known, keys};
use crate::structure::{Kind, NodeType, Trailer};

/// The state as nodes of today's types have it; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (state, trailer, *, kinds=None, absent=None, at=vec![]))]
pub fn state_of_today<'py>(
    state: Bound<'py, PyAny>,
    trailer: &[u8],
    kinds: Option<Bound<'py, PyDict>>,
    absent: Option<Bound<'py, PyAny>>,
    at: Vec<(u64, u64)>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = state.py();
    let trailer = Trailer::read(trailer)?;
    let types: Vec<_> = trailer
        .types
        .iter()
        .map(|class| older(py, class))
        .collect::<PyResult<_>>()?;
    if types.iter().all(Option::is_none) && kinds.is_none() {
        return Ok(state);
    }
    let mut assembly = Assembly {
        py,
        signals: Signals::new(),
        trailer: &trailer,
        types,
        decoded: HashMap::new(),
        with_holes: HashSet::new(),
        make: "rebuild",
        unknown_as_dict: true,
        fillings: py.None().into_bound(py),
        path: Vec::new(),
        leaves: None,
        absent,
        states: Some(States { kinds }),
    };
    let root = trailer.nodes.len() - 1; // there is one: `decode` has looked
    let done = assembly
        .below(root, &at)
        .and_then(|root| assembly.node(state, root));
    done.map_err(|failure| failure.into_py(py, "loading"))
}

/// Whether a record has types that were defined otherwise; one that is damaged has none. See `_core.pyi`.
#[pyfunction]
pub fn has_older_types(py: Python<'_>, trailer: &[u8]) -> PyResult<bool> {
    for class in Trailer::types(trailer).unwrap_or_default() {
        if older(py, &class)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn older<'py>(py: Python<'py>, class: &NodeType) -> PyResult<Option<Known<'py>>> {
    let find = Hooks::get(py)?.find_upgrade.bind(py);
    let found = find.call1((&class.name, &class.fields, class.version))?;
    (!found.is_none())
        .then(|| Known::of(&found, "rebuild"))
        .transpose()
}

/// States are made, not nodes.
pub(super) struct States<'py> {
    /// Is told the kinds of containers by their paths.
    kinds: Option<Bound<'py, PyDict>>,
}

impl<'py> Assembly<'_, 'py> {
    /// The state of a container whose children have these states.
    #[inline(never)] // see `node`
    pub(super) fn state(
        &mut self,
        node: usize,
        dict: &Bound<'py, PyDict>,
        built: Vec<Bound<'py, PyAny>>,
    ) -> Assembled<'py> {
        let kind = &self.trailer.nodes[node].0;
        self.tell(kind)?;
        if let Kind::Typed(class, data) = kind
            && self.types[*class as usize].is_some()
        {
            if built.iter().any(|child| self.is_absent(child)) {
                let name = &self.trailer.types[*class as usize].name;
                let what = format!(
                    "the type {name:?} was defined otherwise when this was saved: all of such a \
                     node has to be loaded, or nothing"
                );
                return Err(errors::make(self.py, "TreepackError", (what,)).into());
            }
            return self.typed(node, *class as usize, data, dict, &built);
        }
        let mut position = 0;
        let mut same = built.iter().map(|child| {
            dict_next(dict, &mut position).is_some_and(|(_, before)| before.is(child))
        });
        if same.all(|same| same) {
            return Ok(dict.clone().into_any());
        }
        // The state may be the program's.
        Ok(dict_of(self.py, keys(dict).into_iter(), built)?.into_any())
    }

    /// Tells what kind of container there is.
    fn tell(&self, kind: &Kind) -> Walked {
        let kinds = self.states.as_ref().and_then(|it| it.kinds.as_ref());
        let Some(kinds) = kinds else {
            return Ok(());
        };
        let kind = match kind {
            Kind::List => "list",
            Kind::Tuple => "tuple",
            Kind::DictWithKeys(_) => "keys",
            Kind::Typed(class, _) => &self.trailer.types[*class as usize].name,
            _ => return Ok(()),
        };
        Ok(kinds.set_item(self.path_text(), kind)?)
    }
}
