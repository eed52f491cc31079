//! An array in several blocks, such as shards on devices.
//!
//! Its bytes in C order are copied row by row from the shards into the output, without assembling
//! the array first.

use std::ops::Range;

use crate::Result;
use crate::layout::Payload;
use crate::raw::{AsRaw, Filling, Uninit, zeroed};

/// A block of `shape` elements at `start`, in C order.
#[derive(Debug)]
pub struct Shard<M> {
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    pub memory: M,
}

#[derive(Debug)]
pub struct Sharded<M> {
    shape: Vec<usize>,
    bounds: Vec<Vec<usize>>,
    cells: Vec<M>,
    split: usize,
    /// The bytes of one index of `split`.
    inner: usize,
}

impl<M: AsRaw> Sharded<M> {
    /// Sorts the shards; `None` unless they form a grid that covers the array exactly once.
    pub fn new(mut shape: Vec<usize>, itemsize: usize, mut shards: Vec<Shard<M>>) -> Option<Self> {
        if shape.is_empty() {
            // An element is a row of one.
            shape.push(1);
            for shard in &mut shards {
                shard.start.push(0);
                shard.shape.push(1);
            }
        }
        let ndim = shape.len();
        let fits = |shard: &Shard<M>| shard.start.len() == ndim && shard.shape.len() == ndim;
        if !shards.iter().all(fits) {
            return None;
        }
        if shape.contains(&0) {
            return Some(Self {
                shape,
                bounds: Vec::new(),
                cells: Vec::new(),
                split: 0,
                inner: 0,
            });
        }
        let mut bounds = Vec::with_capacity(ndim);
        for (dim, &len) in shape.iter().enumerate() {
            let mut starts: Vec<usize> = shards.iter().map(|shard| shard.start[dim]).collect();
            starts.push(len);
            starts.sort_unstable();
            starts.dedup();
            bounds.push(starts);
        }
        let mut placed: Vec<Option<M>> = Vec::new();
        placed.resize_with(shards.len(), || None);
        for shard in shards {
            let mut index = 0;
            for dim in 0..ndim {
                let bounds = &bounds[dim];
                let cell = bounds.binary_search(&shard.start[dim]).ok()?;
                if bounds.get(cell + 1)? - bounds[cell] != shard.shape[dim] {
                    return None;
                }
                index = index * (bounds.len() - 1) + cell;
            }
            let nbytes = shard.shape.iter().product::<usize>() * itemsize;
            let place = placed.get_mut(index)?;
            if place.is_some() || shard.memory.as_raw().len() != nbytes {
                return None;
            }
            *place = Some(shard.memory);
        }
        let whole = bounds.iter().all(|bounds| bounds[0] == 0);
        let count: usize = bounds.iter().map(|bounds| bounds.len() - 1).product();
        if !whole || count != placed.len() {
            return None;
        }
        let split = bounds
            .iter()
            .rposition(|bounds| bounds.len() > 2)
            .unwrap_or(0);
        Some(Self {
            inner: shape[split + 1..].iter().product::<usize>() * itemsize,
            cells: placed.into_iter().collect::<Option<_>>()?,
            shape,
            bounds,
            split,
        })
    }
}

impl<M: AsRaw> Sharded<M> {
    /// Finds `row` (an index of all dimensions before `split`): its first cell, its row there, and
    /// the number of following rows in the same cells.
    fn locate(&self, mut row: usize) -> (usize, usize, usize) {
        let (mut index, mut stride) = (0, self.bounds[self.split].len() - 1);
        let (mut local_row, mut local_stride) = (0, 1);
        let mut rows = 1;
        for dim in (0..self.split).rev() {
            let bounds = &self.bounds[dim];
            let (rest, at) = (row / self.shape[dim], row % self.shape[dim]);
            let cell = cell(bounds, at);
            let extent = bounds[cell + 1] - bounds[cell];
            if dim + 1 == self.split {
                rows = bounds[cell + 1] - at;
            }
            index += cell * stride;
            stride *= bounds.len() - 1;
            local_row += (at - bounds[cell]) * local_stride;
            local_stride *= extent;
            row = rest;
        }
        (index, local_row, rows)
    }

    fn copy_in_row(
        &self,
        row: usize,
        range: Range<usize>,
        filling: &mut Filling<'_>,
    ) -> Result<()> {
        let bounds = &self.bounds[self.split];
        let (first, local_row, _) = self.locate(row);
        let mut at = range.start;
        while at < range.end {
            let column = cell(bounds, at / self.inner);
            let (begin, end) = (bounds[column] * self.inner, bounds[column + 1] * self.inner);
            let len = end.min(range.end) - at;
            let from = local_row * (end - begin) + at - begin;
            let memory = self.cells[first + column].as_raw().slice(from..from + len);
            filling.fill(len, |now| Ok(memory.copy_to(now)))?;
            at += len;
        }
        Ok(())
    }

    fn copy_rows(&self, rows: Range<usize>, filling: &mut Filling<'_>) -> Result<()> {
        let bounds = &self.bounds[self.split];
        let row_bytes = self.shape[self.split] * self.inner;
        let mut row = rows.start;
        while row < rows.end {
            let (first, local_row, together) = self.locate(row);
            let count = together.min(rows.end - row);
            filling.fill(count * row_bytes, |now| {
                if let [_, _] = bounds[..] {
                    let memory = self.cells[first].as_raw();
                    let from = local_row * row_bytes;
                    return Ok(memory.slice(from..from + count * row_bytes).copy_to(now));
                }
                // The parts interleave.
                let now = zeroed(now);
                for (column, pair) in bounds.windows(2).enumerate() {
                    let (begin, len) = (pair[0] * self.inner, (pair[1] - pair[0]) * self.inner);
                    let from = local_row * len;
                    let memory = self.cells[first + column].as_raw();
                    let memory = memory.slice(from..from + count * len);
                    memory.copy_rows(len, &mut now[begin..], row_bytes);
                }
                Ok(now)
            })?;
            row += count;
        }
        Ok(())
    }
}

impl<M: AsRaw> Payload for Sharded<M> {
    fn len(&self) -> usize {
        self.shape[..=self.split].iter().product::<usize>() * self.inner
    }

    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let end = start + target.len();
        assert!(end <= self.len());
        let mut filling = Filling::new(target);
        if start == end {
            return Ok(filling.finish());
        }
        let row_bytes = self.shape[self.split] * self.inner;
        let rows = start.div_ceil(row_bytes)..end / row_bytes;
        if rows.start > rows.end {
            let row = start / row_bytes;
            let range = start - row * row_bytes..end - row * row_bytes;
            self.copy_in_row(row, range, &mut filling)?;
            return Ok(filling.finish());
        }
        let head = rows.start * row_bytes - start;
        if head > 0 {
            self.copy_in_row(rows.start - 1, row_bytes - head..row_bytes, &mut filling)?;
        }
        let after = rows.end;
        self.copy_rows(rows, &mut filling)?;
        let tail = filling.left();
        if tail > 0 {
            self.copy_in_row(after, 0..tail, &mut filling)?;
        }
        Ok(filling.finish())
    }
}

fn cell(bounds: &[usize], at: usize) -> usize {
    bounds.partition_point(|&bound| bound <= at) - 1
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // bytes may repeat
mod tests {
    use super::*;
    use crate::raw::append_with;
    use proptest::prelude::*;

    fn cut(shape: &[usize], itemsize: usize, bounds: &[Vec<usize>]) -> Vec<Shard<Vec<u8>>> {
        let mut boxes = vec![(Vec::new(), Vec::new())];
        for bounds in bounds {
            boxes = boxes
                .iter()
                .flat_map(|(start, extent)| {
                    bounds.windows(2).map(move |pair| {
                        let mut more: (Vec<usize>, Vec<usize>) = (start.clone(), extent.clone());
                        more.0.push(pair[0]);
                        more.1.push(pair[1] - pair[0]);
                        more
                    })
                })
                .collect();
        }
        let shard = |(start, extent): (Vec<usize>, Vec<usize>)| {
            let mut memory = Vec::new();
            for flat in 0..shape.iter().product::<usize>() {
                let mut rest = flat;
                let inside = (0..shape.len()).rev().all(|dim| {
                    let at = rest % shape[dim];
                    rest /= shape[dim];
                    (start[dim]..start[dim] + extent[dim]).contains(&at)
                });
                if inside {
                    memory.extend((0..itemsize).map(|byte| (flat * itemsize + byte) as u8));
                }
            }
            Shard {
                start,
                shape: extent,
                memory,
            }
        };
        boxes.into_iter().map(shard).collect()
    }

    fn grids() -> impl Strategy<Value = (Vec<usize>, Vec<Vec<usize>>)> {
        let dim = (1usize..6).prop_flat_map(|len| {
            prop::collection::btree_set(1..=len, 0..3).prop_map(move |cuts| {
                let mut bounds: Vec<usize> = cuts.into_iter().filter(|&cut| cut < len).collect();
                bounds.insert(0, 0);
                bounds.push(len);
                (len, bounds)
            })
        });
        prop::collection::vec(dim, 1..4).prop_map(|dims| dims.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn any_range_is_that_of_the_array((shape, bounds) in grids(), itemsize in 1usize..4) {
            let mut shards = cut(&shape, itemsize, &bounds);
            shards.reverse(); // any order is accepted
            let array = Sharded::new(shape.clone(), itemsize, shards).unwrap();
            let len = shape.iter().product::<usize>() * itemsize;
            prop_assert_eq!(array.len(), len);
            let step = if cfg!(miri) { 47 } else { 1 }; // Miri takes a thousand times as long
            for start in (0..=len).step_by(step) {
                for end in (start..=len).step_by(step) {
                    let mut found = Vec::new();
                    append_with(&mut found, end - start, |target| array.copy_to(start, target)).unwrap();
                    let expected: Vec<u8> = (start..end).map(|byte| byte as u8).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn shards_that_are_no_grid_are_refused() {
        let shape = vec![4, 6];
        let shards = || cut(&shape, 2, &[vec![0, 2, 4], vec![0, 3, 6]]);
        assert!(Sharded::new(shape.clone(), 2, shards()).is_some());
        let spoil = |change: fn(&mut Vec<Shard<Vec<u8>>>)| {
            let mut shards = shards();
            change(&mut shards);
            Sharded::new(shape.clone(), 2, shards)
        };
        assert!(spoil(|shards| drop(shards.pop())).is_none());
        assert!(spoil(|shards| shards[1].start = vec![0, 0]).is_none());
        assert!(spoil(|shards| shards[1].start = vec![0, 4]).is_none());
        assert!(spoil(|shards| shards[1].shape = vec![2, 2]).is_none());
        assert!(spoil(|shards| shards[1].start = vec![0]).is_none());
        assert!(spoil(|shards| shards[1].memory.truncate(3)).is_none());
    }
}
