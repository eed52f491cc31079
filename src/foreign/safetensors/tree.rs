//! Names such as `a.b.c` as a tree for an encoder.
//!
//! Where a name begins another, as `a.b` and `a.b.c`, the rest of the longer one is its last key: `b.c`
//! beside `b`. So keys that are joined by dots are always the name.

use std::collections::HashMap;

use crate::format::encoder::Encoder;
use crate::format::layout::Payload;
use crate::format::structure::Kind;
use crate::format::wire::MAX_DEPTH;
use crate::{Result, base::grow};

const SEPARATOR: char = '.';

/// The last of them is the rest of a longer name.
const MOST_KEYS: usize = MAX_DEPTH - 1;

struct NameNode<'a> {
    key: &'a str,
    /// Its position among the names, if it is an array.
    array: Option<usize>,
    children: Vec<usize>,
}

/// Encodes a map of the arrays with these names. `array` writes one by its position.
///
/// Names are divided into keys as in a larger tree that also has the names `beside`.
pub fn encode<'a, P: Payload>(
    encoder: &mut Encoder<P>,
    names: impl Iterator<Item = &'a str> + Clone,
    beside: &'a [String],
    mut array: impl FnMut(&mut Encoder<P>, usize) -> Result<()>,
) -> Result<()> {
    let mut nodes = Nodes::new()?;
    let mut are_apart = beside.is_empty();
    let all = names.clone().chain(beside.iter().map(String::as_str));
    for (number, name) in all.enumerate() {
        are_apart &= nodes.add(name, number, MOST_KEYS)?;
    }
    if !are_apart {
        let all = nodes;
        nodes = Nodes::new()?;
        for (number, name) in names.enumerate() {
            nodes.add(name, number, all.count_of(name))?;
        }
    }
    let nodes = &nodes.all;
    encoder.map(nodes[0].children.len())?;
    let mut open = vec![nodes[0].children.iter()];
    while let Some(children) = open.last_mut() {
        let Some(&child) = children.next() else {
            open.pop();
            encoder.end(Kind::Dict)?;
            continue;
        };
        let node = &nodes[child];
        encoder.key(node.key)?;
        if let Some(number) = node.array {
            array(encoder, number)?;
        } else {
            encoder.map(node.children.len())?;
            grow::push(&mut open, node.children.iter())?;
        }
    }
    Ok(())
}

struct Nodes<'a> {
    all: Vec<NameNode<'a>>,
    by_key: HashMap<(usize, &'a str), usize>,
    /// The nodes of the last name: most names share theirs.
    path: Vec<usize>,
}

impl<'a> Nodes<'a> {
    fn new() -> Result<Self> {
        let mut nodes = Self {
            all: Vec::new(),
            by_key: HashMap::new(),
            path: Vec::new(),
        };
        nodes.push("")?;
        Ok(nodes)
    }

    fn push(&mut self, key: &'a str) -> Result<usize> {
        let node = NameNode {
            key,
            array: None,
            children: Vec::new(),
        };
        grow::push(&mut self.all, node)?;
        Ok(self.all.len() - 1)
    }

    /// Adds a name of at most `most` keys. Returns false if it begins another name, or another begins it.
    fn add(&mut self, name: &'a str, number: usize, most: usize) -> Result<bool> {
        let mut above = 0;
        let mut is_shared = true;
        let mut is_apart = true;
        let mut count = 0;
        for (level, key) in name.splitn(most, SEPARATOR).enumerate() {
            is_apart &= self.all[above].array.is_none();
            let previous = self.path.get(level).copied();
            let previous = previous.filter(|node| is_shared && self.all[*node].key == key);
            above = if let Some(node) = previous {
                node
            } else {
                is_shared = false;
                self.path.truncate(level);
                let node = self.child(above, key)?;
                grow::push(&mut self.path, node)?;
                node
            };
            count = level + 1;
        }
        self.path.truncate(count);
        let node = &mut self.all[above];
        node.array = Some(number);
        Ok(is_apart && node.children.is_empty())
    }

    /// The number of keys until a name ends that is this one or begins it.
    fn count_of(&self, name: &'a str) -> usize {
        let mut node = 0;
        let mut keys = name.splitn(MOST_KEYS, SEPARATOR);
        let end = keys.position(|key| {
            node = self.by_key[&(node, key)];
            self.all[node].array.is_some()
        });
        end.map_or(MOST_KEYS, |end| end + 1)
    }

    fn child(&mut self, above: usize, key: &'a str) -> Result<usize> {
        self.by_key.try_reserve(1)?;
        if let Some(node) = self.by_key.get(&(above, key)) {
            return Ok(*node);
        }
        let node = self.push(key)?;
        self.by_key.insert((above, key), node);
        grow::push(&mut self.all[above].children, node)?;
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_keys_until_another_ends() {
        let deep = "a.".repeat(MOST_KEYS);
        let names = [
            "q.b",
            "q.b.c.d",
            "q.bc.d",
            "x",
            "x.",
            ".y",
            ".y.z",
            "",
            "q.b.c",
            deep.as_str(),
        ];
        let mut nodes = Nodes::new().unwrap();
        for (number, name) in names.into_iter().enumerate() {
            nodes.add(name, number, MOST_KEYS).unwrap();
        }
        let counts = [2, 2, 3, 1, 1, 1, 1, 1, 2, MOST_KEYS];
        assert!(
            names
                .into_iter()
                .map(|name| nodes.count_of(name))
                .eq(counts)
        );
    }
}
