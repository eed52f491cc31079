//! Copies elements to memory in which the dimensions have another order.
//!
//! Each thread writes a slab of the target in tiles. Rows of a tile are copied to memory in a near
//! cache and transposed there, so that each cache line of both is used once.

use std::cmp::Reverse;
use std::mem::MaybeUninit;
use std::num::NonZero;

use smallvec::SmallVec;

use super::strides::{Repeat, Rest, each};
use crate::base::raw::{RawBytes, Uninit};
use crate::{Result, base::grow, base::parallel};

/// Approximate size of the memory in one piece of work.
const SLAB_BYTES: usize = 1 << 20;

/// Rows and columns of a tile of other elements than the usual ones.
const EDGE: usize = 16;

/// Rows and columns of a part of a tile that fits registers; the edges of tiles are multiples.
const BLOCK: usize = 8;

/// Below this many rows or columns, elements are copied one by one.
const FEW: usize = 8;

/// Multiple of the rows and columns of all tiles.
const MAX_EDGE: usize = 128;

type Repeats = SmallVec<[Repeat; 6]>;

/// Copies runs of `nbytes`, repeated in the order of the source, to the target.
///
/// # Panics
/// If they exceed the source or the target, or there are none.
pub fn copy(
    nbytes: usize,
    repeats: &[Repeat],
    memory: RawBytes<'_>,
    target: &mut Uninit,
    threads: NonZero<usize>,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let mut order: Repeats = repeats.into();
    order.sort_by_key(|repeat| Reverse(repeat.target));
    let nearest = repeats[repeats.len() - 1];
    let (slabs, inner) = slabs(nbytes, nearest, &order, target)?;
    let work = |slab: Slab<'_>| match nbytes {
        1 => slab.copy(memory, inner, 128, nbytes, tile::<1, 128>),
        2 => slab.copy(memory, inner, 128, nbytes, tile::<2, 128>),
        4 => slab.copy(memory, inner, 64, nbytes, tile::<4, 64>),
        8 => slab.copy(memory, inner, 32, nbytes, tile::<8, 32>),
        16 => slab.copy(memory, inner, 16, nbytes, tile::<16, 16>),
        _ => slab.copy(memory, inner, EDGE, nbytes, |plane, memory, target| {
            elements(nbytes, plane, memory, target);
        }),
    };
    parallel::for_each(slabs, threads, work, check)
}

/// Rows of the target that one thread writes.
struct Slab<'a> {
    start: usize,
    rows: Repeat,
    memory: &'a mut Uninit,
}

/// Splits the target between threads, and returns the repetitions inside of each row as well.
/// `order` has them in the order of the target; `nearest` is the innermost of the source.
fn slabs<'a, 'o>(
    nbytes: usize,
    nearest: Repeat,
    order: &'o [Repeat],
    target: &'a mut Uninit,
) -> Result<(Vec<Slab<'a>>, &'o [Repeat])> {
    let extent = |level: usize| {
        let inner = order[level..].iter();
        inner.fold(nbytes, |all, repeat| {
            all + (repeat.count - 1) * repeat.target
        })
    };
    // Neighbours in the source stay together, for whole cache lines of it.
    let is_split = |level: &usize| order[*level] == nearest || extent(level + 1) <= SLAB_BYTES;
    let level = (0..order.len()).find(is_split).unwrap_or(0);
    let (outer, row, inner) = (&order[..level], order[level], &order[level + 1..]);
    let mut rows = (SLAB_BYTES / row.target).max(1);
    if row == nearest {
        rows = rows.next_multiple_of(MAX_EDGE);
    }
    let (mut slabs, mut rest) = (Vec::new(), Rest::new(target));
    each(outer, 0, 0, &mut |from, to| {
        for first in (0..row.count).step_by(rows) {
            let count = rows.min(row.count - first);
            let len = (count - 1) * row.target + extent(level + 1);
            let slab = Slab {
                start: from + first * row.source,
                rows: Repeat { count, ..row },
                memory: rest.take(to + first * row.target, len),
            };
            grow::push(&mut slabs, slab)?;
        }
        Ok(())
    })?;
    Ok((slabs, inner))
}

/// Two dimensions of elements: neighbours in the source, and in the target.
#[derive(Clone, Copy)]
struct Plane {
    columns: Repeat,
    rows: Repeat,
}

impl Slab<'_> {
    /// Copies in tiles of at most `edge` by `edge` elements.
    fn copy(
        self,
        memory: RawBytes<'_>,
        inner: &[Repeat],
        edge: usize,
        nbytes: usize,
        tile: impl Fn(Plane, RawBytes<'_>, &mut Uninit),
    ) -> Result<()> {
        let mut others: Repeats = inner.into();
        others.insert(0, self.rows);
        let rows = others.pop().expect("a slab has rows");
        let nearest = (0..others.len()).min_by_key(|at| others[*at].source);
        let columns = nearest.map_or(Repeat::once(nbytes), |at| others.remove(at));
        let memory = memory.slice(self.start..memory.len());
        each(&others, 0, 0, &mut |from, to| {
            for row in (0..rows.count).step_by(edge) {
                for column in (0..columns.count).step_by(edge) {
                    let part = |all: Repeat, at| Repeat {
                        count: edge.min(all.count - at),
                        ..all
                    };
                    let plane = Plane {
                        columns: part(columns, column),
                        rows: part(rows, row),
                    };
                    let from = from + column * columns.source + row * rows.source;
                    let to = to + column * columns.target + row * rows.target;
                    tile(
                        plane,
                        memory.slice(from..memory.len()),
                        &mut self.memory[to..],
                    );
                }
            }
            Ok(())
        })
    }
}

/// Copies a tile of elements of `N` bytes by way of memory in the nearest cache.
fn tile<const N: usize, const EDGE: usize>(
    plane: Plane,
    memory: RawBytes<'_>,
    target: &mut Uninit,
) {
    let Plane { columns, rows } = plane;
    if columns.count.min(rows.count) < FEW {
        return elements(N, plane, memory, target);
    }
    let [mut near, mut turned] = [[[[MaybeUninit::<u8>::uninit(); N]; EDGE]; EDGE]; 2];
    for (at, row) in near[..rows.count].iter_mut().enumerate() {
        let (start, row) = (at * rows.source, &mut row[..columns.count]);
        if columns.source == N {
            let run = memory.slice(start..start + columns.count * N);
            run.copy_to(row.as_flattened_mut());
            continue;
        }
        for (at, element) in row.iter_mut().enumerate() {
            let from = start + at * columns.source;
            memory.slice(from..from + N).copy_to(element);
        }
    }
    for row in (0..rows.count).step_by(BLOCK) {
        for column in (0..columns.count).step_by(BLOCK) {
            let mut block = [[[MaybeUninit::uninit(); N]; BLOCK]; BLOCK];
            for (at, near) in near[row..row + BLOCK].iter().enumerate() {
                for (to, element) in block.iter_mut().zip(&near[column..]) {
                    to[at] = *element;
                }
            }
            for (at, block) in block.iter().enumerate() {
                turned[column + at][row..row + BLOCK].copy_from_slice(block);
            }
        }
    }
    for (at, column) in turned[..columns.count].iter().enumerate() {
        let target = &mut target[at * columns.target..];
        if rows.target == N {
            target[..rows.count * N].copy_from_slice(column[..rows.count].as_flattened());
            continue;
        }
        for (at, element) in column[..rows.count].iter().enumerate() {
            target[at * rows.target..][..N].copy_from_slice(element);
        }
    }
}

/// Copies elements of `nbytes` bytes one by one.
#[inline(always)]
#[allow(clippy::inline_always)] // for each size that is known
fn elements(nbytes: usize, plane: Plane, memory: RawBytes<'_>, target: &mut Uninit) {
    let Plane { columns, rows } = plane;
    let (outer, inner) = if rows.count < columns.count {
        (rows, columns)
    } else {
        (columns, rows)
    };
    let extent = (inner.count - 1) * inner.target + nbytes;
    for at in 0..outer.count {
        let places = target[at * outer.target..][..extent].chunks_mut(inner.target);
        for (number, place) in places.enumerate() {
            let from = at * outer.source + number * inner.source;
            memory
                .slice(from..from + nbytes)
                .copy_to(&mut place[..nbytes]);
        }
    }
}
