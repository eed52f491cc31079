//! Writes what the targets begin with: `seeds folder`.

use std::path::Path;

fn main() {
    let folder = std::env::args().nth(1).expect("the folder");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden");
    checks::seeds::write(&golden, Path::new(&folder));
}
