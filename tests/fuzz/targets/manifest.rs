//! Reading the manifest of a sharded checkpoint, whatever its bytes are, and the encoding in it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use treepack::catalog::Catalog;
use treepack::manifest::{MARK, Manifest};
use treepack::source::{Source, read_to};

fuzz_target!(|record: &[u8]| {
    // The checksum keeps random bytes from going further, so it is the right one here.
    let mut bytes = record.to_vec();
    bytes.extend_from_slice(&crc32fast::hash(record).to_le_bytes());
    bytes.extend_from_slice(&MARK);
    let Ok(manifest) = Manifest::decode(&bytes) else {
        return;
    };
    let again = Manifest::decode(&manifest.encode().unwrap()).expect("what was read is written");
    assert_eq!(again, manifest);
    let Ok(encoding) = manifest.encoding(Some(64 << 20)) else {
        return;
    };
    let len = encoding.len();
    for range in [0..len.min(4096), len - len.min(4096)..len] {
        let mut found = Vec::new();
        let read = read_to(&encoding, range.clone(), &mut found);
        assert_eq!(read.is_ok(), encoding.is_whole(range.clone()));
        assert!(read.is_err() || found.len() == range.len());
    }
    if len < 1 << 20 {
        let _ = Catalog::open(&encoding, true, &());
    }
});
