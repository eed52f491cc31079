//! Compares types, and static data as plain values.

use std::collections::HashMap;

use super::Catalog;
use super::fits::NONE;
use crate::base::watch::{Steps, Watch};
use crate::catalog::apart::{apart, short, short_name};
use crate::format::structure::{Kind, NodeType, Record, Value};
use crate::{Result, base::grow};

pub struct StaticDifference {
    /// If static data of the type have names.
    pub field: Option<String>,
    pub one: String,
    pub other: String,
}

/// Differences; pairs of a value and an index of them.
pub type StaticDifferences = (Vec<Vec<StaticDifference>>, Vec<(usize, usize)>);

impl Catalog {
    pub fn static_differences(
        &self,
        start: usize,
        other: &Self,
        other_start: usize,
        watch: &dyn Watch,
    ) -> Result<StaticDifferences> {
        let mut differences = (Vec::new(), Vec::new());
        let (Some(one_bytes), Some(other_bytes)) = (&self.record, &other.record) else {
            return Ok(differences);
        };
        if one_bytes == other_bytes && (start, other_start) == (0, 0) {
            return Ok(differences);
        }
        let (one_record, other_record) = (Record::read(one_bytes)?, Record::read(other_bytes)?);
        let mut left = Side::new(self, &one_record)?;
        let mut right = Side::new(other, &other_record)?;
        let end = self.after(start);
        let mut pairs = grow::filled(NONE, end - start)?;
        pairs[0] = other_start;
        let mut known: HashMap<(usize, usize), Option<usize>> = HashMap::new();
        let mut steps = Steps::new(watch);
        for value in start..end {
            steps.count()?;
            let pair = pairs[value - start];
            if pair == NONE || left.nodes[value] == NONE || right.nodes[pair] == NONE {
                continue;
            }
            if left.is_plain(value) && right.is_plain(pair) {
                continue;
            }
            let key = (left.nodes[value], right.nodes[pair]);
            if !known.contains_key(&key) {
                let apart = node_apart(&mut left, key.0, &mut right, key.1)
                    .map_err(|error| error.of_data_at(|| self.path_of(value)))?;
                known.try_reserve(1)?;
                known.insert(key, (!apart.is_empty()).then_some(differences.0.len()));
                if !apart.is_empty() {
                    grow::push(&mut differences.0, apart)?;
                }
            }
            if let Some(at) = known[&key] {
                grow::push(&mut differences.1, (value, at))?;
            }
            for child in self.children(value) {
                let same = other.child(pair, self.key(child), watch)?;
                pairs[child - start] = same.unwrap_or(NONE);
            }
        }
        Ok(differences)
    }
}

struct Side<'a> {
    record: &'a Record,
    /// By value; `NONE` for leaves and plain lists.
    nodes: Vec<usize>,
    /// By node.
    data: HashMap<usize, Value>,
}

impl<'a> Side<'a> {
    fn new(catalog: &Catalog, record: &'a Record) -> Result<Self> {
        let nodes = catalog.nodes(record)?;
        let data = HashMap::new();
        Ok(Self {
            record,
            nodes,
            data,
        })
    }

    fn is_plain(&self, value: usize) -> bool {
        matches!(self.record.nodes[self.nodes[value]].0, Kind::Plain)
    }

    fn decode(&mut self, node: usize, data: &[u8]) -> Result<()> {
        if !self.data.contains_key(&node) {
            self.data.try_reserve(1)?;
            self.data.insert(node, Value::decode(data)?);
        }
        Ok(())
    }
}

fn node_apart(
    left: &mut Side<'_>,
    node: usize,
    right: &mut Side<'_>,
    other_node: usize,
) -> Result<Vec<StaticDifference>> {
    let mut differences = Vec::new();
    let (kind, other_kind) = (
        &left.record.nodes[node].0,
        &right.record.nodes[other_node].0,
    );
    let types = type_name(left.record, kind).zip(type_name(right.record, other_kind));
    if let Some((one, other)) = types.filter(|(one, other)| one != other) {
        let (one, other) = (short_name(one)?, short_name(other)?);
        let field = None;
        grow::push(&mut differences, StaticDifference { field, one, other })?;
        return Ok(differences);
    }
    let (Kind::Typed(class, one), Kind::Typed(other_class, other)) = (kind, other_kind) else {
        return Ok(differences);
    };
    if one == other {
        return Ok(differences);
    }
    left.decode(node, one)?;
    right.decode(other_node, other)?;
    let (one, other) = (&left.data[&node], &right.data[&other_node]);
    let mut add = |field: Option<&str>, one, other| {
        if let Some((one, other)) = apart(one, other)? {
            let field = field.map(grow::to_string).transpose()?;
            let (one, other) = (short(one)?, short(other)?);
            grow::push(&mut differences, StaticDifference { field, one, other })?;
        }
        Result::Ok(())
    };
    let named = fields(&left.record.types[*class as usize], one);
    let other_named = fields(&right.record.types[*other_class as usize], other);
    if let (Some(named), Some(other_named)) = (named, other_named) {
        let mut others = HashMap::new();
        for (name, other) in other_named {
            others.try_reserve(1)?;
            others.insert(name, other);
        }
        for (name, one) in named {
            if let Some(other) = others.get(name) {
                add(Some(name), one, *other)?;
            }
        }
    } else {
        add(None, one, other)?;
    }
    Ok(differences)
}

fn type_name<'a>(record: &'a Record, kind: &Kind) -> Option<&'a str> {
    match kind {
        Kind::Plain | Kind::Dict => Some("dict"),
        Kind::DictWithKeys(_) => Some("dict with keys other than strings"),
        Kind::List => Some("list"),
        Kind::Tuple => Some("tuple"),
        Kind::Typed(class, _) => Some(&record.types[*class as usize].name),
        Kind::Jax | Kind::WeakJax | Kind::Bytearray | Kind::Memoryview => None,
    }
}

fn fields<'a>(
    class: &'a NodeType,
    data: &'a Value,
) -> Option<impl Iterator<Item = (&'a str, &'a Value)>> {
    match (&class.fields, data) {
        (Some((_, names)), Value::Tuple(values)) if names.len() == values.len() => {
            Some(names.iter().map(String::as_str).zip(values))
        }
        _ => None,
    }
}
