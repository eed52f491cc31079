//! Looks up nodes of a record.

use std::iter::repeat_n;

use super::super::failure::{Failure, Walked};
use crate::format::structure::{Kind, Node, Record};

pub(super) fn damaged<T>(reason: impl Into<String>) -> Walked<T> {
    Err(Failure::structure(reason))
}

/// `positions`: for each level an index and the number of siblings.
pub(super) fn node_at(record: &Record, positions: &[(u64, u64)]) -> Walked<usize> {
    let root = record.nodes.len() - 1; // `Record::read` rejects empty records
    positions
        .iter()
        .try_fold(root, |node, &(mut index, count)| {
            let found = &record.nodes[node];
            if found.0 == Kind::Plain {
                return Ok(node); // everything below is plain
            }
            check_count(found, count)?;
            for repeat in &found.1 {
                if index < u64::from(repeat.0) {
                    return Ok(repeat.1 as usize);
                }
                index -= u64::from(repeat.0);
            }
            damaged("a container has fewer children than it was saved with")
        })
}

/// The nodes of `count` children. All below a plain part is plain.
pub(super) fn numbers(record: &Record, number: usize, count: usize) -> impl Iterator<Item = usize> {
    let node = &record.nodes[number];
    let is_plain = matches!(node.0, Kind::Plain);
    let alike = repeat_n(number, if is_plain { count } else { 0 });
    node.children().chain(alike)
}

pub(super) fn check_count(node: &Node, count: u64) -> Walked {
    if count == node.count() {
        return Ok(());
    }
    damaged(format!(
        "a container has {count} children, and was saved with {}",
        node.count()
    ))
}
