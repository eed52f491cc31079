//! Micro-benchmarks of the core: `make bench-core`.

// The numbers here are small.
#![allow(clippy::cast_possible_truncation)]

use std::mem::MaybeUninit;
use std::num::NonZero;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use treepack::array::{Alignment, Array, ArrayBody, ChunkLimit, Framing, Shard, Sharded, frame};
use treepack::layout::{Layout, LayoutBuilder, Payload};
use treepack::sink::{Target, pour};
use treepack::wire::{Cursor, EXT_NDARRAY, Token};

fn main() {
    divan::main();
}

const ARRAYS: usize = 1000;

/// A map of small arrays, each of `len` float32.
fn layout(len: usize, align: i64) -> Layout<Vec<u8>> {
    let mut out = LayoutBuilder::default();
    let framing = Framing {
        align: Alignment::new(align).unwrap(),
        chunks: ChunkLimit::DEFAULT,
        may_box: true,
    };
    treepack::wire::Head::Map(ARRAYS as u32).write(out.headers());
    for index in 0..ARRAYS {
        let key = format!("layer_{index}");
        let array = Array {
            code: EXT_NDARRAY,
            shape: &[len],
            dtype: "float32",
            itemsize: 4,
        };
        frame(&mut out, Some(&key), &array, &framing, |out, range| {
            out.push(vec![0; range.len()]);
        })
        .unwrap();
    }
    out.finish()
}

fn joined(layout: &Layout<Vec<u8>>) -> Vec<u8> {
    layout.slices(0..layout.len()).collect::<Vec<_>>().concat()
}

/// Headers at their smallest, and widened to reach an alignment.
#[divan::bench(args = [1, 16, 64])]
fn frame_arrays(bencher: Bencher, align: i64) {
    bencher
        .counter(ItemsCount::new(ARRAYS))
        .bench(|| layout(256, align));
}

/// The headers of arrays, read back.
#[divan::bench(args = [1, 16])]
fn parse_arrays(bencher: Bencher, align: i64) {
    let bytes = joined(&layout(256, align));
    bencher.counter(ItemsCount::new(ARRAYS)).bench(|| {
        let mut cursor = Cursor::new(&bytes);
        let mut payload = 0;
        while cursor.left() > 0 {
            if let Token::Ext(_, body) = cursor.token().unwrap() {
                let offset = cursor.offset() - body.len();
                payload += ArrayBody::parse(body, offset).unwrap().payload.len();
            }
        }
        assert_eq!(payload, ARRAYS * 1024);
    });
}

/// Pouring into memory that is in use already, with plain and with streaming stores.
#[divan::bench(args = [Target::Fresh, Target::Used], consts = [1, 2])]
fn pour_64_mib<const THREADS: usize>(bencher: Bencher, target: Target) {
    let mut out = LayoutBuilder::default();
    for _ in 0..8 {
        out.headers().extend_from_slice(b"headers");
        out.push(vec![1; 8 << 20]);
    }
    let layout = out.finish();
    let mut memory = vec![MaybeUninit::new(1_u8); layout.len()];
    let threads = NonZero::new(THREADS).unwrap();
    bencher
        .counter(BytesCount::new(layout.len()))
        .bench_local(|| pour(&layout, &mut memory, target, threads));
}

/// The bytes of an array whose columns are split over four devices.
#[divan::bench(args = [16, 256, 4096])]
fn gather_columns(bencher: Bencher, columns: usize) {
    const ROWS: usize = 256;
    let shards = (0..4).map(|index| Shard {
        start: vec![0, index * columns],
        shape: vec![ROWS, columns],
        memory: vec![0_u8; ROWS * columns * 4],
    });
    let array = Sharded::new(vec![ROWS, 4 * columns], 4, shards.collect()).unwrap();
    let mut target = Vec::with_capacity(array.len());
    bencher
        .counter(BytesCount::new(array.len()))
        .bench_local(|| {
            target.clear();
            while target.len() < array.len() {
                target.extend_from_slice(array.run(target.len()));
            }
        });
}
