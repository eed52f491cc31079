//! Copies elements to memory in which the dimensions have another order.
//!
//! Each thread writes a slab of the target in tiles. Rows of a tile are copied to memory in a near
//! cache and transposed from there in blocks of vectors, so that each cache line and page of both is
//! used once.

use std::cmp::Reverse;
use std::num::NonZero;

use smallvec::SmallVec;
use wide::bytemuck::cast;
use wide::{u8x16, u16x8, u32x4, u64x2};

use super::strides::{Repeat, Rest, each};
use crate::base::raw::{RawBytes, Uninit};
use crate::{Result, base::grow, base::parallel};

/// Approximate size of the memory in one piece of work.
const SLAB_BYTES: usize = 1 << 20;

/// Rows and columns of a tile of other elements than the usual ones.
const EDGE: usize = 16;

/// Bytes of a vector; rows of tiles are multiples.
const VECTOR: usize = 16;

type Vector = [u8; VECTOR];

/// Below this many rows or columns, elements are copied one by one.
const FEW: usize = 8;

/// Bytes of the rows of a tile in the source, and in the target: enough for the processor to read
/// ahead, and few enough for a near cache.
const COLUMN_BYTES: usize = 512;
const ROW_BYTES: usize = 1024;

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
        1 => slab.tiled::<1, 16>(memory, inner),
        2 => slab.tiled::<2, 8>(memory, inner),
        4 => slab.tiled::<4, 4>(memory, inner),
        8 => slab.tiled::<8, 2>(memory, inner),
        16 => slab.tiled::<16, 1>(memory, inner),
        _ => slab.copy(memory, inner, [EDGE; 2], nbytes, |plane, memory, target| {
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
        rows = rows.next_multiple_of((COLUMN_BYTES / nbytes).max(EDGE));
    }
    let (mut slabs, mut rest) = (Vec::new(), Rest::new(target));
    each(outer, 0, 0, &mut |from, to| {
        for part in parallel::blocks(0..row.count, rows) {
            let len = (part.len() - 1) * row.target + extent(level + 1);
            let slab = Slab {
                start: from + part.start * row.source,
                rows: row.part(&part),
                memory: rest.take(to + part.start * row.target, len),
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
    fn tiled<const N: usize, const LANES: usize>(
        self,
        memory: RawBytes<'_>,
        inner: &[Repeat],
    ) -> Result<()>
    where
        Bytes<N>: Lanes<LANES>,
    {
        let rows = inner.last().unwrap_or(&self.rows).count;
        let mut tiles = Tiles::<N, LANES>::new(rows)?;
        let size = [Tiles::<N, LANES>::ROWS, Tiles::<N, LANES>::COLUMNS];
        self.copy(memory, inner, size, N, |plane, memory, target| {
            tiles.copy(plane, memory, target);
        })
    }

    /// Copies in tiles of at most `size` rows and columns.
    fn copy(
        self,
        memory: RawBytes<'_>,
        inner: &[Repeat],
        size: [usize; 2],
        nbytes: usize,
        mut tile: impl FnMut(Plane, RawBytes<'_>, &mut Uninit),
    ) -> Result<()> {
        let mut others: Repeats = inner.into();
        others.insert(0, self.rows);
        let rows = others.pop().expect("a slab has rows");
        let nearest = (0..others.len()).min_by_key(|at| others[*at].source);
        let columns = nearest.map_or(Repeat::once(nbytes), |at| others.remove(at));
        let memory = memory.slice(self.start..memory.len());
        each(&others, 0, 0, &mut |from, to| {
            for row in parallel::blocks(0..rows.count, size[0]) {
                for column in parallel::blocks(0..columns.count, size[1]) {
                    let plane = Plane {
                        columns: columns.part(&column),
                        rows: rows.part(&row),
                    };
                    let from = from + column.start * columns.source + row.start * rows.source;
                    let to = to + column.start * columns.target + row.start * rows.target;
                    let memory = memory.slice(from..memory.len());
                    tile(plane, memory, &mut self.memory[to..]);
                }
            }
            Ok(())
        })
    }
}

/// Elements of `N` bytes, `LANES` in a vector.
trait Lanes<const LANES: usize> {
    /// Exchanges rows and columns.
    fn transpose(rows: [Vector; LANES]) -> [Vector; LANES];
}

struct Bytes<const N: usize>;

impl Lanes<16> for Bytes<1> {
    #[inline]
    fn transpose(rows: [Vector; 16]) -> [Vector; 16] {
        let mut rows: [u8x16; 16] = rows.map(cast);
        for _ in 0..4 {
            let before = rows;
            for at in 0..8 {
                rows[2 * at] = u8x16::unpack_low(before[at], before[at + 8]);
                rows[2 * at + 1] = u8x16::unpack_high(before[at], before[at + 8]);
            }
        }
        rows.map(cast)
    }
}

impl Lanes<8> for Bytes<2> {
    #[inline]
    fn transpose(rows: [Vector; 8]) -> [Vector; 8] {
        u16x8::transpose(rows.map(cast)).map(cast)
    }
}

impl Lanes<4> for Bytes<4> {
    #[inline]
    fn transpose(rows: [Vector; 4]) -> [Vector; 4] {
        u32x4::transpose(rows.map(cast)).map(cast)
    }
}

impl Lanes<2> for Bytes<8> {
    #[inline]
    fn transpose(rows: [Vector; 2]) -> [Vector; 2] {
        u64x2::transpose(rows.map(cast)).map(cast)
    }
}

impl Lanes<1> for Bytes<16> {
    #[inline]
    fn transpose(rows: [Vector; 1]) -> [Vector; 1] {
        rows
    }
}

/// Tiles of elements of `N` bytes, which are copied in blocks of `VECTORS` vectors by as many.
struct Tiles<const N: usize, const LANES: usize> {
    /// Rows of the source, each followed by a cache line, so that columns are in different sets.
    near: Vec<Vector>,
    /// Rows of the target for the columns of a block, likewise.
    turned: Vec<Vector>,
}

/// Vectors in a row of a block, two cache lines.
const VECTORS: usize = 8;

impl<const N: usize, const LANES: usize> Tiles<N, LANES>
where
    Bytes<N>: Lanes<LANES>,
{
    const ROWS: usize = ROW_BYTES / N;
    const COLUMNS: usize = COLUMN_BYTES / N;
    const EDGE: usize = LANES * VECTORS;
    const PITCH: usize = (COLUMN_BYTES + 64) / VECTOR;
    const TURNED_PITCH: usize = (ROW_BYTES + 64) / VECTOR;

    fn new(rows: usize) -> Result<Self> {
        let rows = rows.min(Self::ROWS).next_multiple_of(Self::EDGE);
        Ok(Self {
            near: grow::filled([0; VECTOR], rows * Self::PITCH)?,
            turned: grow::filled([0; VECTOR], Self::EDGE * Self::TURNED_PITCH)?,
        })
    }

    fn copy(&mut self, plane: Plane, memory: RawBytes<'_>, target: &mut Uninit) {
        let Plane { columns, rows } = plane;
        if columns.count.min(rows.count) < FEW {
            return elements(N, plane, memory, target);
        }
        let span = (columns.count - 1) * columns.source + N;
        let near = self.near.chunks_exact_mut(Self::PITCH).take(rows.count);
        for (at, row) in near.enumerate() {
            let memory = memory.slice(at * rows.source..at * rows.source + span);
            let row = row.as_flattened_mut();
            if columns.source == N {
                memory.copy_rows(span, row, span);
                continue;
            }
            for (at, element) in row.chunks_exact_mut(N).take(columns.count).enumerate() {
                let from = at * columns.source;
                memory.slice(from..from + N).copy_rows(N, element, N);
            }
        }
        for column in (0..columns.count).step_by(Self::EDGE) {
            for row in (0..rows.count).step_by(Self::EDGE) {
                self.turn(row, column);
            }
            let turned = self.turned.chunks_exact(Self::TURNED_PITCH);
            for (at, row) in turned.enumerate().take(columns.count - column) {
                let target = &mut target[(column + at) * columns.target..];
                let row = &row.as_flattened()[..rows.count * N];
                if rows.target == N {
                    target[..row.len()].write_copy_of_slice(row);
                    continue;
                }
                for (at, element) in row.chunks_exact(N).enumerate() {
                    target[at * rows.target..][..N].write_copy_of_slice(element);
                }
            }
        }
    }

    /// Exchanges rows and columns of a block.
    fn turn(&mut self, row: usize, column: usize) {
        let near = &self.near[row * Self::PITCH + column / LANES..];
        let turned = &mut self.turned[row / LANES..];
        for across in 0..VECTORS {
            for down in 0..VECTORS {
                let from = down * LANES * Self::PITCH + across;
                let square = std::array::from_fn(|lane| near[from + lane * Self::PITCH]);
                let to = across * LANES * Self::TURNED_PITCH + down;
                for (lane, vector) in Bytes::<N>::transpose(square).into_iter().enumerate() {
                    turned[to + lane * Self::TURNED_PITCH] = vector;
                }
            }
        }
    }
}

/// Copies elements of `nbytes` bytes one by one.
#[inline(always)] // for each size that is known
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
