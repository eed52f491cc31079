//! Any bytes are a record of a structure, and a value, or an error; those that are come back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use treepack::structure::{Index, Record, Value};

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = Record::decode(data) {
        assert_eq!(Record::decode(&record.encode(&()).unwrap()).unwrap(), record);
    }
    if let Ok(index) = Index::decode(data) {
        assert_eq!(Index::decode(&index.encode(&()).unwrap()).unwrap(), index);
    }
    if let Ok(value) = Value::decode(data) {
        // Compared as bytes, because a NaN differs from itself.
        let encoded = value.encode().unwrap();
        let again = Value::decode(&encoded).unwrap();
        assert_eq!(again.encode().unwrap(), encoded);
    }
});
