//! Any bytes can be opened, or are an error; what is found lies in them, whatever their index says.
#![no_main]

use libfuzzer_sys::fuzz_target;
use treepack::File;
use treepack::catalog::{BLOCK_BYTES, Catalog};
use treepack::events::Events;
use treepack::structure::{Regions, Seal};

fuzz_target!(|data: &[u8]| {
    examine(data.to_vec());
    // The same as a record with all that belongs to one: the first byte says where it begins.
    if let Some((&split, data)) = data.split_first() {
        let (state, record) = data.split_at(usize::from(split).min(data.len()));
        let after = Seal::new(record, Regions::default()).close(&[]).expect("memory");
        let length = u32::try_from(record.len() + after.len()).unwrap();
        let mut whole = state.to_vec();
        whole.extend_from_slice(b"\xac__treepack__\xc6");
        whole.extend_from_slice(&length.to_be_bytes());
        whole.extend_from_slice(record);
        whole.extend_from_slice(&after);
        examine(whole);
    }
});

fn examine(data: Vec<u8>) {
    if let Ok(file) = File::from_bytes(&data) {
        let _ = (file.metadata(), file.verify());
        for leaf in file.leaves() {
            let _ = leaf.value();
            let Ok(array) = leaf.array() else { continue };
            if let Ok(bytes) = array.bytes() {
                let elements: usize = array.shape().iter().product();
                assert_eq!(bytes.len(), elements * array.dtype().itemsize());
            }
        }
    }
    let scanned = Events::read(&data, || Ok(())).is_ok();
    for salvage in [false, true] {
        let opened = Catalog::open(&data, salvage, &());
        let Ok(catalog) = opened else {
            assert!(!salvage, "what is damaged is left out");
            continue;
        };
        let mut before = 0;
        for end in catalog.ends_below(0) {
            let (path, value) = end.expect("there is memory");
            let Some(leaf) = catalog.leaf(value) else {
                continue;
            };
            let place = catalog.place(leaf);
            assert!(place.region <= place.start && place.start <= place.end);
            assert!(before <= place.end && place.end <= data.len());
            before = place.end;
            let keys: Vec<&str> = path.keys().collect();
            assert_eq!(catalog.path_of(value), path);
            // Of equal keys the last counts, in which there may be something else.
            let found = catalog.find(0, keys, &()).expect("nobody stops it");
            assert!(found.is_none_or(|found| catalog.path_of(found) == path));
            let read = Events::read_part(&data, place.start..place.end);
            assert!(read.is_ok() || !scanned || catalog.record().is_some());
        }
        let threads = std::num::NonZero::<usize>::MIN;
        let found = catalog.verify(&data, false, BLOCK_BYTES, threads, &()).unwrap();
        assert_eq!(found.len(), catalog.len() + 1);
    }
}
