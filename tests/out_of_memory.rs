//! Where memory is missing, that is an error: all work is done with ever more memory until it succeeds.
#![cfg(not(feature = "python"))] // which brings an allocator of its own
#![allow(unsafe_code)] // an allocator that fails

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZero;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

use treepack::base::source::bytes_of;
use treepack::catalog::{BLOCK_BYTES, Catalog, stream_items};
use treepack::codec::gzip::{self, Indexed, Method, Stream};
use treepack::files::sink::replace_file;
use treepack::format::array::{Alignment, Array, ChunkLimit, Framing};
use treepack::format::encoder::Encoder;
use treepack::format::events::Events;
use treepack::format::layout;
use treepack::format::structure::{Kind, Value};
use treepack::format::wire::EXT_NDARRAY;
use treepack::sharding::manifest::{Grid, Manifest};
use treepack::{Error, Result};

/// Smaller allocations are those of things that are there once.
const LARGE: usize = 16 << 10;

/// How many bytes large allocations may still take, while there is a limit.
static LEFT: AtomicIsize = AtomicIsize::new(0);

static LIMITED: AtomicBool = AtomicBool::new(false);

struct Failing;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Takes so many bytes, or tells that there are not as many.
fn take(bytes: usize) -> bool {
    if bytes <= LARGE || !LIMITED.load(Ordering::SeqCst) {
        return true;
    }
    let bytes = bytes.cast_signed();
    let taken = LEFT.fetch_sub(bytes, Ordering::SeqCst) >= bytes;
    if !taken {
        LEFT.fetch_add(bytes, Ordering::SeqCst);
    }
    taken
}

fn give_back(bytes: usize) {
    if bytes > LARGE {
        LEFT.fetch_add(bytes.cast_signed(), Ordering::SeqCst);
    }
}

// SAFETY: all memory comes from the system's allocator and goes back to it.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return ptr::null_mut();
        }
        // SAFETY: the caller keeps the rules, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) };
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while one is copied to the other.
        if !take(size) {
            return ptr::null_mut();
        }
        give_back(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Does work with ever more memory until it succeeds, and returns how often it did not.
fn failures<T>(work: impl Fn() -> Result<T>) -> usize {
    for count in 0.. {
        LEFT.store((count * 7 * LARGE).cast_signed(), Ordering::SeqCst);
        LIMITED.store(true, Ordering::SeqCst);
        let done = work();
        LIMITED.store(false, Ordering::SeqCst);
        match done {
            Ok(_) => return count,
            Err(error) => assert!(matches!(error.split().0, Error::OutOfMemory)),
        }
    }
    unreachable!()
}

const LEAVES: usize = 3000;

fn saved(described: bool) -> Result<layout::Layout<Vec<u8>>> {
    let framing = Framing {
        align: Alignment::new(64)?,
        chunks: ChunkLimit::DEFAULT,
        may_box: true,
    };
    let mut encoder = if described {
        Encoder::indexed(framing, true)
    } else {
        Encoder::new(framing)
    };
    encoder.map(LEAVES)?;
    for leaf in 0..LEAVES {
        encoder.key(&format!("layer{leaf}"))?;
        let array = Array {
            code: EXT_NDARRAY,
            shape: &[leaf % 200],
            dtype: "int8",
            itemsize: 1,
        };
        encoder.array(&array, Kind::Jax, |out, range| {
            out.push(vec![0; range.len()])
        })?;
    }
    encoder.end(Kind::Dict)?;
    encoder.finish(None)
}

#[test]
fn every_large_allocation_may_fail() {
    let threads = NonZero::new(2).unwrap();
    for described in [true, false] {
        assert!(failures(|| saved(described)) > 0);
        let layout = saved(described).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let save = || replace_file(path, false, 0, &(), |out| out.layout(&layout, threads));
        failures(save);
        save().unwrap();
        let data = std::fs::read(path).unwrap();
        assert!(failures(|| bytes_of(&data, 0..data.len())) > 0);
        assert!(failures(|| Catalog::open(&data, false, &())) > 0);
        assert!(failures(|| Catalog::open(&data, true, &())) > 0);
        let verified = Catalog::open(&data, false, &()).unwrap();
        failures(|| verified.verify(&data, !described, BLOCK_BYTES, threads, &()));
        // A failure keeps no table.
        assert!(failures(|| verified.find(0, ["layer7"], &())) > 0);
        failures(|| verified.path_below(0, 1));
        assert!(failures(|| Events::read(&data)) > 0);
        let whole = gzipped(&data, threads).unwrap();
        failures(|| gzipped(&data, threads));
        let inflate = || match Indexed::open(&whole)? {
            Some(indexed) => indexed.read(0..indexed.len()),
            None => panic!("a stream with an index"),
        };
        assert!(failures(inflate) > 0);
        failures(|| Stream(&whole).inflate(0, None, &()));
    }
    manifests();
    values();
    streams();
}

fn gzipped(data: &Vec<u8>, threads: NonZero<usize>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for level in [Some(6), Some(0), None] {
        out.clear();
        gzip::compress(data, Method::of_level(level)?, threads, &mut out, &())?;
    }
    Ok(out)
}

fn manifests() {
    let layout = saved(false).unwrap();
    let grid = || Grid {
        counts: vec![],
        files: vec![].into(),
        host: false,
    };
    let new = || Manifest::new(&layout, |_| None, vec![], vec![]);
    failures(new);
    let mut manifest = new().unwrap();
    manifest.arrays = (0..LEAVES).map(|_| grid()).collect();
    manifest
        .arrays
        .iter_mut()
        .for_each(|it| it.files = vec![0].into());
    manifest.files = vec![treepack::sharding::manifest::ShardFile {
        name: "0".into(),
        nbytes: 1,
        record: 1,
    }];
    let encoded = manifest.encode().unwrap();
    assert!(failures(|| manifest.encode()) > 0);
    assert!(failures(|| Manifest::decode(&encoded)) > 0);
    let read = Manifest::decode(&encoded).unwrap();
    assert!(failures(|| read.encoding(None)) > 0);
}

fn values() {
    let list = Value::List((0..10_000).map(Value::Int).collect());
    let value = Value::Named("x".repeat(2 * LARGE), Box::new(list));
    let encoded = value.encode().unwrap();
    assert!(failures(|| value.encode()) > 0);
    assert!(failures(|| Value::decode(&encoded)) > 0);
}

fn streams() {
    // [["k"], b""]
    let data = b"\x92\x91\xa1k\xc4\x00".repeat(5000);
    assert!(failures(|| stream_items(&data, &())) > 0);
}
