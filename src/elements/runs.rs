//! Reads a box of an array as runs: contiguous bytes at equal distances.

use std::num::NonZero;
use std::ops::Range;

use smallvec::SmallVec;

use super::strides::{Repeat, Rest, each};
use super::transposed;
use crate::base::raw::{RawBytes, Room, Uninit};
use crate::base::source::{Source, read_to};
use crate::{Result, base::grow, base::parallel};

/// Size of a read from which several runs are copied.
const SPAN_BYTES: usize = 256 << 10;

/// Distant runs in one piece of work.
const FAR_READS: usize = 64;

/// Runs from this size are read one by one where memory has another order.
const LONG_BYTES: usize = if cfg!(test) { 1 << 15 } else { 1 << 20 };

/// Size of the part of an array that is in memory at a time, before it is transposed.
const WINDOW_BYTES: usize = if cfg!(test) { 1 << 17 } else { 8 << 20 };

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    start: usize,
    nbytes: usize,
    /// The order of the array: the first is outermost.
    repeats: Vec<Repeat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub start: usize,
    pub count: usize,
    /// Distance between neighbours; not zero.
    pub step: usize,
}

impl Bounds {
    pub(super) fn are_in(self, len: usize) -> bool {
        let last = (self.count.saturating_sub(1).checked_mul(self.step))
            .and_then(|more| self.start.checked_add(more));
        self.step > 0
            && (self.count == 0 && self.start <= len || last.is_some_and(|last| last < len))
    }
}

impl Runs {
    /// The runs of a box of a C-order array in memory with these strides, in any order of the
    /// dimensions. `None` if the box exceeds the array, or elements would overlap.
    pub fn new(
        shape: &[usize],
        itemsize: usize,
        bounds: &[Bounds],
        strides: &[usize],
    ) -> Option<Self> {
        let ndim = shape.len();
        let are_in = bounds
            .iter()
            .zip(shape)
            .all(|(bound, len)| bound.are_in(*len));
        if bounds.len() != ndim || strides.len() != ndim || !are_in {
            return None;
        }
        let mut runs = Self::once(0, itemsize);
        if bounds.iter().any(|bounds| bounds.count == 0) {
            runs.nbytes = 0;
            return Some(runs);
        }
        let mut order: SmallVec<[usize; 6]> =
            (0..ndim).filter(|dim| bounds[*dim].count > 1).collect();
        order.sort_by_key(|dim| strides[*dim]);
        order.iter().try_fold(itemsize, |extent, dim| {
            let more = strides[*dim].checked_mul(bounds[*dim].count - 1)?;
            (strides[*dim] >= extent).then(|| more.checked_add(extent))?
        })?;
        let mut stride = itemsize;
        for dim in (0..ndim).rev() {
            let Bounds { start, count, step } = bounds[dim];
            runs.start += start * stride;
            if count > 1 {
                runs.repeat(Repeat {
                    count,
                    source: step * stride,
                    target: strides[dim],
                });
            }
            stride *= shape[dim];
        }
        runs.repeats.reverse();
        Some(runs)
    }

    pub fn compact(shape: &[usize], itemsize: usize, bounds: &[Bounds]) -> Option<Self> {
        let mut strides = vec![itemsize; bounds.len()];
        for dim in (1..bounds.len()).rev() {
            strides[dim - 1] = strides[dim].checked_mul(bounds[dim].count.max(1))?;
        }
        Self::new(shape, itemsize, bounds, &strides)
    }

    fn once(start: usize, nbytes: usize) -> Self {
        Self {
            start,
            nbytes,
            repeats: Vec::new(),
        }
    }

    /// Repeats everything; the last of `repeats` is outermost here.
    fn repeat(&mut self, repeat: Repeat) {
        let Repeat {
            count,
            source,
            target,
        } = repeat;
        match self.repeats.last_mut() {
            None if (source, target) == (self.nbytes, self.nbytes) => self.nbytes *= count,
            Some(inner)
                if (source, target) == (inner.count * inner.source, inner.count * inner.target) =>
            {
                inner.count *= count;
            }
            _ => self.repeats.push(repeat),
        }
    }

    pub fn nbytes(&self) -> usize {
        self.repeats
            .iter()
            .fold(self.nbytes, |nbytes, repeat| nbytes * repeat.count)
    }

    /// Includes gaps in memory.
    pub fn extent(&self) -> usize {
        extent(self.nbytes, &self.repeats, |repeat| repeat.target)
    }

    /// The ranges of the array to read, joined where closer than `near`.
    pub fn ranges(&self, near: usize) -> Result<Vec<Range<usize>>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        if self.nbytes == 0 {
            return Ok(ranges);
        }
        let nest = self.nest(near, usize::MAX);
        each(nest.outer, self.start, 0, &mut |start, _| {
            let end = start + nest.extent;
            match ranges.last_mut() {
                Some(last) if start - last.end <= near => last.end = end,
                _ => grow::push(&mut ranges, start..end)?,
            }
            Ok(())
        })?;
        Ok(ranges)
    }

    /// The least bytes that are copied faster by several threads.
    pub fn min_parallel_bytes(&self) -> usize {
        if self.is_ordered() {
            parallel::MIN_COPY_BYTES
        } else {
            parallel::BLOCK
        }
    }

    /// Whether the target has the order of the source.
    fn is_ordered(&self) -> bool {
        self.repeats
            .is_sorted_by(|outer, inner| outer.target >= inner.target)
    }

    pub fn span(&self) -> usize {
        extent(self.nbytes, &self.repeats, |repeat| repeat.source)
    }

    /// The inner repetitions with runs closer than `near`, at most `most` bytes of the array.
    fn nest(&self, near: usize, most: usize) -> Nest<'_> {
        let mut nest = Nest {
            outer: &self.repeats,
            inner: &[],
            nbytes: self.nbytes,
            extent: self.nbytes,
        };
        for level in (0..self.repeats.len()).rev() {
            let extent = nest.extent + (self.repeats[level].count - 1) * self.repeats[level].source;
            if !nest.is_near(near) || extent > most {
                break;
            }
            (nest.outer, nest.inner) = self.repeats.split_at(level);
            nest.extent = extent;
        }
        nest
    }

    /// Reads all runs into memory.
    ///
    /// # Panics
    /// If the memory is smaller than `extent`, or the array than the runs.
    pub fn read(
        &self,
        array: &dyn Source,
        target: &mut Uninit,
        threads: NonZero<usize>,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        if self.nbytes == 0 {
            return Ok(());
        }
        if !self.is_ordered() {
            return self.read_transposed(array, target, threads, &mut check);
        }
        let span = span_of_reads(array);
        let nest = self.nest(array.near(), span);
        let blocks = self.blocks(&nest, array.near(), span, target)?;
        let nbytes = blocks.iter().map(|block| block.extent(nest)).sum();
        let threads = parallel::worth(threads, nbytes, parallel::MIN_COPY_BYTES);
        let read = |block: NestPart<'_>| block.read(nest, array);
        parallel::for_each(blocks, threads, read, check)
    }

    /// The bytes of all reads, gaps closer than `near` included.
    fn bytes_read(&self, near: usize) -> usize {
        let nest = self.nest(near, usize::MAX);
        let counts = nest.outer.iter().map(|repeat| repeat.count);
        counts.fold(nest.extent, usize::saturating_mul)
    }

    /// Refers to memory that has the bytes of all reads, one after the other.
    fn join_reads(&mut self, near: usize) {
        let nest = self.nest(near, usize::MAX);
        let (mut distance, outer) = (nest.extent, nest.outer.len());
        for repeat in self.repeats[..outer].iter_mut().rev() {
            repeat.source = distance;
            distance *= repeat.count;
        }
        self.start = 0;
    }

    /// Reads runs to memory in which they have another order.
    fn read_transposed(
        &self,
        array: &dyn Source,
        target: &mut Uninit,
        threads: NonZero<usize>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if self.nbytes >= LONG_BYTES {
            return each(&self.repeats, self.start, 0, &mut |from, to| {
                let target = &mut target[to..to + self.nbytes];
                Self::once(from, self.nbytes).read(array, target, threads, &mut *check)
            });
        }
        if let Some(memory) = array.memory() {
            let memory = memory.slice(self.start..memory.len());
            return transposed::copy(self.nbytes, &self.repeats, memory, target, threads, check);
        }
        let mut memory = Vec::new();
        let (outer, row, rows, inner) = self.windows(array.near());
        each(outer, self.start, 0, &mut |from, to| {
            for part in parallel::blocks(0..row.count, rows) {
                let mut repeats = inner.to_vec();
                repeats.insert(0, row.part(&part));
                let window = Self {
                    start: from + part.start * row.source,
                    nbytes: self.nbytes,
                    repeats,
                };
                let target = &mut target[to + part.start * row.target..];
                window.read_window(array, &mut memory, target, threads, check)?;
            }
            Ok(())
        })
    }

    /// Splits the repetitions where the inner ones fit a window: the outer ones, the rows, their
    /// number in a window, and the inner ones.
    fn windows(&self, near: usize) -> (&[Repeat], &Repeat, usize, &[Repeat]) {
        let inner = |level: usize| Self {
            start: 0,
            nbytes: self.nbytes,
            repeats: self.repeats[level + 1..].to_vec(),
        };
        let fits = |level: &usize| inner(*level).bytes_read(near) <= WINDOW_BYTES;
        let level = (0..self.repeats.len()).find(fits).expect("a run fits");
        let (row, within) = (&self.repeats[level], inner(level));
        let is_near = within.nest(near, usize::MAX).outer.is_empty();
        let distance = match row.source - within.span() {
            gap if is_near && gap <= near => row.source,
            _ => within.bytes_read(near),
        };
        let rows = (WINDOW_BYTES / distance).max(1);
        (
            &self.repeats[..level],
            row,
            rows,
            &self.repeats[level + 1..],
        )
    }

    /// Reads all runs to `memory`, and copies them to their places.
    fn read_window(
        mut self,
        array: &dyn Source,
        memory: &mut Vec<u8>,
        target: &mut Uninit,
        threads: NonZero<usize>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let nbytes = self.bytes_read(array.near());
        memory.try_reserve(nbytes)?;
        let read = |room: Room<'_>| {
            let span = span_of_reads(array);
            let nest = self.nest(array.near(), usize::MAX);
            let (mut parts, mut rest) = (Vec::new(), Some(room));
            each(nest.outer, self.start, 0, &mut |start, _| {
                let (now, later) = rest.take().expect("there is room").split(nest.extent);
                rest = Some(later);
                for (at, part) in now.chunks(span).enumerate() {
                    grow::push(&mut parts, (start + at * span, part))?;
                }
                Ok(())
            })?;
            let fill =
                |(start, room): (usize, Room<'_>)| room.fill(|part| array.read_at(start, part));
            parallel::for_each(parts, threads, fill, &mut *check)
        };
        let room = &mut memory.spare_capacity_mut()[..nbytes];
        let ((), bytes) = Room::share(room, read)?;
        let bytes: &[u8] = bytes.expect("all of it was read");
        self.join_reads(array.near());
        let threads = parallel::worth(threads, nbytes, parallel::BLOCK);
        transposed::copy(
            self.nbytes,
            &self.repeats,
            bytes.into(),
            target,
            threads,
            check,
        )
    }

    fn blocks<'a>(
        &self,
        nest: &Nest<'_>,
        near: usize,
        span: usize,
        target: &'a mut Uninit,
    ) -> Result<Vec<NestPart<'a>>> {
        let mut blocks = Vec::new();
        let mut rest = Rest::new(target);
        let Some((row, outer)) = nest.outer.split_last() else {
            let memory = rest.take(0, nest.memory());
            let most = if nest.inner.is_empty() {
                parallel::BLOCK
            } else {
                memory.len()
            };
            blocks.try_reserve(memory.len().div_ceil(most))?;
            let parts = memory.chunks_mut(most).enumerate();
            blocks.extend(parts.map(|(number, memory)| NestPart {
                start: self.start + number * most,
                rows: Repeat::once(memory.len()),
                is_near: false,
                memory,
            }));
            return Ok(blocks);
        };
        let is_near = nest.is_near(near) && nest.extent <= span;
        let most = if is_near {
            (span - nest.extent) / row.source + 1
        } else {
            (parallel::BLOCK / nest.extent).clamp(1, FAR_READS)
        };
        let places = outer.iter().map(|repeat| repeat.count).product::<usize>();
        blocks.try_reserve(places.saturating_mul(row.count.div_ceil(most)))?;
        each(outer, self.start, 0, &mut |source, target| {
            for part in parallel::blocks(0..row.count, most) {
                let nbytes = (part.len() - 1) * row.target + nest.memory();
                blocks.push(NestPart {
                    start: source + part.start * row.source,
                    rows: row.part(&part),
                    is_near,
                    memory: rest.take(target + part.start * row.target, nbytes),
                });
            }
            Ok(())
        })?;
        Ok(blocks)
    }
}

/// The size of a read of several runs: slow sources get fewer, larger reads.
fn span_of_reads(array: &dyn Source) -> usize {
    SPAN_BYTES.max(array.near().saturating_mul(4).min(parallel::BLOCK))
}

#[derive(Clone, Copy)]
struct Nest<'a> {
    outer: &'a [Repeat],
    inner: &'a [Repeat],
    nbytes: usize,
    extent: usize,
}

impl Nest<'_> {
    fn is_near(&self, near: usize) -> bool {
        let next = self.outer.last();
        self.extent / 4 < near && next.is_some_and(|next| next.source - self.extent <= near)
    }

    fn memory(&self) -> usize {
        extent(self.nbytes, self.inner, |repeat| repeat.target)
    }

    fn copy(&self, bytes: RawBytes<'_>, target: &mut Uninit) -> Result<()> {
        each(self.inner, 0, 0, &mut |from, to| {
            let run = bytes.slice(from..from + self.nbytes);
            run.copy_to(&mut target[to..to + self.nbytes]);
            Ok(())
        })
    }
}

struct NestPart<'a> {
    start: usize,
    rows: Repeat,
    is_near: bool,
    memory: &'a mut Uninit,
}

impl NestPart<'_> {
    fn nest<'a>(&self, nest: Nest<'a>) -> Nest<'a> {
        if !nest.inner.is_empty() {
            return nest;
        }
        let nbytes = nest.nbytes.min(self.memory.len());
        Nest {
            nbytes,
            extent: nbytes,
            ..nest
        }
    }

    fn extent(&self, nest: Nest<'_>) -> usize {
        let nest = self.nest(nest);
        if self.is_near {
            (self.rows.count - 1) * self.rows.source + nest.extent
        } else {
            self.rows.count * nest.extent
        }
    }

    fn read(self, nest: Nest<'_>, array: &dyn Source) -> Result<()> {
        let nest = self.nest(nest);
        let rows = self.memory.chunks_mut(self.rows.target);
        let rows = (0..).step_by(self.rows.source).zip(rows);
        if let Some(memory) = array.memory() {
            for (at, target) in rows {
                let start = self.start + at;
                nest.copy(memory.slice(start..start + nest.extent), target)?;
            }
            return Ok(());
        }
        let mut bytes = Vec::new();
        if self.is_near {
            let end = self.start + (self.rows.count - 1) * self.rows.source + nest.extent;
            read_to(array, self.start..end, &mut bytes)?;
            for (at, target) in rows {
                nest.copy(RawBytes::from(&bytes[at..at + nest.extent]), target)?;
            }
            return Ok(());
        }
        for (at, target) in rows {
            let start = self.start + at;
            if nest.inner.is_empty() {
                array.read_at(start, &mut target[..nest.nbytes])?;
            } else {
                bytes.clear();
                read_to(array, start..start + nest.extent, &mut bytes)?;
                nest.copy(RawBytes::from(&bytes[..]), target)?;
            }
        }
        Ok(())
    }
}

fn extent(nbytes: usize, repeats: &[Repeat], distance: impl Fn(&Repeat) -> usize) -> usize {
    let more = repeats
        .iter()
        .map(|repeat| (repeat.count - 1) * distance(repeat));
    nbytes + more.sum::<usize>()
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
pub(super) mod tests {
    use std::mem::MaybeUninit;

    use super::*;
    use proptest::prelude::*;
    use std::iter;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Elsewhere(Vec<u8>, usize);

    impl Source for Elsewhere {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
            self.0.read_at(offset, target)
        }

        fn near(&self) -> usize {
            self.1
        }
    }

    #[allow(unsafe_code)]
    pub fn read(runs: &Runs, array: &dyn Source) -> Vec<u8> {
        let mut memory = vec![MaybeUninit::new(0); runs.extent()];
        let threads = NonZero::new(2).unwrap();
        runs.read(array, &mut memory, threads, || Ok(())).unwrap();
        // SAFETY: all of it was zeroed before.
        unsafe { memory.assume_init_ref() }.to_vec()
    }

    type Box = (Vec<usize>, Vec<Bounds>, Vec<usize>, usize);

    /// Boxes of arrays of up to `most` indices in each dimension, in any order in memory.
    fn boxes(most: usize, ndim: usize) -> impl Strategy<Value = Box> {
        let dim = (1..=most, 0usize..4, any::<u8>()).prop_flat_map(move |(len, room, order)| {
            let limits = (0..len, 1usize..4, 0..=most);
            limits.prop_map(move |(start, step, most)| {
                let count = most.min((len - start).div_ceil(step));
                (
                    len,
                    Bounds { start, count, step },
                    room.saturating_sub(1),
                    order,
                )
            })
        });
        let itemsize = prop_oneof![1usize..5, Just(8), Just(16)];
        (prop::collection::vec(dim, 0..ndim), itemsize).prop_map(|(dims, itemsize)| {
            let mut strides = vec![0; dims.len()];
            let mut extent = itemsize;
            let mut order: Vec<usize> = (0..dims.len()).rev().collect();
            order.sort_by_key(|at| dims[*at].3 / 64);
            for at in order {
                let (_, bounds, room, _) = dims[at];
                strides[at] = extent + room;
                extent += bounds.count.saturating_sub(1) * strides[at];
            }
            let shape = dims.iter().map(|dim| dim.0).collect();
            let bounds = dims.iter().map(|dim| dim.1).collect();
            (shape, bounds, strides, itemsize)
        })
    }

    fn places(
        shape: &[usize],
        bounds: &[Bounds],
        strides: &[usize],
        itemsize: usize,
    ) -> Vec<(usize, usize)> {
        let mut places = vec![(0, 0)];
        let mut stride = itemsize * shape.iter().product::<usize>();
        for ((len, bounds), target) in shape.iter().zip(bounds).zip(strides) {
            stride /= len;
            let more = |(from, to): (usize, usize)| {
                (0..bounds.count).map(move |at| {
                    let index = bounds.start + at * bounds.step;
                    (from + index * stride, to + at * target)
                })
            };
            places = places.into_iter().flat_map(more).collect();
        }
        places
    }

    /// Compares a box with its elements, copied one by one.
    fn check((shape, bounds, strides, itemsize): Box, near: usize) {
        let nbytes = itemsize * shape.iter().product::<usize>();
        let bytes: Vec<u8> = (0..nbytes).map(|at| (at ^ at >> 8) as u8 ^ 0x5a).collect();
        let runs = Runs::new(&shape, itemsize, &bounds, &strides).unwrap();
        let places = places(&shape, &bounds, &strides, itemsize);
        assert_eq!(runs.nbytes(), places.len() * itemsize);
        let size = places.iter().map(|place| place.1 + itemsize).max();
        assert_eq!(runs.extent(), size.unwrap_or(0));
        let mut expected = vec![0; runs.extent()];
        let ranges = runs.ranges(near).unwrap();
        for (from, to) in places {
            expected[to..to + itemsize].copy_from_slice(&bytes[from..from + itemsize]);
            let before = ranges.partition_point(|range| range.end <= from);
            assert!(ranges[before].contains(&from));
        }
        for array in [&bytes as &dyn Source, &Elsewhere(bytes.clone(), near)] {
            assert!(read(&runs, array) == expected, "{runs:?}");
        }
    }

    proptest! {
        #[test]
        fn all_elements_come_to_where_they_belong(sample in boxes(6, 5), near in 0usize..40) {
            check(sample, near);
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn all_elements_of_many_tiles_come_to_where_they_belong(
            sample in boxes(150, 4).prop_filter("small", |(shape, ..)| {
                shape.iter().product::<usize>() < 1 << 15
            }),
            near in prop_oneof![0usize..40, 0usize..10_000],
        ) {
            check(sample, near);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn large_arrays_are_transposed_in_windows() {
        let all = |count| Bounds {
            start: 0,
            count,
            step: 1,
        };
        for (shape, order, near) in [
            ([3, 300, 200], [2, 1, 0], usize::MAX),
            ([3, 300, 200], [0, 2, 1], 64),
            ([2, 1 << 17, 1], [1, 0, 2], 0),
            ([2, 2, 1 << 15], [1, 0, 2], 0),
        ] {
            let bounds = shape.map(all);
            let (mut strides, mut stride) = ([0; 3], 2);
            for dim in order.into_iter().rev() {
                (strides[dim], stride) = (stride, stride * shape[dim]);
            }
            check((shape.into(), bounds.into(), strides.into(), 2), near);
        }
        let columns = Bounds {
            start: 1,
            ..all(100)
        };
        let bounds = vec![all(2_000), columns];
        check((vec![2_000, 500], bounds, vec![1, 2_000], 1), 16);
    }

    #[test]
    fn boxes_outside_of_the_array_are_rejected() {
        let runs = |start, count, step, stride| {
            let bounds = [Bounds { start, count, step }; 2];
            Runs::new(&[6, 6], 2, &bounds, &[stride, 2])
        };
        assert!(runs(0, 6, 1, 12).is_some());
        assert!(runs(0, 6, 1, 11).is_none());
        assert!(runs(0, 7, 1, 14).is_none());
        assert!(runs(1, 3, 2, 6).is_some());
        assert!(runs(2, 3, 2, 6).is_none());
        assert!(runs(0, 1, 0, 2).is_none());
        assert!(runs(1, usize::MAX, 1 << 60, 2).is_none());
        assert!(runs(7, 0, 1, 2).is_none());
        assert_eq!(runs(6, 0, 1, 2).unwrap().nbytes(), 0);
        assert!(Runs::new(&[6], 2, &[], &[2]).is_none());
    }

    #[test]
    fn only_near_runs_are_read_together() {
        const NEAR: usize = 32 << 10;
        let column = |width: usize| {
            let all = Bounds {
                start: 0,
                count: 3,
                step: 1,
            };
            let single = Bounds { count: 1, ..all };
            Runs::new(&[3, width], 4, &[all, single], &[4, 4]).unwrap()
        };
        let reads_once =
            |runs: Runs, range| runs.ranges(NEAR).unwrap().into_iter().eq(iter::once(range));
        assert!(reads_once(column(1000), 0..8004));
        assert_eq!(
            column(100_000).ranges(NEAR).unwrap(),
            [0..4, 400_000..400_004, 800_000..800_004]
        );
        let rows = |start, count| Bounds {
            start,
            count,
            step: 1,
        };
        let runs = Runs::new(&[9, 500], 4, &[rows(2, 3), rows(0, 500)], &[2000, 4]).unwrap();
        assert!(runs.repeats.is_empty());
        assert!(reads_once(runs, 4000..10_000));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn short_runs_are_read_together_however_they_are_repeated() {
        struct Counting(Elsewhere, AtomicUsize);
        impl Source for Counting {
            fn len(&self) -> usize {
                self.0.len()
            }

            fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
                self.1.fetch_add(1, Ordering::Relaxed);
                self.0.read_at(offset, target)
            }

            fn near(&self) -> usize {
                self.0.near()
            }
        }
        let all = |count| Bounds {
            start: 0,
            count,
            step: 1,
        };
        let other = Bounds { step: 2, ..all(2) };
        let array = Counting(Elsewhere(vec![7; 9 << 20], 4 << 10), AtomicUsize::new(0));
        let bounds = [all(1 << 20), other, other];
        let runs = Runs::compact(&[1 << 20, 3, 3], 1, &bounds).unwrap();
        assert_eq!(read(&runs, &array), vec![7; 4 << 20]);
        assert!(array.1.load(Ordering::Relaxed) <= (9 << 20) / SPAN_BYTES + 1);
    }

    #[test]
    fn there_may_be_more_between_runs_in_memory_than_in_the_array() {
        let bounds = [Bounds {
            start: 0,
            count: 2,
            step: 1,
        }];
        let runs = Runs::new(&[2], 1, &bounds, &[2]).unwrap();
        assert_eq!(read(&runs, &vec![5, 6]), [5, 0, 6]);
        assert_eq!(read(&runs, &Elsewhere(vec![5, 6], 0)), [5, 0, 6]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn large_boxes_are_read_in_blocks() {
        let len = 3 * parallel::BLOCK / 2;
        let bytes: Vec<u8> = (0..2 * len).map(|at| (at / 7) as u8).collect();
        let array = Elsewhere(bytes.clone(), 4 << 10);
        for (width, count) in [
            (2 * len, 2 * len - 1),
            (len, len - 1),
            (16, 12),
            (1 << 20, 4),
        ] {
            let bounds = [
                Bounds {
                    start: 0,
                    count: 2 * len / width,
                    step: 1,
                },
                Bounds {
                    start: 1,
                    count,
                    step: 1,
                },
            ];
            let runs = Runs::new(&[2 * len / width, width], 1, &bounds, &[count, 1]).unwrap();
            let expected = bytes.chunks(width).flat_map(|row| &row[1..=count]);
            assert!(read(&runs, &array).iter().eq(expected));
        }
    }
}
