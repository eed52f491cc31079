//! An array that is cut into shards of one shape: which of them have a box, and where that goes.

use std::ops::Range;

use super::runs::{Bounds, Runs};
use crate::{Result, grow};

/// How an array is cut into shards of one shape. They have numbers, the last dimension varying
/// fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardGrid {
    /// For each dimension, how many shards there are, and how many indices one has.
    dims: Vec<(usize, usize)>,
}

/// What a shard has of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPart {
    /// The number of the shard.
    pub shard: usize,
    /// Which of its indices, in each dimension.
    pub local: Vec<Bounds>,
    /// Which of those of the box they are.
    pub target: Vec<Range<usize>>,
}

impl ShardGrid {
    /// As many shards in each dimension as `counts` say. `None` if they would not have one shape.
    #[must_use]
    pub fn new(shape: &[usize], counts: &[usize]) -> Option<Self> {
        let is_even = |(len, count): (&usize, &usize)| *count > 0 && len.is_multiple_of(*count);
        if shape.len() != counts.len() || !shape.iter().zip(counts).all(is_even) {
            return None;
        }
        counts
            .iter()
            .try_fold(1_usize, |all, count| all.checked_mul(*count))?;
        let dims = shape.iter().zip(counts);
        let dims = dims.map(|(len, count)| (*count, len / count)).collect();
        Some(Self { dims })
    }

    /// How many shards there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // there is one at least
    pub fn len(&self) -> usize {
        self.dims.iter().map(|(count, _)| count).product()
    }

    /// The number of the shard that begins at an index of the array. `None` if none does.
    #[must_use]
    pub fn shard_at(&self, start: &[usize]) -> Option<usize> {
        if start.len() != self.dims.len() {
            return None;
        }
        let mut dims = self.dims.iter().zip(start);
        dims.try_fold(0, |shard, (&(count, size), &start)| {
            let at = start.checked_div(size).unwrap_or(0);
            (at < count && at * size == start).then_some(shard * count + at)
        })
    }

    /// Where a shard is in the array. `None` if there are fewer.
    #[must_use]
    pub fn bounds(&self, mut shard: usize) -> Option<Vec<Range<usize>>> {
        if shard >= self.len() {
            return None;
        }
        let mut bounds = vec![0..0; self.dims.len()];
        for (bounds, (count, size)) in bounds.iter_mut().zip(&self.dims).rev() {
            let start = shard % count * size;
            *bounds = start..start + size;
            shard /= count;
        }
        Some(bounds)
    }

    /// The key of a shard in its file: `[0:4,8:16]`. `None` if there are fewer.
    #[must_use]
    pub fn name(&self, shard: usize) -> Option<String> {
        let bounds = self.bounds(shard)?;
        let bounds: Vec<String> = bounds
            .iter()
            .map(|it| format!("{}:{}", it.start, it.end))
            .collect();
        Some(format!("[{}]", bounds.join(",")))
    }

    /// What shards have of a box of the array. `None` if there is no such box.
    ///
    /// ```
    /// use treepack::array::{Bounds, ShardGrid};
    ///
    /// # fn main() -> treepack::Result<()> {
    /// let grid = ShardGrid::new(&[4, 6], &[1, 3]).expect("the shards have one shape");
    /// let row = [Bounds { start: 2, count: 1, step: 1 }, Bounds { start: 1, count: 3, step: 1 }];
    /// let parts = grid.parts(&row)?.expect("the row is in the array");
    /// assert_eq!(parts.iter().map(|it| it.shard).collect::<Vec<_>>(), [0, 1]);
    /// assert_eq!(parts[1].target, [0..1, 1..3]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn parts(&self, bounds: &[Bounds]) -> Result<Option<Vec<ShardPart>>> {
        let is_in =
            |((count, size), bounds): (&(usize, usize), &Bounds)| bounds.are_in(count * size);
        if bounds.len() != self.dims.len() || !self.dims.iter().zip(bounds).all(is_in) {
            return Ok(None);
        }
        let mut found = Vec::new();
        if bounds.iter().any(|bounds| bounds.count == 0) {
            return Ok(Some(found));
        }
        let pieces = self.dims.iter().zip(bounds);
        let pieces = grow::try_collect(pieces.map(|((_, size), bounds)| cut(*bounds, *size)))?;
        // Which piece of each dimension; the last varies fastest.
        let mut at = vec![0; pieces.len()];
        loop {
            let mut part = ShardPart {
                shard: 0,
                local: Vec::with_capacity(at.len()),
                target: Vec::with_capacity(at.len()),
            };
            for ((pieces, at), (count, _)) in pieces.iter().zip(&at).zip(&self.dims) {
                let piece = &pieces[*at];
                part.shard = part.shard * count + piece.shard;
                part.local.push(piece.local);
                part.target.push(piece.target.clone());
            }
            grow::push(&mut found, part)?;
            let next = (0..at.len())
                .rev()
                .find(|dim| at[*dim] + 1 < pieces[*dim].len());
            let Some(dim) = next else {
                return Ok(Some(found));
            };
            at[dim] += 1;
            at[dim + 1..].fill(0);
        }
    }

    /// The runs of what a shard has of a box, for memory with these strides, and after how many
    /// bytes of it they begin. `None` if the memory has no place for each element.
    ///
    /// # Panics
    /// If the part is not one of this grid.
    #[must_use]
    pub fn runs(
        &self,
        part: &ShardPart,
        itemsize: usize,
        strides: &[usize],
    ) -> Option<(usize, Runs)> {
        assert_eq!(part.local.len(), self.dims.len());
        let shape: Vec<usize> = self.dims.iter().map(|(_, size)| *size).collect();
        let runs = Runs::new(&shape, itemsize, &part.local, strides)?;
        let mut starts = part.target.iter().zip(strides);
        let start = starts.try_fold(0_usize, |sum, (target, stride)| {
            sum.checked_add(target.start.checked_mul(*stride)?)
        });
        Some((start?, runs))
    }
}

/// The indices of one dimension that are in one shard.
struct Piece {
    shard: usize,
    local: Bounds,
    target: Range<usize>,
}

/// Cuts indices of one dimension where shards begin, which have so many.
fn cut(bounds: Bounds, size: usize) -> Result<Vec<Piece>> {
    let Bounds { start, count, step } = bounds;
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < count {
        let first = start + done * step;
        let (shard, first) = (first / size, first % size);
        let here = (size - first).div_ceil(step).min(count - done);
        let piece = Piece {
            shard,
            local: Bounds {
                start: first,
                count: here,
                step,
            },
            target: done..done + here,
        };
        grow::push(&mut pieces, piece)?;
        done += here;
    }
    Ok(pieces)
}

/// Boxes that are a range of the elements of an array in C order, one after the other.
///
/// # Panics
/// If the array has fewer elements.
#[must_use]
pub fn boxes_of_range(shape: &[usize], range: Range<usize>) -> Vec<Vec<Range<usize>>> {
    assert!(range.end <= shape.iter().product());
    let mut boxes = Vec::new();
    if !range.is_empty() {
        add_boxes(&[], shape, range, &mut boxes);
    }
    boxes
}

/// Adds the boxes of a range, which is not empty, of the elements at some indices.
fn add_boxes(
    around: &[Range<usize>],
    shape: &[usize],
    range: Range<usize>,
    boxes: &mut Vec<Vec<Range<usize>>>,
) {
    let Some((_, inner)) = shape.split_first() else {
        boxes.push(around.to_vec());
        return;
    };
    let size: usize = inner.iter().product();
    let below = |rows: Range<usize>| {
        let around = around.iter().cloned();
        around.chain([rows]).collect::<Vec<_>>()
    };
    let (first, last) = (range.start.div_ceil(size), range.end / size);
    if first > last {
        let range = range.start - last * size..range.end - last * size;
        return add_boxes(&below(last..last + 1), inner, range, boxes);
    }
    if range.start < first * size {
        let range = range.start - (first - 1) * size..size;
        add_boxes(&below(first - 1..first), inner, range, boxes);
    }
    if first < last {
        let mut rows = below(first..last);
        rows.extend(inner.iter().map(|len| 0..*len));
        boxes.push(rows);
    }
    if last * size < range.end {
        let range = 0..range.end - last * size;
        add_boxes(&below(last..last + 1), inner, range, boxes);
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // bytes that repeat are as good
mod tests {
    use super::super::runs::tests::read;
    use super::*;
    use proptest::prelude::*;

    /// Shapes, how many shards there are, and boxes.
    fn boxes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<Bounds>)> {
        let dim = (1usize..4, 0usize..5).prop_flat_map(|(count, size)| {
            let len = count * size;
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

    /// The numbers, in C order, of the elements at these indices of an array.
    fn elements(shape: &[usize], indices: &[Vec<usize>]) -> Vec<usize> {
        let mut found = vec![0];
        for (len, indices) in shape.iter().zip(indices) {
            let more = |at: usize| indices.iter().map(move |index| at * len + index);
            found = found.into_iter().flat_map(more).collect();
        }
        found
    }

    fn indices(bounds: &[Bounds]) -> Vec<Vec<usize>> {
        let of = |it: &Bounds| (0..it.count).map(|at| it.start + at * it.step).collect();
        bounds.iter().map(of).collect()
    }

    proptest! {
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
                    let start: Vec<usize> = place.iter().map(|it| it.start).collect();
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
            let mut found = vec![0_u8; expected.len()];
            let mut nbytes = 0;
            for part in grid.parts(&bounds).unwrap().unwrap() {
                let (start, runs) = grid.runs(&part, itemsize, &strides).unwrap();
                // What is read twice would be wrong.
                let bytes = read(&runs, &shards[part.shard]);
                let target = found[start..].iter_mut();
                target.zip(bytes).for_each(|(found, byte)| *found = found.wrapping_add(byte));
                nbytes += runs.nbytes();
            }
            prop_assert_eq!(nbytes, expected.len());
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn ranges_are_boxes(shape in prop::collection::vec(0usize..5, 0..4), from in 0usize..64, to in 0usize..64) {
            let count: usize = shape.iter().product();
            let range = from.min(count)..to.min(count);
            let boxes = boxes_of_range(&shape, range.clone());
            prop_assert!(boxes.len() < (2 * shape.len()).max(2));
            let mut found = Vec::new();
            for place in boxes {
                let place: Vec<Vec<usize>> = place.into_iter().map(Iterator::collect).collect();
                found.extend(elements(&shape, &place));
            }
            prop_assert!(found.into_iter().eq(range));
        }
    }

    #[test]
    fn what_is_not_even_or_not_there_is_refused() {
        assert!(ShardGrid::new(&[4, 6], &[2]).is_none());
        assert!(ShardGrid::new(&[4, 6], &[3, 2]).is_none());
        assert!(ShardGrid::new(&[4, 6], &[0, 2]).is_none());
        assert!(ShardGrid::new(&[0, 0], &[1 << 40, 1 << 40]).is_none());
        let grid = ShardGrid::new(&[4, 6], &[2, 3]).unwrap();
        assert_eq!(grid.len(), 6);
        assert_eq!(grid.bounds(4), Some(vec![2..4, 2..4]));
        assert_eq!(grid.name(4).unwrap(), "[2:4,2:4]");
        assert_eq!((grid.bounds(6), grid.name(6)), (None, None));
        assert_eq!(grid.shard_at(&[2, 2]), Some(4));
        for start in [&[2, 1][..], &[4, 0], &[2]] {
            assert_eq!(grid.shard_at(start), None);
        }
        let bounds = |start, count, step| Bounds { start, count, step };
        let missing = |it: &[Bounds]| grid.parts(it).unwrap().is_none();
        assert!(missing(&[bounds(0, 4, 1)]));
        assert!(missing(&[bounds(0, 5, 1), bounds(0, 1, 1)]));
        assert!(missing(&[bounds(0, 1, 1), bounds(0, 2, 6)]));
        assert!(!missing(&[bounds(4, 0, 1), bounds(0, 6, 1)]));
        let whole = ShardGrid::new(&[], &[]).unwrap();
        assert_eq!(whole.parts(&[]).unwrap().unwrap().len(), 1);
        assert_eq!((whole.len(), whole.shard_at(&[])), (1, Some(0)));
        assert_eq!(whole.name(0).unwrap(), "[]");
    }
}
