//! Whatever is compressed comes back, by the index and in order.
#![no_main]

use std::mem::MaybeUninit;
use std::num::NonZero;

use libfuzzer_sys::fuzz_target;
use treepack::gzip::{Indexed, Method, bound, compress, inflate_in_steps, method};
use treepack::layout::LayoutBuilder;

fuzz_target!(|input: (u8, u8, bool, u8, Vec<u8>)| {
    let (level, times, numbers, header, data) = input;
    // Long enough for several blocks now and then.
    let data = data.repeat(usize::from(times) * usize::from(times) % 900 + 1);
    let level = (level % 11 < 10).then_some(i64::from(level % 11));
    let threads = NonZero::new(2).unwrap();
    let mut builder = LayoutBuilder::default();
    let (header, payload) = data.split_at(data.len().min(header.into()));
    builder.headers().extend_from_slice(header);
    builder.push(payload.to_vec()).unwrap();
    let layout = builder.finish();
    let method = if numbers {
        Method::Numbers
    } else {
        method(level).unwrap()
    };
    let mut stream = Vec::new();
    compress(&layout, method, threads, &mut stream, &()).unwrap();
    assert!(stream.len() <= bound(data.len()));
    assert!(inflate_in_steps(&stream, 0, None, &()).unwrap().as_slice() == data);
    if let Some(indexed) = Indexed::open(&stream).unwrap() {
        assert!(indexed.read(0..indexed.len()).unwrap() == data);
        let mut out = vec![MaybeUninit::new(0); indexed.len()];
        assert!(indexed.inflate(&mut out, threads, &()).unwrap().is_some());
    }
});
