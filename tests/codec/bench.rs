//! Micro-benchmarks of the codec: `make bench NAME=codec`.

// The numbers here are small.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZero;

use divan::Bencher;
use divan::counter::BytesCount;
use treepack_codec::base::raw::Filling;
use treepack_codec::codec::gzip::{self, Indexed, Method, Stream};

fn main() {
    divan::main();
}

/// The bytes to compress.
#[derive(Debug, Clone, Copy)]
enum Corpus {
    Bfloat16,
    Float32,
    /// Small integers, masks and zeros.
    Mixed,
}

const BYTES: usize = 32 << 20;

const CORPORA: [Corpus; 3] = [Corpus::Bfloat16, Corpus::Float32, Corpus::Mixed];

impl Corpus {
    fn bytes(self, len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1 << 24) as f32
        };
        // The sum of twelve uniform numbers is normal enough.
        let mut normal = || (0..12).map(|_| random()).sum::<f32>() - 6.0;
        match self {
            Self::Bfloat16 => (0..len / 2)
                .flat_map(|_| ((normal() * 0.02).to_bits() >> 16).to_le_bytes()[..2].to_vec())
                .collect(),
            Self::Float32 => (0..len / 4)
                .flat_map(|_| (normal() * 0.02).to_le_bytes())
                .collect(),
            Self::Mixed => (0..len)
                .map(|at| match at / (len / 8) {
                    0 | 1 => (normal() * 6.0) as i8 as u8,
                    2 | 3 => u8::from(normal() > 1.5),
                    4 => u8::from(at / 1000 % 2 == 0),
                    _ => 0,
                })
                .collect(),
        }
    }
}

fn compressed(corpus: Corpus, method: Method, threads: usize) -> (usize, Vec<u8>) {
    let (content, threads) = (corpus.bytes(BYTES), NonZero::new(threads).unwrap());
    let mut member = Vec::new();
    gzip::compress(&content, method, threads, &mut member, &()).unwrap();
    (content.len(), member)
}

/// Compressing as the content has it; prints the ratio.
#[divan::bench(args = CORPORA, consts = [1, 2], sample_count = 10)]
fn compress<const THREADS: usize>(bencher: Bencher, corpus: Corpus) {
    compress_by::<THREADS>(bencher, corpus, Method::Adaptive);
}

/// The same as numbers.
#[divan::bench(args = CORPORA, consts = [1, 2], sample_count = 20)]
fn compress_numbers<const THREADS: usize>(bencher: Bencher, corpus: Corpus) {
    compress_by::<THREADS>(bencher, corpus, Method::Numbers);
}

fn compress_by<const THREADS: usize>(bencher: Bencher, corpus: Corpus, method: Method) {
    let content = corpus.bytes(BYTES);
    let threads = NonZero::new(THREADS).unwrap();
    let mut memory = vec![MaybeUninit::new(0); gzip::bound(content.len())];
    let mut compress = || {
        let mut stream = Filling::new(&mut memory);
        gzip::compress(&content, method, threads, &mut stream, &()).unwrap();
        stream.finish().len()
    };
    let ratio = content.len() as f64 / compress() as f64;
    bencher
        .counter(BytesCount::new(content.len()))
        .bench_local(compress);
    print!("[ratio {ratio:.4}] ");
}

/// Decompressing that.
#[divan::bench(args = CORPORA, consts = [1, 2], sample_count = 10)]
fn decompress<const THREADS: usize>(bencher: Bencher, corpus: Corpus) {
    decompress_by::<THREADS>(bencher, corpus, Method::Adaptive);
}

/// The same of numbers.
#[divan::bench(args = CORPORA, consts = [1, 2], sample_count = 20)]
fn decompress_numbers<const THREADS: usize>(bencher: Bencher, corpus: Corpus) {
    decompress_by::<THREADS>(bencher, corpus, Method::Numbers);
}

fn decompress_by<const THREADS: usize>(bencher: Bencher, corpus: Corpus, method: Method) {
    let (len, stream) = compressed(corpus, method, 2);
    let threads = NonZero::new(THREADS).unwrap();
    let mut out = vec![MaybeUninit::new(0); len];
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        let indexed = Indexed::open(&stream).unwrap().unwrap();
        assert!(indexed.inflate(&mut out, threads, &()).unwrap().is_some());
    });
}

/// A stream of another program, without an index.
#[divan::bench(args = CORPORA, sample_count = 5)]
fn decompress_in_order(bencher: Bencher, corpus: Corpus) {
    let bytes = corpus.bytes(8 << 20);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    io::Write::write_all(&mut encoder, &bytes).unwrap();
    let stream = encoder.finish().unwrap();
    bencher
        .counter(BytesCount::new(bytes.len()))
        .bench_local(|| Stream(&stream).inflate(0, None, &()).unwrap());
}
