//! Any stream is inflated or refused, with the same outcome by every way there is.

use std::io::Read;
use std::mem::MaybeUninit;

use treepack_codec::Error;
use treepack_codec::base::pages::Pages;
use treepack_codec::base::source::Source;
use treepack_codec::codec::gzip::{Indexed, Stream};

use super::content::Content;
use super::frame::{Frame, NUMBERS};
use super::{Noise, threads};

const MAX_SIZE: usize = 4 << 20;

/// Checks a stream as it is, and with checksums and an index that fit to its blocks.
pub fn stream(data: &[u8]) {
    check(data, None);
    if let Some(frame) = Frame::read(data) {
        check(&frame.write(), Some(&frame));
    }
}

/// The same for a stream of numbers, of which the header is left out.
pub fn numbers(data: &[u8]) {
    stream(&[&NUMBERS, data].concat());
}

/// `frame` has what another reader makes of it.
fn check(stream: &[u8], frame: Option<&Frame>) {
    let stream = stream.to_vec();
    let whole = Stream(&stream).inflate(0, Some(MAX_SIZE), &());
    let windowed = Stream(&Content(&stream, 0)).inflate(100, Some(MAX_SIZE), &());
    match (&whole, &windowed) {
        (Ok(whole), Ok(windowed)) => assert!(whole.as_slice() == windowed.as_slice()),
        (Err(whole), Err(windowed)) => assert_eq!(whole.to_string(), windowed.to_string()),
        _ => panic!("whole and in windows alike"),
    }
    let is_numbers = stream.starts_with(&NUMBERS);
    match (Stream(&stream).salvage(Some(MAX_SIZE), &()), &whole) {
        (Ok((found, None)), Ok(whole)) => assert!(found.as_slice() == whole.as_slice()),
        // Numbers are whole without the end of their index, of which only this tells.
        (Ok((found, Some(Error::GzipTruncated))), Ok(whole)) if is_numbers => {
            assert!(found.as_slice() == whole.as_slice());
        }
        (Ok((_, Some(damage))), Err(error)) => assert_eq!(damage.to_string(), error.to_string()),
        (Err(Error::OutputLimit { .. }), Err(Error::OutputLimit { .. })) => {}
        (found, _) => panic!("{:?}", found.map(|(_, damage)| damage)),
    }
    if let Ok(whole) = &whole
        && !is_numbers
    {
        let mut found = Vec::new();
        let zlib = flate2::read::MultiGzDecoder::new(&stream[..]);
        let read = zlib.take(MAX_SIZE as u64 + 1).read_to_end(&mut found);
        assert!(read.is_err() || found == whole.as_slice());
    }
    if let Some(indexed) = Indexed::open(&stream).unwrap() {
        by_index(
            &indexed,
            &stream,
            whole.as_ref().ok().map(Pages::as_slice),
            frame,
        );
    }
    let size = Stream(&stream).claimed_size().unwrap();
    if (1..=MAX_SIZE).contains(&size) {
        let mut at_once = vec![MaybeUninit::new(0); size];
        if let Some(made) = Stream(&stream).inflate_at_once(&mut at_once)
            && let Ok(whole) = &whole
        {
            // A code of one symbol has a bit that this way does not look at.
            assert!(whole.as_slice() == made);
        }
    }
}

fn by_index(
    indexed: &Indexed<&Vec<u8>>,
    stream: &[u8],
    whole: Option<&[u8]>,
    frame: Option<&Frame>,
) {
    let len = indexed.len();
    let windowed = Indexed::open(Content(stream, 0))
        .unwrap()
        .expect("the same index");
    let mut noise = Noise::new(stream.len());
    let mut parts = Vec::new();
    for _ in 0..6 {
        let start = noise.up_to(len);
        let range = start..start + noise.up_to((len - start).min(1 << 16));
        let read = indexed.read(range.clone());
        let again = windowed.read(range.clone());
        assert_eq!(read.as_ref().ok(), again.as_ref().ok());
        let stored = indexed.stored(range.clone());
        assert!(stored.end <= stream.len());
        parts.extend(read.ok().map(|read| (range, read)));
    }
    if len > MAX_SIZE {
        return;
    }
    let mut out = vec![MaybeUninit::new(0); len];
    let sound = indexed.inflate(&mut out, threads(1), &()).unwrap();
    let Some(sound) = sound else {
        return;
    };
    assert!(indexed.damage().is_none());
    assert!(whole.expect("what the index gives is there in order, too") == sound);
    if let Some(frame) = frame {
        assert!(frame.content().expect("another reader takes it, too") == sound);
    }
    assert!(indexed.read(0..len).unwrap() == sound);
    assert!(windowed.read(0..len).unwrap() == sound);
    for (range, part) in parts {
        assert!(part == sound[range]);
    }
    let mut out = vec![MaybeUninit::new(0); len];
    assert!(
        windowed
            .inflate(&mut out, threads(2), &())
            .unwrap()
            .unwrap()
            == sound
    );
}
