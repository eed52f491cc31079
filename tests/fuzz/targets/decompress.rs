//! Any stream is inflated or refused, with the same outcome by every way there is.
#![no_main]

use std::mem::MaybeUninit;
use std::num::NonZero;

use libfuzzer_sys::fuzz_target;
use treepack::gzip::{
    Indexed, claimed_size, compress, decompress, inflate_at_once, inflate_single, method,
};
use treepack::layout::LayoutBuilder;

const MAX_SIZE: usize = 4 << 20;

/// A stream as it is, or one that was made of some data and then damaged.
type Input = (bool, Vec<u8>, u8, Vec<(u16, u8)>);

fuzz_target!(|input: Input| {
    let (made, data, times, damages) = input;
    if !made {
        return check(&data);
    }
    // Long enough for several blocks now and then.
    let data = data.repeat(usize::from(times) * usize::from(times) % 900 + 1);
    let mut builder = LayoutBuilder::default();
    builder.push(data.clone());
    let threads = NonZero::<usize>::MIN;
    let method = method(None).unwrap();
    let (layout, mut stream) = (builder.finish(), Vec::new());
    compress(&layout, method, threads, &mut stream, |_| Ok(())).unwrap();
    for (place, flipped) in damages {
        let place = usize::from(place) % stream.len();
        stream[place] ^= flipped;
    }
    check(&stream);
});

fn check(stream: &[u8]) {
    let whole = decompress(stream, Some(MAX_SIZE), |_| Ok(()));
    if let Some(indexed) = Indexed::open(stream)
        && indexed.len() <= MAX_SIZE
    {
        let mut out = vec![MaybeUninit::new(0); indexed.len()];
        let sound = indexed.inflate(&mut out, NonZero::<usize>::MIN, |_| Ok(()));
        if sound.unwrap() {
            let whole = whole
                .as_ref()
                .expect("what the index gives is there in order, too");
            assert!(*whole == indexed.read(0..indexed.len()).unwrap());
        }
    }
    let size = claimed_size(stream);
    if (1..=MAX_SIZE).contains(&size) {
        let mut out = vec![MaybeUninit::new(0); size];
        let checksum = inflate_single(stream, &mut out, |_| Ok(())).unwrap();
        let mut at_once = vec![MaybeUninit::new(0); size];
        if inflate_at_once(stream, &mut at_once)
            && let Ok(whole) = &whole
        {
            // A code of one symbol has a bit that this way does not look at.
            // SAFETY: all of it was made of bytes.
            let made = at_once.iter().map(|byte| unsafe { byte.assume_init() });
            assert!(whole.iter().copied().eq(made));
        }
        if let (Some(_), Ok(whole)) = (checksum, whole) {
            assert!(whole.len() == size);
        }
    }
}
