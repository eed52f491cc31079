//! What the fuzz targets check holds of the inputs that they begin with.

// The package has the codec, too.
extern crate treepack as treepack_codec;

use std::path::Path;

#[path = "fuzz/checks/lib.rs"]
mod checks;

#[test]
fn what_fuzzing_begins_with_breaks_nothing() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (name, check, inputs) in checks::seeds::targets(&tests.join("golden")) {
        assert!(!inputs.is_empty(), "{name}");
        for input in &inputs {
            check(input);
        }
    }
}
