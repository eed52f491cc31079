//! Marking the leaves that are meant, so that whoever reads a tree leaves out all others.

use super::Catalog;
use crate::Result;
use crate::select::{Selector, State};
use crate::watch::Watch;

/// After so many values the caller is asked whether to go on.
const CHECK_VALUES: usize = 1 << 12;

/// Which leaves, and which containers with nothing in them, are meant.
#[derive(Debug, Default)]
pub struct Marks {
    /// How many there are among the values before each, and in all.
    before: Vec<usize>,
    /// Patterns that match none, by their numbers.
    unmatched: Vec<usize>,
    /// The first leaf that is neither meant nor not.
    undecided: Option<usize>,
}

impl Marks {
    /// Marks of the values for which a function says so; it is asked of each.
    pub fn new(catalog: &Catalog, mut is_meant: impl FnMut(usize) -> Result<bool>) -> Result<Self> {
        let mut before = Vec::new();
        before.try_reserve_exact(catalog.values() + 1)?;
        let mut count = 0;
        before.push(0);
        for value in 0..catalog.values() {
            count += usize::from(is_meant(value)?);
            before.push(count);
        }
        Ok(Self {
            before,
            ..Self::default()
        })
    }

    /// How many are meant of the values from one to before another one.
    ///
    /// # Panics
    /// If they are not those of a catalog.
    #[must_use]
    pub fn count(&self, values: std::ops::Range<usize>) -> usize {
        self.before[values.end] - self.before[values.start]
    }

    /// Whether a value is meant, which is a leaf or a container with nothing in it.
    ///
    /// # Panics
    /// If there is no such value.
    #[must_use]
    pub fn has(&self, value: usize) -> bool {
        self.count(value..value + 1) > 0
    }

    /// How many values there are, meant or not.
    #[must_use]
    pub fn values(&self) -> usize {
        self.before.len().saturating_sub(1)
    }

    /// The patterns that match nothing, by their numbers.
    #[must_use]
    pub fn unmatched(&self) -> &[usize] {
        &self.unmatched
    }

    /// The first leaf for which a tree of bools has none.
    #[must_use]
    pub fn undecided(&self) -> Option<usize> {
        self.undecided
    }
}

/// A container around the value that is looked at.
struct Around {
    end: usize,
    /// How far its path has led.
    state: State,
    /// How many leaves, how many that are meant, and how many open ends there were before it.
    before: (usize, usize, usize),
}

/// The marks while they are made.
struct Marking<'a> {
    catalog: &'a Catalog,
    selector: &'a Selector,
    meant: Vec<u8>,
    around: Vec<Around>,
    /// Leaves so far, and those of them that are meant.
    leaves: (usize, usize),
    /// Containers with nothing in them that no bool is about.
    open_ends: Vec<usize>,
    matched: Vec<bool>,
    /// How many patterns have not matched anything so far.
    unmatched: usize,
    undecided: Option<usize>,
}

impl Catalog {
    /// Marks what is meant below a value, from which paths begin.
    ///
    /// Of a container with nothing in it that no bool is about, the nearest container around it
    /// that has leaves decides: it is meant if all of those are.
    pub fn select(&self, value: usize, selector: &Selector, watch: &dyn Watch) -> Result<Marks> {
        let mut meant = Vec::new();
        meant.try_reserve_exact(self.values())?;
        meant.resize(self.values(), 0);
        let patterns = selector.pattern_count().unwrap_or(0);
        let mut marking = Marking {
            catalog: self,
            selector,
            meant,
            around: Vec::new(),
            leaves: (0, 0),
            open_ends: Vec::new(),
            matched: vec![false; patterns],
            unmatched: patterns,
            undecided: None,
        };
        let (mut at, mut steps) = (value, 0_usize);
        while at < self.after(value) {
            if steps.is_multiple_of(CHECK_VALUES) {
                watch.check()?;
            }
            steps += 1;
            at = marking.value(at)?;
        }
        marking.close(usize::MAX);
        for open_end in std::mem::take(&mut marking.open_ends) {
            marking.meant[open_end] = 1; // there are no leaves at all
        }
        let mut marks = Marks::new(self, |value| Ok(marking.meant[value] == 1))?;
        let unmatched = marking.matched.iter().enumerate();
        marks.unmatched = unmatched.filter(|it| !it.1).map(|it| it.0).collect();
        marks.undecided = marking.undecided;
        Ok(marks)
    }
}

impl Marking<'_> {
    /// Looks at a value, or all that is in it, and returns the next one.
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
            self.end(at, state.meant())?;
        } else if self.selector.goes_on(&state) && !self.is_decided(&state) {
            self.around.try_reserve(1)?;
            self.around.push(Around {
                end: after,
                state,
                before: (self.leaves.0, self.leaves.1, self.open_ends.len()),
            });
        } else {
            // Everything below is as this is.
            for below in at + 1..after {
                if self.catalog.after(below) == below + 1 {
                    self.end(below, state.meant())?;
                }
            }
            return Ok(after);
        }
        Ok(at + 1)
    }

    /// Whether no pattern can change what becomes of what is below, nor has still to be matched.
    fn is_decided(&self, state: &State) -> bool {
        let of_patterns = self.selector.pattern_count().is_some();
        of_patterns && self.unmatched == 0 && state.meant() == Some(true)
    }

    /// Marks a leaf or a container with nothing in it.
    fn end(&mut self, at: usize, meant: Option<bool>) -> Result<()> {
        let is_leaf = self.catalog.leaf(at).is_some();
        let is_meant = meant == Some(true);
        self.meant[at] = is_meant.into();
        self.leaves.0 += usize::from(is_leaf);
        self.leaves.1 += usize::from(is_leaf && is_meant);
        if meant.is_none() && self.selector.pattern_count().is_none() {
            if is_leaf {
                self.undecided.get_or_insert(at);
            } else {
                self.open_ends.try_reserve(1)?;
                self.open_ends.push(at);
            }
        }
        Ok(())
    }

    /// Ends the containers that end before a value.
    fn close(&mut self, at: usize) {
        while let Some(around) = self.around.pop_if(|around| around.end <= at) {
            let (leaves, meant, open_ends) = around.before;
            if self.leaves.0 == leaves {
                continue; // what is around it decides
            }
            let all = self.leaves.0 - leaves == self.leaves.1 - meant;
            for open_end in self.open_ends.drain(open_ends..) {
                self.meant[open_end] = all.into();
            }
        }
    }
}
