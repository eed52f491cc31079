//! Names such as `a.b.c` as a tree for an encoder.

use std::collections::HashMap;

use crate::encoder::Encoder;
use crate::error::Path;
use crate::layout::Payload;
use crate::structure::Kind;
use crate::wire::MAX_DEPTH;
use crate::{Error, Result, grow};

const SEPARATOR: char = '.';

struct Node<'a> {
    key: &'a str,
    /// Its position among the names, if it is an array.
    array: Option<usize>,
    children: Vec<usize>,
}

/// Encodes a map of the arrays with these names. `array` writes one by its position.
pub fn encode<'a, P: Payload>(
    encoder: &mut Encoder<P>,
    names: impl IntoIterator<Item = &'a str>,
    mut array: impl FnMut(&mut Encoder<P>, usize) -> Result<()>,
) -> Result<()> {
    let mut nodes = Nodes::new()?;
    for (number, name) in names.into_iter().enumerate() {
        nodes.add(name, number)?;
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
    all: Vec<Node<'a>>,
    by_key: HashMap<(usize, &'a str), usize>,
    /// The nodes of the last name: most names share theirs.
    path: Vec<usize>,
}

impl<'a> Nodes<'a> {
    fn new() -> Result<Self> {
        let mut made = Self {
            all: Vec::new(),
            by_key: HashMap::new(),
            path: Vec::new(),
        };
        made.push("")?;
        Ok(made)
    }

    fn push(&mut self, key: &'a str) -> Result<usize> {
        let node = Node {
            key,
            array: None,
            children: Vec::new(),
        };
        grow::push(&mut self.all, node)?;
        Ok(self.all.len() - 1)
    }

    fn add(&mut self, name: &'a str, number: usize) -> Result<()> {
        let count = name.matches(SEPARATOR).count() + 1;
        if count >= MAX_DEPTH {
            let short = &name[..name.floor_char_boundary(100)];
            return Err(refused(&format!(
                "the name {short}… has {count} parts, but trees have fewer than {MAX_DEPTH} levels"
            )));
        }
        let mut above = 0;
        let mut is_shared = true;
        for (level, key) in name.split(SEPARATOR).enumerate() {
            if self.all[above].array.is_some() {
                return Err(misplaced(name, "its parent is a leaf"));
            }
            let known = self.path.get(level).copied();
            let known = known.filter(|node| is_shared && self.all[*node].key == key);
            above = if let Some(node) = known {
                node
            } else {
                is_shared = false;
                self.path.truncate(level);
                let node = self.child(above, key)?;
                grow::push(&mut self.path, node)?;
                node
            };
        }
        self.path.truncate(count);
        let node = &mut self.all[above];
        if node.array.is_some() || !node.children.is_empty() {
            return Err(misplaced(name, "other leaves have this path"));
        }
        node.array = Some(number);
        Ok(())
    }

    fn child(&mut self, above: usize, key: &'a str) -> Result<usize> {
        self.by_key.try_reserve(1)?;
        if let Some(found) = self.by_key.get(&(above, key)) {
            return Ok(*found);
        }
        let made = self.push(key)?;
        self.by_key.insert((above, key), made);
        grow::push(&mut self.all[above].children, made)?;
        Ok(made)
    }
}

fn misplaced(name: &str, reason: &str) -> Error {
    let mut path = Path::default();
    name.rsplit(SEPARATOR).for_each(|key| path.push_outer(key));
    refused(&format!("cannot place {path}: {reason}"))
}

fn refused(reason: &str) -> Error {
    Error::Structure(format!(
        "{reason}: read it by `treepack convert` with another --sep"
    ))
}
