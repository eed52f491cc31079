//! Builds the record of a structure during the walk over a tree.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Kind, Node, NodeType, Record, Repeat, Tie};
use crate::format::footer::count_of;
use crate::format::mesh::{MAX_SHARDINGS, Sharding, Split};
use crate::{Result, base::grow};

#[derive(Debug)]
pub struct Recorder {
    nodes: Numbered<(Node, Option<u32>)>,
    types: Numbered<NodeType>,
    shardings: Numbered<Sharding>,
    next_sharding: Option<u32>,
    ties: Vec<Tie>,
    /// The children so far of each open container; the first is around the root.
    open: Vec<Vec<Repeat>>,
    /// The last leaf that was not plain, and its number: most leaves are like the previous one.
    last_leaf: Option<(Kind, Option<u32>, u32)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            nodes: Numbered(HashMap::from([(
                (Node(Kind::Plain, Vec::new()), None),
                Self::PLAIN,
            )])),
            types: Numbered::default(),
            shardings: Numbered::default(),
            next_sharding: None,
            ties: Vec::new(),
            open: vec![Vec::new()],
            last_leaf: None,
        }
    }
}

impl Recorder {
    const PLAIN: u32 = 0;

    #[inline]
    pub fn plain(&mut self) -> Result<()> {
        self.child(Self::PLAIN)
    }

    pub fn leaf(&mut self, kind: Kind) -> Result<()> {
        let sharding = self.next_sharding.take();
        let node = match &self.last_leaf {
            Some((last, split, node)) if *last == kind && *split == sharding => *node,
            _ => {
                let node = (Node(kind.clone(), Vec::new()), sharding);
                let node = self.nodes.number(node)?;
                self.last_leaf = Some((kind, sharding, node));
                node
            }
        };
        self.child(node)
    }

    /// The number of a sharding, for [`Recorder::split`], if it is recorded.
    pub fn sharding(&mut self, sharding: Sharding) -> Result<Option<u32>> {
        let is_full = self.shardings.0.len() == MAX_SHARDINGS;
        if is_full && !self.shardings.0.contains_key(&sharding) {
            return Ok(None);
        }
        self.shardings.number(sharding).map(Some)
    }

    pub fn split(&mut self, sharding: Option<u32>) {
        self.next_sharding = sharding;
    }

    pub fn tie(&mut self, ties: Vec<Tie>) {
        self.ties = ties;
    }

    pub fn open(&mut self) -> Result<()> {
        grow::push(&mut self.open, Vec::new())
    }

    /// # Panics
    /// If no container is open.
    pub fn close(&mut self, kind: Kind) -> Result<()> {
        let repeats = self.open.pop().expect("a container that is open");
        let plain =
            matches!(kind, Kind::Dict) && repeats.iter().all(|repeat| repeat.1 == Self::PLAIN);
        let node = if plain {
            Self::PLAIN
        } else {
            self.nodes.number((Node(kind, repeats), None))?
        };
        self.child(node)
    }

    pub fn node_type(&mut self, class: NodeType) -> Result<u32> {
        self.types.number(class)
    }

    /// # Panics
    /// If a container is still open.
    pub fn finish(mut self, metadata: Option<Vec<u8>>) -> Result<Record> {
        let root = self.open.pop().expect("the list around the root");
        assert!(self.open.is_empty(), "every container is closed");
        // The root is part of no other node, so it was numbered last.
        debug_assert!(
            matches!(root[..], [Repeat(1, root)] if root as usize + 1 == self.nodes.0.len())
        );
        let ordered = self.nodes.in_order()?;
        let (mut nodes, mut split) = (Vec::new(), Vec::new());
        for (number, (node, sharding)) in (0..).zip(ordered) {
            if let Some(sharding) = sharding {
                grow::push(&mut split, Split(number, sharding))?;
            }
            grow::push(&mut nodes, node)?;
        }
        let mut record = Record::new(self.types.in_order()?, nodes, metadata);
        record.shardings = self.shardings.in_order()?;
        record.split = split;
        record.ties = self.ties;
        Ok(record)
    }

    #[inline]
    fn child(&mut self, node: u32) -> Result<()> {
        let repeats = self.open.last_mut().expect("the list around the root");
        match repeats.last_mut() {
            Some(repeat) if repeat.1 == node => repeat.0 += 1,
            _ => grow::push(repeats, Repeat(1, node))?,
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Numbered<T>(HashMap<T, u32>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Numbered<T> {
    fn number(&mut self, thing: T) -> Result<u32> {
        let next = count_of(self.0.len())?;
        self.0.try_reserve(1)?;
        Ok(*self.0.entry(thing).or_insert(next))
    }

    fn in_order(self) -> Result<Vec<T>> {
        let mut numbered = grow::collect(self.0)?;
        numbered.sort_unstable_by_key(|(_, number)| *number);
        grow::collect(numbered.into_iter().map(|(thing, _)| thing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_reads_back_unchanged_is_one_node() {
        let mut recorder = Recorder::default();
        recorder.open().unwrap();
        for _ in 0..3 {
            recorder.open().unwrap();
            recorder.plain().unwrap();
            recorder.close(Kind::Dict).unwrap();
        }
        recorder.close(Kind::Dict).unwrap();
        let record = recorder.finish(None).unwrap();
        assert_eq!(record.nodes, [Node(Kind::Plain, vec![])]);
    }

    #[test]
    fn equal_siblings_are_one_repeat() {
        let mut recorder = Recorder::default();
        recorder.open().unwrap();
        for _ in 0..100 {
            recorder.open().unwrap();
            recorder.leaf(Kind::Jax).unwrap();
            recorder.plain().unwrap();
            recorder.plain().unwrap();
            recorder.close(Kind::Tuple).unwrap();
        }
        recorder.close(Kind::List).unwrap();
        let record = recorder.finish(Some(vec![1])).unwrap();
        let expected = [
            Node(Kind::Plain, vec![]),
            Node(Kind::Jax, vec![]),
            Node(Kind::Tuple, vec![Repeat(1, 1), Repeat(2, 0)]),
            Node(Kind::List, vec![Repeat(100, 2)]),
        ];
        assert_eq!(record.nodes, expected);
        assert_eq!(
            Record::decode(&record.encode(&()).unwrap()).unwrap(),
            record
        );
    }
}
