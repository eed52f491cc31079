//! Runs at a constant stride.

use std::mem;
use std::ops::Range;

use crate::Result;
use crate::base::raw::Uninit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeat {
    pub count: usize,
    /// Distance between starts in the array.
    pub source: usize,
    /// Distance between starts in memory.
    pub target: usize,
}

impl Repeat {
    pub fn once(nbytes: usize) -> Self {
        Self {
            count: 1,
            source: nbytes,
            target: nbytes,
        }
    }

    pub fn part(self, range: &Range<usize>) -> Self {
        let count = range.len();
        Self { count, ..self }
    }
}

pub fn each(
    repeats: &[Repeat],
    source: usize,
    target: usize,
    visit: &mut impl FnMut(usize, usize) -> Result<()>,
) -> Result<()> {
    match repeats.split_first() {
        None => visit(source, target),
        Some((outer, inner)) => {
            for at in 0..outer.count {
                let (source, target) = (source + at * outer.source, target + at * outer.target);
                each(inner, source, target, visit)?;
            }
            Ok(())
        }
    }
}

/// Memory that is handed out in ascending parts.
pub struct Rest<'a> {
    memory: &'a mut Uninit,
    taken: usize,
}

impl<'a> Rest<'a> {
    pub fn new(memory: &'a mut Uninit) -> Self {
        Self { memory, taken: 0 }
    }

    /// # Panics
    /// If the part is taken, or exceeds the memory.
    pub fn take(&mut self, start: usize, len: usize) -> &'a mut Uninit {
        let (_, later) = mem::take(&mut self.memory).split_at_mut(start - self.taken);
        let (part, later) = later.split_at_mut(len);
        (self.memory, self.taken) = (later, start + len);
        part
    }
}
