//! Any bytes are events or an error, in memory and in windows alike.
#![no_main]

use std::mem::MaybeUninit;

use libfuzzer_sys::fuzz_target;
use treepack::Result;
use treepack::array::resolve;
use treepack::events::{Event, Events};
use treepack::source::Source;

/// A source that is no memory, so that it is read in windows.
struct Windowed<'a>(&'a [u8]);

impl Source for Windowed<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut [MaybeUninit<u8>]) -> Result<&'t mut [u8]> {
        Ok(target.write_copy_of_slice(&self.0[offset..offset + target.len()]))
    }
}

fuzz_target!(|data: &[u8]| {
    let events = Events::read(&data.to_vec(), || Ok(()));
    let windowed = Events::read(&Windowed(data), || Ok(()));
    assert_eq!(format!("{events:?}"), format!("{windowed:?}"));
    let Ok(events) = events else {
        return;
    };
    for event in events.as_slice() {
        match event {
            Event::Array(number) | Event::Scalar(number) => {
                let array = events.array(*number);
                assert!(
                    array
                        .spans
                        .iter()
                        .all(|span| span.range().end <= data.len())
                );
                let _ = resolve(array.dims, array.nbytes(), 4, array.offset);
            }
            Event::Bin(span) | Event::Ext(_, span) => assert!(span.range().end <= data.len()),
            Event::Map(it) | Event::List(it) | Event::PrngKey(it) => {
                assert!(it.end <= events.as_slice().len());
            }
            _ => {}
        }
    }
});
