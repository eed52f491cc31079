//! Micro-benchmarks of the core: `make bench NAME=core`.

// The numbers here are small.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

use std::mem::MaybeUninit;
use std::num::NonZero;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use treepack::base::raw::RawBytes;
use treepack::elements::{Bounds, Runs};
use treepack::files::sink::pour;
use treepack::format::array::{Alignment, Array, ChunkLimit, Framing};
use treepack::format::encoder::Encoder;
use treepack::format::events::Events;
use treepack::format::layout::{Caching, Layout, LayoutBuilder, Payload};
use treepack::format::shards::{Shard, Sharded};
use treepack::format::structure::Kind;
use treepack::format::wire::EXT_NDARRAY;

fn main() {
    divan::main();
}

const ARRAYS: usize = 1000;

/// A map of small arrays, each of `len` float32, whose payloads are copied among the headers.
fn layout(len: usize, align: i64) -> Layout<Vec<u8>> {
    let mut out = Encoder::new(Framing {
        align: Alignment::new(align).unwrap(),
        chunks: ChunkLimit::DEFAULT,
        may_box: true,
    });
    let payload = vec![0; 4 * len];
    out.map(ARRAYS).unwrap();
    for index in 0..ARRAYS {
        out.key(&format!("layer_{index}")).unwrap();
        let array = Array {
            code: EXT_NDARRAY,
            shape: &[len],
            dtype: "float32",
            itemsize: 4,
        };
        out.array(&array, Kind::Plain, |out, range| {
            out.extend(&payload[range])
        })
        .unwrap();
    }
    out.end(Kind::Dict).unwrap();
    out.finish(None).unwrap()
}

fn joined(layout: &Layout<Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for slice in layout.slices(0..layout.len()) {
        slice.memory().unwrap().append_to(&mut out).unwrap();
    }
    out
}

/// Headers at their smallest, and widened to reach an alignment.
#[divan::bench(args = [1, 16, 64])]
fn encode_arrays(bencher: Bencher, align: i64) {
    bencher
        .counter(ItemsCount::new(ARRAYS))
        .bench(|| layout(256, align));
}

/// The events of arrays.
#[divan::bench(args = [1, 16])]
fn read_arrays(bencher: Bencher, align: i64) {
    let bytes = joined(&layout(256, align));
    bencher.counter(ItemsCount::new(ARRAYS)).bench(|| {
        let events = Events::read(&bytes).unwrap();
        assert_eq!(events.as_slice().len(), 1 + 2 * ARRAYS);
    });
}

/// Pouring into memory that is in use already, with plain and with streaming stores.
#[divan::bench(args = [Caching::Usual, Caching::Past], consts = [1, 2])]
fn pour_64_mib<const THREADS: usize>(bencher: Bencher, caching: Caching) {
    let mut out = LayoutBuilder::default();
    for _ in 0..8 {
        out.headers().extend_from_slice(b"headers");
        out.push(vec![1; 8 << 20]).unwrap();
    }
    let layout = out.finish();
    let mut memory = vec![MaybeUninit::new(1_u8); layout.len()];
    let threads = NonZero::new(THREADS).unwrap();
    bencher
        .counter(BytesCount::new(layout.len()))
        .bench_local(|| {
            let filled = pour(&layout, &mut memory, caching, threads, &());
            filled.unwrap().len()
        });
}

/// The bytes of an array whose columns are split over four devices.
#[divan::bench(args = [1, 16, 256, 4096])]
fn gather_columns(bencher: Bencher, columns: usize) {
    const ROWS: usize = 256;
    let shards = (0..4).map(|index| Shard {
        start: vec![0, index * columns],
        shape: vec![ROWS, columns],
        memory: vec![0_u8; ROWS * columns * 4],
    });
    let array = Sharded::new(&[ROWS, 4 * columns], 4, shards.collect()).unwrap();
    let mut target = vec![MaybeUninit::new(0); array.len()];
    bencher
        .counter(BytesCount::new(array.len()))
        .bench_local(|| array.copy_to(0, &mut target).unwrap().len());
}

/// Matrices of elements of 1 to 8 bytes.
#[divan::bench(args = [1, 2, 4, 8], consts = [1, 2], sample_count = 20)]
fn transpose_32_mib<const THREADS: usize>(bencher: Bencher, nbytes: usize) {
    read_matrix::<THREADS>(bencher, nbytes, true);
}

/// The same without a change of order.
#[divan::bench(consts = [1, 2], sample_count = 20)]
fn copy_32_mib<const THREADS: usize>(bencher: Bencher) {
    read_matrix::<THREADS>(bencher, 2, false);
}

fn read_matrix<const THREADS: usize>(bencher: Bencher, nbytes: usize, is_transposed: bool) {
    let (rows, columns) = (4096, (32 << 20) / 4096 / nbytes);
    let bounds = [rows, columns].map(|count| Bounds {
        start: 0,
        count,
        step: 1,
    });
    let strides = if is_transposed {
        [nbytes, rows * nbytes]
    } else {
        [columns * nbytes, nbytes]
    };
    let memory = vec![1_u8; rows * columns * nbytes];
    let runs = Runs::new(&[rows, columns], nbytes, &bounds, &strides).unwrap();
    let mut target = vec![MaybeUninit::new(0); memory.len()];
    let threads = NonZero::new(THREADS).unwrap();
    let memory = RawBytes::from(memory.as_slice());
    bencher
        .counter(BytesCount::new(target.len()))
        .bench_local(|| runs.read(&memory, &mut target, threads, || Ok(())).unwrap());
}
