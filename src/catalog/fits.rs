//! Compares the structure record with the tree in the data.

use std::collections::{HashMap, HashSet};

use super::Catalog;
use crate::base::source::Source;
use crate::base::watch::{Steps, Watch};
use crate::format::events::Event;
use crate::format::index::LeafKind;
use crate::format::structure::{Kind, Node, Record, Value};
use crate::{Error, Result, base::grow};

pub(super) const NONE: usize = usize::MAX;

impl Catalog {
    /// Fails if the record does not match the tree or its values are unreadable. Static data are
    /// not checked, which needs the types.
    pub fn check_record(&self, source: &dyn Source, watch: &dyn Watch) -> Result<()> {
        let Some(bytes) = &self.record else {
            return Ok(());
        };
        let record = Record::read(bytes)?;
        if let Some(metadata) = &record.metadata {
            Value::decode(metadata)?;
        }
        let mut values = Values {
            keys: HashMap::new(),
            record: &record,
        };
        let mut steps = Steps::new(watch);
        for (value, node) in self.nodes(&record)?.into_iter().enumerate() {
            steps.count()?;
            if node != NONE && record.nodes[node].0 != Kind::Plain {
                let done = self.check_node(source, value, node, &mut values);
                done.map_err(|error| error.of_data_at(|| self.path_of(value)))?;
            }
        }
        Ok(())
    }

    /// The record's nodes by value; `NONE` for plain leaves and lists.
    pub(super) fn nodes(&self, record: &Record) -> Result<Vec<usize>> {
        let mut nodes = grow::filled(NONE, self.entries.len())?;
        if let Some(root) = nodes.first_mut() {
            *root = record.nodes.len() - 1;
        }
        for (value, entry) in self.entries.iter().enumerate() {
            let number = nodes[value];
            if number == NONE {
                continue;
            }
            let node = &record.nodes[number];
            if node.0 != Kind::Plain {
                for (child, node) in self.children(value).zip(node.children()) {
                    nodes[child] = node;
                }
            } else if entry.is_leaf || entry.is_list {
                nodes[value] = NONE;
            } else {
                for child in self.children(value) {
                    nodes[child] = number;
                }
            }
        }
        Ok(nodes)
    }

    fn check_node(
        &self,
        source: &dyn Source,
        value: usize,
        number: usize,
        values: &mut Values<'_>,
    ) -> Result<()> {
        let node @ Node(kind, _) = &values.record.nodes[number];
        let entry = &self.entries[value];
        let expected = match kind {
            Kind::Jax | Kind::WeakJax => Some("an array"),
            Kind::Bytearray | Kind::Memoryview => Some("bytes"),
            _ => None,
        };
        if let Some(expected) = expected {
            return match self.leaf(value) {
                Some(leaf) if self.is_of(source, leaf, kind)? => Ok(()),
                _ => other(format_args!("expected {expected}, found another value")),
            };
        }
        if entry.is_leaf || entry.is_list {
            return other("expected a container, found a leaf");
        }
        let is_sequence = matches!(kind, Kind::List | Kind::Tuple);
        let mut names = HashSet::new();
        let mut count = 0;
        for child in self.children(value) {
            let is_index = || self.entries[child].is_text && self.key(child) == count.to_string();
            if is_sequence && !is_index() {
                return other(format!(
                    "an element of a list must have the key \"{count}\""
                ));
            }
            names.try_reserve(1)?;
            if !is_sequence && !names.insert(self.key(child)) {
                return other("a container has a duplicate key");
            }
            count += 1;
        }
        if count as u64 != node.count() {
            let expected = node.count();
            return other(format_args!(
                "expected a container of {expected} children, found {count}"
            ));
        }
        match values.keys(number)? {
            Some(keys) if keys != count => {
                other(format!("a dict has {keys} keys and {count} children"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a leaf can be a node of this kind: an array or bytes.
    fn is_of(&self, source: &dyn Source, leaf: usize, kind: &Kind) -> Result<bool> {
        let is_array = matches!(kind, Kind::Jax | Kind::WeakJax);
        match self.kind(leaf) {
            LeafKind::Array(..) | LeafKind::PrngKey(..) => return Ok(is_array),
            LeafKind::Bytes => return Ok(!is_array),
            LeafKind::Other => {}
            _ => return Ok(false),
        }
        match self.read_leaf(source, leaf) {
            Ok(events) => Ok(match events.as_slice().first() {
                Some(Event::Array(_) | Event::PrngKey(_)) => is_array,
                Some(Event::Bin(_)) => !is_array,
                _ => false,
            }),
            Err(error) if error.is_no_damage() => Err(error),
            Err(_) => Ok(false),
        }
    }
}

struct Values<'a> {
    record: &'a Record,
    /// `None` if the node is not a dict.
    keys: HashMap<usize, Option<usize>>,
}

impl Values<'_> {
    fn keys(&mut self, node: usize) -> Result<Option<usize>> {
        if let Some(keys) = self.keys.get(&node) {
            return Ok(*keys);
        }
        let keys = match &self.record.nodes[node].0 {
            Kind::DictWithKeys(keys) => match Value::decode(keys)? {
                Value::List(keys) => Some(keys.len()),
                _ => return other("the keys of a dict are not a list"),
            },
            Kind::Typed(_, data) => Value::decode(data).map(|_| None)?,
            _ => None,
        };
        self.keys.try_reserve(1)?;
        self.keys.insert(node, keys);
        Ok(keys)
    }
}

fn other<T>(reason: impl std::fmt::Display) -> Result<T> {
    Err(Error::Structure(format!(
        "the record does not match the tree: {reason}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::footer::{Regions, Seal};
    use crate::format::structure::Recorder;

    fn check(kind: Kind, leaf: Kind, container: Kind, metadata: &[u8]) -> Result<()> {
        let mut recorder = Recorder::default();
        recorder.open().unwrap();
        recorder.leaf(leaf).unwrap();
        recorder.open().unwrap();
        recorder.leaf(Kind::Bytearray).unwrap();
        recorder.close(container).unwrap();
        recorder.close(kind).unwrap();
        let record = recorder.finish(Some(metadata.to_vec())).unwrap();
        let mut sealed = record.encode(&()).unwrap();
        let seal = Seal::new(&sealed, Regions::new(vec![]));
        sealed.extend(seal.close(&[], &[]).unwrap());
        let mut data = b"\x83\xa10\x01\xa11\x81\xa12\xc4\x00\xac__treepack__\xc5".to_vec();
        data.extend(u16::try_from(sealed.len()).unwrap().to_be_bytes());
        data.extend(sealed);
        Catalog::open(&data, false, &())?.check_record(&data, &())
    }

    fn keys(text: &str) -> Kind {
        Kind::dict_with_keys(Value::List(vec![Value::Str(text.into())]).encode().unwrap())
    }

    #[test]
    fn a_record_is_that_of_the_tree_or_an_error() {
        let none = Value::None.encode().unwrap();
        check(Kind::List, Kind::Plain, keys("a"), &none).unwrap();
        for wrong in [
            check(keys("a"), Kind::Plain, Kind::Dict, &none),
            check(Kind::List, Kind::Bytearray, Kind::Dict, &none),
            check(Kind::List, Kind::Jax, Kind::Dict, &none),
            check(Kind::List, Kind::WeakJax, Kind::Dict, &none),
            check(Kind::List, Kind::Plain, Kind::Tuple, &none),
            check(
                Kind::List,
                Kind::Plain,
                Kind::dict_with_keys(none.clone()),
                &none,
            ),
            check(Kind::Dict, Kind::Plain, Kind::Dict, b"\xc1"),
        ] {
            assert!(wrong.is_err());
        }
    }
}
