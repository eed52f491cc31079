//! Any stream is inflated or refused, with the same outcome by every way there is.
#![no_main]

use std::mem::MaybeUninit;
use std::num::NonZero;

use libfuzzer_sys::fuzz_target;
use treepack::gzip::{Indexed, Method, claimed_size, compress, inflate_at_once, inflate_in_steps};
use treepack::layout::LayoutBuilder;

const MAX_SIZE: usize = 4 << 20;

/// A stream as it is, or one that was made of some data and then damaged.
type Input = (bool, bool, Vec<u8>, u8, Vec<(u16, u8)>);

fuzz_target!(|input: Input| {
    let (made, numbers, data, times, damages) = input;
    if !made {
        return check(&data);
    }
    // Long enough for several blocks now and then.
    let data = data.repeat(usize::from(times) * usize::from(times) % 900 + 1);
    let mut builder = LayoutBuilder::default();
    builder.push(data.clone()).unwrap();
    let threads = NonZero::<usize>::MIN;
    let method = if numbers {
        Method::Numbers
    } else {
        Method::Adaptive
    };
    let (layout, mut stream) = (builder.finish(), Vec::new());
    compress(&layout, method, threads, &mut stream, &()).unwrap();
    for (place, flipped) in damages {
        let place = usize::from(place) % stream.len();
        stream[place] ^= flipped;
    }
    check(&stream);
});

fn check(stream: &[u8]) {
    let stream = stream.to_vec();
    let whole = inflate_in_steps(&stream, 0, Some(MAX_SIZE), &());
    if let Some(indexed) = Indexed::open(&stream).unwrap()
        && indexed.len() <= MAX_SIZE
    {
        let mut out = vec![MaybeUninit::new(0); indexed.len()];
        let sound = indexed.inflate(&mut out, NonZero::<usize>::MIN, &());
        if let Some(sound) = sound.unwrap() {
            let whole = whole
                .as_ref()
                .expect("what the index gives is there in order, too");
            assert!(whole.as_slice() == sound);
            assert!(*whole.as_slice() == indexed.read(0..indexed.len()).unwrap());
        }
    }
    let size = claimed_size(&stream).unwrap();
    if (1..=MAX_SIZE).contains(&size) {
        let mut at_once = vec![MaybeUninit::new(0); size];
        if let Some(made) = inflate_at_once(&stream, &mut at_once)
            && let Ok(whole) = &whole
        {
            // A code of one symbol has a bit that this way does not look at.
            assert!(whole.as_slice() == made);
        }
    }
}
