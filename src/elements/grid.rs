//! Divides an array into shards of one shape, of which the last of a dimension may be shorter, and
//! finds those that overlap a box.

use std::fmt::Write as _;
use std::ops::Range;

use super::runs::{Bounds, Runs};
use crate::Result;

/// A grid of shards in C order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardGrid {
    dims: Vec<Dim>,
}

/// A dimension of `len` elements, in `count` shards of `size` elements; the last may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dim {
    len: usize,
    count: usize,
    size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPart {
    pub shard: usize,
    pub local: Vec<Bounds>,
    pub target: Vec<Range<usize>>,
}

impl ShardGrid {
    /// Divides `shape` into `counts` shards per dimension; `None` if some would be empty.
    pub fn new(shape: &[usize], counts: &[usize]) -> Option<Self> {
        if shape.len() != counts.len() || counts.contains(&0) {
            return None;
        }
        counts
            .iter()
            .try_fold(1_usize, |all, count| all.checked_mul(*count))?;
        let dims = shape.iter().zip(counts).map(|(&len, &count)| {
            let size = len.div_ceil(count);
            let is_full = len == 0 || len.div_ceil(size) == count;
            is_full.then_some(Dim { len, count, size })
        });
        Some(Self {
            dims: dims.collect::<Option<_>>()?,
        })
    }

    pub fn len(&self) -> usize {
        self.dims.iter().map(|dim| dim.count).product()
    }

    pub fn shard_at(&self, start: &[usize]) -> Option<usize> {
        if start.len() != self.dims.len() {
            return None;
        }
        let mut dims = self.dims.iter().zip(start);
        dims.try_fold(0, |shard, (dim, &start)| {
            let at = start.checked_div(dim.size).unwrap_or(0);
            (at < dim.count && at * dim.size == start).then_some(shard * dim.count + at)
        })
    }

    pub fn bounds(&self, mut shard: usize) -> Option<Vec<Range<usize>>> {
        if shard >= self.len() {
            return None;
        }
        let mut bounds = vec![0..0; self.dims.len()];
        for (bounds, dim) in bounds.iter_mut().zip(&self.dims).rev() {
            let start = shard % dim.count * dim.size;
            *bounds = start..dim.len.min(start.saturating_add(dim.size));
            shard /= dim.count;
        }
        Some(bounds)
    }

    /// The key of a shard in its file, such as `[0:4,8:16]`.
    pub fn name(&self, shard: usize) -> Result<Option<String>> {
        let mut name = String::new();
        if shard >= self.len() {
            return Ok(None);
        }
        self.write_name(shard, &mut name)?;
        Ok(Some(name))
    }

    /// Replaces `name` by the key of a shard.
    ///
    /// # Panics
    /// If the shard does not exist.
    pub fn write_name(&self, shard: usize, name: &mut String) -> Result<()> {
        let bounds = self.bounds(shard).expect("the shard exists");
        name.clear();
        // Two numbers of at most 20 digits, and punctuation.
        name.try_reserve(42 * self.dims.len() + 2)?;
        name.push('[');
        for (dim, Range { start, end }) in bounds.into_iter().enumerate() {
            let comma = if dim > 0 { "," } else { "" };
            let _ = write!(name, "{comma}{start}:{end}"); // into reserved memory
        }
        name.push(']');
        Ok(())
    }

    /// # Panics
    /// If the shard does not exist.
    pub fn shape_of(&self, shard: usize) -> Vec<usize> {
        let bounds = self.bounds(shard).expect("the shard exists");
        bounds.into_iter().map(|range| range.len()).collect()
    }

    /// The parts of a box in each shard; `None` if the box exceeds the array.
    pub fn parts(&self, bounds: &[Bounds]) -> Option<ShardParts> {
        let is_in = |(dim, bounds): (&Dim, &Bounds)| bounds.are_in(dim.len);
        if bounds.len() != self.dims.len() || !self.dims.iter().zip(bounds).all(is_in) {
            return None;
        }
        let dims = self.dims.iter().zip(bounds);
        let dims = dims.map(|(&dim, &bounds)| Cut { dim, bounds });
        Some(ShardParts {
            dims: dims.collect(),
        })
    }

    /// The runs of a part in memory with these strides, and their offset. `None` if elements would
    /// overlap.
    ///
    /// # Panics
    /// If the part is from another grid.
    pub fn runs(
        &self,
        part: &ShardPart,
        itemsize: usize,
        strides: &[usize],
    ) -> Option<(usize, Runs)> {
        assert_eq!(part.local.len(), self.dims.len());
        let shape = self.shape_of(part.shard);
        let runs = Runs::new(&shape, itemsize, &part.local, strides)?;
        let mut starts = part.target.iter().zip(strides);
        let start = starts.try_fold(0_usize, |sum, (target, stride)| {
            sum.checked_add(target.start.checked_mul(*stride)?)
        });
        Some((start?, runs))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardParts {
    dims: Vec<Cut>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    dim: Dim,
    bounds: Bounds,
}

impl ShardParts {
    pub fn len(&self) -> usize {
        self.dims.iter().map(Cut::len).product()
    }

    pub fn each<E>(
        &self,
        mut visit: impl FnMut(&ShardPart) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut part = ShardPart {
            shard: 0,
            local: self.dims.iter().map(|cut| cut.bounds).collect(),
            target: vec![0..0; self.dims.len()],
        };
        for number in 0..self.len() {
            let (mut left, mut shards) = (number, 1);
            part.shard = 0;
            for (at, cut) in self.dims.iter().enumerate().rev() {
                let (shard, target) = cut.piece(left % cut.len());
                left /= cut.len();
                part.shard += shard * shards;
                shards *= cut.dim.count;
                part.local[at] = cut.local(shard, &target);
                part.target[at] = target;
            }
            visit(&part)?;
        }
        Ok(())
    }
}

impl Cut {
    fn len(&self) -> usize {
        let Bounds { start, count, step } = self.bounds;
        if count == 0 || step >= self.dim.size {
            return count; // no two are in one shard
        }
        (start + (count - 1) * step) / self.dim.size - start / self.dim.size + 1
    }

    /// A piece of the box: its shard, and its range in the box.
    fn piece(&self, number: usize) -> (usize, Range<usize>) {
        let Bounds { start, count, step } = self.bounds;
        let size = self.dim.size;
        if step >= size {
            return ((start + number * step) / size, number..number + 1);
        }
        let shard = start / size + number;
        let from = |shard: usize| (shard * size).saturating_sub(start).div_ceil(step);
        (shard, from(shard)..from(shard + 1).min(count))
    }

    /// The range of a piece in its shard.
    fn local(&self, shard: usize, target: &Range<usize>) -> Bounds {
        let Bounds { start, step, .. } = self.bounds;
        Bounds {
            start: start + target.start * step - shard * self.dim.size,
            count: target.len(),
            step,
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // bytes may repeat
pub(crate) mod tests {
    use super::super::runs::tests::read;
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn boxes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<Bounds>)> {
        let dim = (1usize..4, 0usize..5, 0usize..4).prop_flat_map(|(count, size, less)| {
            let len = (count * size).saturating_sub(less.min(size.saturating_sub(1)));
            let count = if len == 0 {
                count
            } else {
                len.div_ceil(len.div_ceil(count))
            };
            (0..=len, 1usize..4, 0usize..12).prop_map(move |(start, step, most)| {
                let count_of = most.min((len - start).div_ceil(step));
                let bounds = Bounds {
                    start,
                    count: count_of,
                    step,
                };
                (len, count, bounds)
            })
        });
        prop::collection::vec(dim, 0..4).prop_map(|dims| {
            let shape = dims.iter().map(|dim| dim.0).collect();
            let counts = dims.iter().map(|dim| dim.1).collect();
            (shape, counts, dims.into_iter().map(|dim| dim.2).collect())
        })
    }

    pub(crate) fn elements(shape: &[usize], indices: &[Vec<usize>]) -> Vec<usize> {
        let mut numbers = vec![0];
        for (len, indices) in shape.iter().zip(indices) {
            let more = |at: usize| indices.iter().map(move |index| at * len + index);
            numbers = numbers.into_iter().flat_map(more).collect();
        }
        numbers
    }

    pub(crate) fn indices(bounds: &[Bounds]) -> Vec<Vec<usize>> {
        let of = |bounds: &Bounds| {
            (0..bounds.count)
                .map(|at| bounds.start + at * bounds.step)
                .collect()
        };
        bounds.iter().map(of).collect()
    }

    fn all(parts: &ShardParts) -> Vec<ShardPart> {
        let mut collected = Vec::new();
        let added = parts.each(|part| {
            collected.push(part.clone());
            Ok::<_, ()>(())
        });
        added.unwrap();
        collected
    }

    fn naive(
        shape: &[usize],
        counts: &[usize],
        bounds: &[Bounds],
    ) -> Vec<(usize, Vec<Vec<usize>>)> {
        let mut shards = vec![(0, vec![])];
        for ((len, count), bounds) in shape.iter().zip(counts).zip(bounds) {
            let size = len.div_ceil(*count);
            let mut pieces: Vec<(usize, Vec<usize>)> = Vec::new();
            for index in &indices(&[*bounds])[0] {
                match pieces.last_mut() {
                    Some((shard, inside)) if *shard == index / size => inside.push(index % size),
                    _ => pieces.push((index / size, vec![index % size])),
                }
            }
            let with = |(shard, inside): (usize, Vec<Vec<usize>>)| {
                let pieces = pieces.clone().into_iter();
                pieces.map(move |(piece, indices)| {
                    (shard * count + piece, [&inside[..], &[indices]].concat())
                })
            };
            shards = shards.into_iter().flat_map(with).collect();
        }
        shards
    }

    proptest! {
        #[test]
        fn parts_are_those_of_all_indices((shape, counts, bounds) in boxes()) {
            let grid = ShardGrid::new(&shape, &counts).unwrap();
            let parts = grid.parts(&bounds).unwrap();
            let shards: Vec<_> = all(&parts).into_iter().map(|part| (part.shard, indices(&part.local))).collect();
            prop_assert_eq!(&shards, &naive(&shape, &counts, &bounds));
        }

        #[test]
        fn shards_have_all_of_a_box((shape, counts, bounds) in boxes(), itemsize in 1usize..4) {
            let grid = ShardGrid::new(&shape, &counts).unwrap();
            let bytes = |elements: Vec<usize>| -> Vec<u8> {
                let of = |at: usize| (0..itemsize).map(move |byte| (at * itemsize + byte) as u8);
                elements.into_iter().flat_map(of).collect()
            };
            let shards: Vec<Vec<u8>> = (0..grid.len())
                .map(|shard| {
                    let place = grid.bounds(shard).unwrap();
                    let start: Vec<usize> = place.iter().map(|range| range.start).collect();
                    if !shape.contains(&0) {
                        assert_eq!(grid.shard_at(&start), Some(shard));
                    }
                    let place: Vec<Vec<usize>> = place.into_iter().map(Iterator::collect).collect();
                    bytes(elements(&shape, &place))
                })
                .collect();
            let expected = bytes(elements(&shape, &indices(&bounds)));
            let mut strides = vec![itemsize; shape.len()];
            for dim in (1..shape.len()).rev() {
                strides[dim - 1] = strides[dim] * bounds[dim].count.max(1);
            }
            let mut memory = vec![0_u8; expected.len()];
            let mut nbytes = 0;
            let parts = grid.parts(&bounds).unwrap();
            let all = all(&parts);
            prop_assert_eq!(all.len(), parts.len());
            prop_assert!(all.iter().map(|part| part.shard).is_sorted());
            for part in all {
                let (start, runs) = grid.runs(&part, itemsize, &strides).unwrap();
                let bytes = read(&runs, &shards[part.shard]);
                let target = memory[start..].iter_mut();
                target.zip(bytes).for_each(|(sum, byte)| *sum = sum.wrapping_add(byte));
                nbytes += runs.nbytes();
            }
            prop_assert_eq!(nbytes, expected.len());
            prop_assert_eq!(memory, expected);
        }

    }

    #[test]
    fn empty_and_missing_shards_are_rejected() {
        assert!(ShardGrid::new(&[4, 6], &[2]).is_none());
        assert!(ShardGrid::new(&[4, 6], &[3, 2]).is_none());
        assert!(ShardGrid::new(&[5], &[4]).is_none());
        let uneven = ShardGrid::new(&[5], &[3]).unwrap();
        assert_eq!(uneven.name(2).unwrap().unwrap(), "[4:5]");
        assert_eq!((uneven.shape_of(1), uneven.shape_of(2)), (vec![2], vec![1]));
        assert!(ShardGrid::new(&[4, 6], &[0, 2]).is_none());
        assert!(ShardGrid::new(&[0, 0], &[1 << 40, 1 << 40]).is_none());
        let grid = ShardGrid::new(&[4, 6], &[2, 3]).unwrap();
        assert_eq!(grid.len(), 6);
        assert_eq!(grid.bounds(4), Some(vec![2..4, 2..4]));
        assert_eq!(grid.name(4).unwrap().unwrap(), "[2:4,2:4]");
        assert_eq!((grid.bounds(6), grid.name(6).unwrap()), (None, None));
        assert_eq!(grid.shard_at(&[2, 2]), Some(4));
        for start in [&[2, 1][..], &[4, 0], &[2]] {
            assert_eq!(grid.shard_at(start), None);
        }
        let bounds = |start, count, step| Bounds { start, count, step };
        let missing = |bounds: &[Bounds]| grid.parts(bounds).is_none();
        assert!(missing(&[bounds(0, 4, 1)]));
        assert!(missing(&[bounds(0, 5, 1), bounds(0, 1, 1)]));
        assert!(missing(&[bounds(0, 1, 1), bounds(0, 2, 6)]));
        assert!(!missing(&[bounds(4, 0, 1), bounds(0, 6, 1)]));
        let whole = ShardGrid::new(&[], &[]).unwrap();
        assert_eq!(whole.parts(&[]).unwrap().len(), 1);
        assert_eq!((whole.len(), whole.shard_at(&[])), (1, Some(0)));
        assert_eq!(whole.name(0).unwrap().unwrap(), "[]");
    }
}
