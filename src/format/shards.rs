//! An array in several blocks, such as shards on devices.
//!
//! Its bytes in C order are copied row by row from the shards into the output, without assembling
//! the array first.

use crate::Result;
use crate::base::raw::{AsRaw, Filling, Uninit, zeroed};
use crate::elements::ShardGrid;
use crate::format::layout::Payload;

/// A block of `shape` elements at `start`, in C order.
#[derive(Debug)]
pub struct Shard<M> {
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    pub memory: M,
}

#[derive(Debug)]
pub struct Sharded<M> {
    /// The number of shards and their size in each dimension before `columns`.
    outer: Vec<(usize, usize)>,
    /// The number of shards in the last divided dimension.
    columns: usize,
    /// Contiguous bytes of a shard; one of each column makes a row.
    run_bytes: usize,
    shards: Vec<M>,
}

impl<M: AsRaw> Sharded<M> {
    /// Sorts the shards; `None` unless they form a grid that covers the array exactly once.
    pub fn new(shape: &[usize], itemsize: usize, mut shards: Vec<Shard<M>>) -> Option<Self> {
        let part = shards.first()?.shape.clone();
        let counts = shape.iter().zip(&part);
        let counts = counts.map(|(len, part)| len.checked_div(*part).unwrap_or(1));
        let counts: Vec<usize> = counts.collect();
        let grid = ShardGrid::new(shape, &counts)?;
        shards.sort_by_key(|shard| grid.shard_at(&shard.start));
        let nbytes = part.iter().product::<usize>() * itemsize;
        let fits = |(number, shard): (usize, &Shard<M>)| {
            grid.shard_at(&shard.start) == Some(number)
                && shard.shape == part
                && grid.shape_of(number) == part
                && shard.memory.as_raw().len() == nbytes
        };
        if shards.len() != grid.len() || !shards.iter().enumerate().all(fits) {
            return None;
        }
        let divided = counts.iter().rposition(|count| *count > 1).unwrap_or(0);
        Some(Self {
            columns: counts.get(divided).copied().unwrap_or(1),
            run_bytes: part[divided..].iter().product::<usize>() * itemsize,
            outer: counts.into_iter().zip(part).take(divided).collect(),
            shards: shards.into_iter().map(|shard| shard.memory).collect(),
        })
    }

    /// Finds a row: the shard of its first column, its row there, and the number of rows that
    /// follow it in the same shards.
    fn locate(&self, mut row: usize) -> (usize, usize, usize) {
        let (mut shard, mut shards) = (0, self.columns);
        let (mut inner, mut rows) = (0, 1);
        for (count, size) in self.outer.iter().rev() {
            let at = row % (count * size);
            row /= count * size;
            shard += at / size * shards;
            shards *= count;
            inner += at % size * rows;
            rows *= size;
        }
        let together = self.outer.last().map_or(1, |(_, size)| size - inner % size);
        (shard, inner, together)
    }
}

impl<M: AsRaw> Payload for Sharded<M> {
    fn len(&self) -> usize {
        self.shards.iter().map(|memory| memory.as_raw().len()).sum()
    }

    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let (mut at, run_bytes) = (start, self.run_bytes);
        let row_bytes = self.columns * run_bytes;
        let mut filling = Filling::new(target);
        while filling.left() > 0 {
            let within = at % row_bytes;
            let (first, row, together) = self.locate(at / row_bytes);
            let rows = together.min(filling.left() / row_bytes);
            let mut len = rows * row_bytes;
            if within > 0 || rows < 2 {
                let from = row * run_bytes + within % run_bytes;
                len = filling.left().min(run_bytes - within % run_bytes);
                let memory = self.shards[first + within / run_bytes].as_raw();
                filling.fill(len, |now| Ok(memory.slice(from..from + len).copy_to(now)))?;
            } else {
                // The runs of shards interleave.
                filling.fill(len, |now| {
                    let now = zeroed(now);
                    let from = row * run_bytes..(row + rows) * run_bytes;
                    let shards = self.shards[first..].iter().take(self.columns);
                    for (column, memory) in shards.enumerate() {
                        let memory = memory.as_raw().slice(from.clone());
                        memory.copy_rows(run_bytes, &mut now[column * run_bytes..], row_bytes);
                    }
                    Ok(now)
                })?;
            }
            at += len;
        }
        Ok(filling.finish())
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // bytes may repeat
mod tests {
    use super::*;
    use crate::base::raw::append_with;
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
        let dim = (1usize..4, 1usize..4).prop_map(|(count, size)| {
            let bounds = (0..=count).map(|at| at * size).collect();
            (count * size, bounds)
        });
        prop::collection::vec(dim, 0..4).prop_map(|dims| dims.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn any_range_is_that_of_the_array((shape, bounds) in grids(), itemsize in 1usize..4) {
            let mut shards = cut(&shape, itemsize, &bounds);
            shards.reverse(); // any order is accepted
            let array = Sharded::new(&shape, itemsize, shards).unwrap();
            let len = shape.iter().product::<usize>() * itemsize;
            prop_assert_eq!(array.len(), len);
            let step = if cfg!(miri) { 47 } else { 1 }; // Miri takes a thousand times as long
            for start in (0..=len).step_by(step) {
                for end in (start..=len).step_by(step) {
                    let mut bytes = Vec::new();
                    append_with(&mut bytes, end - start, |target| array.copy_to(start, target)).unwrap();
                    let expected: Vec<u8> = (start..end).map(|byte| byte as u8).collect();
                    prop_assert_eq!(bytes, expected);
                }
            }
        }
    }

    #[test]
    fn shards_that_are_no_grid_are_refused() {
        let shape = vec![4, 6];
        let shards = || cut(&shape, 2, &[vec![0, 2, 4], vec![0, 3, 6]]);
        assert!(Sharded::new(&shape, 2, shards()).is_some());
        let uneven = cut(&shape, 2, &[vec![0, 1, 4], vec![0, 6]]);
        assert!(Sharded::new(&shape, 2, uneven).is_none());
        let spoil = |change: fn(&mut Vec<Shard<Vec<u8>>>)| {
            let mut shards = shards();
            change(&mut shards);
            Sharded::new(&shape, 2, shards)
        };
        assert!(spoil(|shards| drop(shards.pop())).is_none());
        assert!(spoil(|shards| shards[1].start = vec![0, 0]).is_none());
        assert!(spoil(|shards| shards[1].start = vec![0, 4]).is_none());
        assert!(spoil(|shards| shards[1].shape = vec![2, 2]).is_none());
        assert!(spoil(|shards| shards[1].start = vec![0]).is_none());
        assert!(spoil(|shards| shards[1].memory.truncate(3)).is_none());
    }
}
