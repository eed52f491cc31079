//! Making the record of a structure during the walk over a tree.

use std::collections::HashMap;
use std::hash::Hash;

use super::footer::count_of;
use super::{Kind, Node, NodeType, Record, Repeat};
use crate::{Result, grow};

/// Takes down the structure of a tree from the inside out.
#[derive(Debug)]
pub struct Recorder {
    nodes: Numbered<Node>,
    types: Numbered<NodeType>,
    /// The children so far of each container that is open; the first is around the root.
    open: Vec<Vec<Repeat>>,
    /// What was not plain last, and its number: most leaves are like the one before.
    last_leaf: Option<(Kind, u32)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            nodes: Numbered(HashMap::from([(
                Node(Kind::Plain, Vec::new()),
                Self::PLAIN,
            )])),
            types: Numbered::default(),
            open: vec![Vec::new()],
            last_leaf: None,
        }
    }
}

impl Recorder {
    /// The number of [`Kind::Plain`].
    const PLAIN: u32 = 0;

    /// A child that reads back as it was.
    #[inline]
    pub fn plain(&mut self) -> Result<()> {
        self.child(Self::PLAIN)
    }

    /// A child without children.
    pub fn leaf(&mut self, kind: Kind) -> Result<()> {
        let node = match &self.last_leaf {
            Some((last, node)) if *last == kind => *node,
            _ => {
                let node = self.nodes.number(Node(kind.clone(), Vec::new()))?;
                self.last_leaf = Some((kind, node));
                node
            }
        };
        self.child(node)
    }

    /// A container begins.
    pub fn open(&mut self) -> Result<()> {
        grow::push(&mut self.open, Vec::new())
    }

    /// The container that began last ends.
    ///
    /// # Panics
    /// If none has begun.
    pub fn close(&mut self, kind: Kind) -> Result<()> {
        let repeats = self.open.pop().expect("a container that is open");
        let plain =
            matches!(kind, Kind::Dict) && repeats.iter().all(|repeat| repeat.1 == Self::PLAIN);
        let node = if plain {
            Self::PLAIN
        } else {
            self.nodes.number(Node(kind, repeats))?
        };
        self.child(node)
    }

    /// The number of a type, for [`Kind::Typed`].
    pub fn node_type(&mut self, class: NodeType) -> Result<u32> {
        self.types.number(class)
    }

    /// The record, when the whole tree has been taken down.
    ///
    /// # Panics
    /// If a container is still open.
    pub fn finish(mut self, metadata: Option<Vec<u8>>) -> Result<Record> {
        let root = self.open.pop().expect("what is around the root");
        assert!(self.open.is_empty(), "every container is closed");
        // The root is no part of anything, so it was numbered last.
        debug_assert!(
            matches!(root[..], [Repeat(1, root)] if root as usize + 1 == self.nodes.0.len())
        );
        let (types, nodes) = (self.types.in_order()?, self.nodes.in_order()?);
        Ok(Record::new(types, nodes, metadata))
    }

    #[inline]
    fn child(&mut self, node: u32) -> Result<()> {
        let repeats = self.open.last_mut().expect("what is around the root");
        match repeats.last_mut() {
            Some(repeat) if repeat.1 == node => repeat.0 += 1,
            _ => grow::push(repeats, Repeat(1, node))?,
        }
        Ok(())
    }
}

/// Different things, each with a number.
#[derive(Debug)]
struct Numbered<T>(HashMap<T, u32>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Numbered<T> {
    /// The number of `thing`, which is new if there is no equal one.
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
    fn what_reads_back_as_it_was_is_one_node() {
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
