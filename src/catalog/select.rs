//! Marks selected leaves.

use super::Catalog;
use crate::base::watch::{Steps, Watch};
use crate::patterns::{Selector, State};
use crate::{Result, base::grow};

#[derive(Debug, Default)]
pub struct Marks {
    before: Vec<usize>,
    /// Patterns, by number.
    pub unmatched: Vec<usize>,
    /// The first leaf that no bool covers.
    pub undecided: Option<usize>,
}

impl Marks {
    pub fn new(
        catalog: &Catalog,
        mut is_selected: impl FnMut(usize) -> Result<bool>,
    ) -> Result<Self> {
        let mut before = grow::with_room(catalog.values() + 1)?;
        let mut count = 0;
        before.push(0);
        for value in 0..catalog.values() {
            count += usize::from(is_selected(value)?);
            before.push(count);
        }
        Ok(Self {
            before,
            ..Self::default()
        })
    }

    /// The number of selected values in a range.
    ///
    /// # Panics
    /// If the marks are of another catalog.
    pub fn count(&self, values: std::ops::Range<usize>) -> usize {
        self.before[values.end] - self.before[values.start]
    }

    pub fn has(&self, value: usize) -> bool {
        self.count(value..value + 1) > 0
    }

    pub fn values(&self) -> usize {
        self.before.len().saturating_sub(1)
    }
}

struct Around {
    end: usize,
    state: State,
    before: (usize, usize, usize),
}

struct Marking<'a> {
    catalog: &'a Catalog,
    selector: &'a Selector,
    selected: Vec<u8>,
    around: Vec<Around>,
    leaves: (usize, usize),
    open_ends: Vec<usize>,
    matched: Vec<bool>,
    unmatched: usize,
    undecided: Option<usize>,
}

impl Catalog {
    /// Marks the selected values below `value`, where paths begin.
    ///
    /// An empty container that no bool covers follows the nearest outer container with leaves: it
    /// is selected if all of those are.
    pub fn select(&self, value: usize, selector: &Selector, watch: &dyn Watch) -> Result<Marks> {
        let patterns = selector.patterns.unwrap_or(0);
        let mut marking = Marking {
            catalog: self,
            selector,
            selected: grow::filled(0, self.values())?,
            around: Vec::new(),
            leaves: (0, 0),
            open_ends: Vec::new(),
            matched: vec![false; patterns],
            unmatched: patterns,
            undecided: None,
        };
        let (mut at, mut steps) = (value, Steps::new(watch));
        while at < self.after(value) {
            steps.count()?;
            at = marking.value(at)?;
        }
        marking.close(usize::MAX);
        for open_end in std::mem::take(&mut marking.open_ends) {
            marking.selected[open_end] = 1; // the tree has only empty containers
        }
        let mut marks = Marks::new(self, |value| Ok(marking.selected[value] == 1))?;
        let unmatched = marking.matched.iter().enumerate();
        marks.unmatched = unmatched
            .filter(|pattern| !pattern.1)
            .map(|pattern| pattern.0)
            .collect();
        marks.undecided = marking.undecided;
        Ok(marks)
    }
}

impl Marking<'_> {
    fn value(&mut self, at: usize) -> Result<usize> {
        self.close(at);
        let after = self.catalog.after(at);
        let is_end = after == at + 1;
        let state = match self.around.last() {
            Some(above) => self.selector.below(&above.state, self.catalog.key(at)),
            None if is_end => self.selector.root(),
            None => self.selector.start(),
        };
        for pattern in self.selector.ended(&state) {
            self.unmatched -= usize::from(!std::mem::replace(&mut self.matched[pattern], true));
        }
        if is_end {
            self.end(at, state.selected)?;
        } else if self.selector.goes_on(&state) && !self.is_decided(&state) {
            let before = (self.leaves.0, self.leaves.1, self.open_ends.len());
            let end = after;
            grow::push(&mut self.around, Around { end, state, before })?;
        } else {
            for below in at + 1..after {
                if self.catalog.after(below) == below + 1 {
                    self.end(below, state.selected)?;
                }
            }
            return Ok(after);
        }
        Ok(at + 1)
    }

    /// Returns whether patterns have decided all below.
    fn is_decided(&self, state: &State) -> bool {
        let of_patterns = self.selector.patterns.is_some();
        of_patterns && self.unmatched == 0 && state.selected == Some(true)
    }

    fn end(&mut self, at: usize, selected: Option<bool>) -> Result<()> {
        let is_leaf = self.catalog.leaf(at).is_some();
        let is_selected = selected == Some(true);
        self.selected[at] = is_selected.into();
        self.leaves.0 += usize::from(is_leaf);
        self.leaves.1 += usize::from(is_leaf && is_selected);
        if selected.is_none() && self.selector.patterns.is_none() {
            if is_leaf {
                self.undecided.get_or_insert(at);
            } else {
                grow::push(&mut self.open_ends, at)?;
            }
        }
        Ok(())
    }

    fn close(&mut self, at: usize) {
        while let Some(around) = self.around.pop_if(|around| around.end <= at) {
            let (leaves, selected, open_ends) = around.before;
            if self.leaves.0 == leaves {
                continue; // a container around it decides
            }
            let all = self.leaves.0 - leaves == self.leaves.1 - selected;
            for open_end in self.open_ends.drain(open_ends..) {
                self.selected[open_end] = all.into();
            }
        }
    }
}
