//! Lists the arrays of a checkpoint, and sums one of them: without Python.
//!
//! ```text
//! cargo run --release --example inspect -- model.msgpack params/Dense_0/kernel
//! ```

use std::env;
use std::path::Path;

use treepack::Result;
use treepack::events::{Events, Leaf};
use treepack::gzip::Indexed;
use treepack::mapping::Mapping;
use treepack::source::Source;

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let (file, wanted) = (arguments.next(), arguments.next());
    let mapping = Mapping::open(Path::new(&file.expect("the path of a checkpoint")))?;
    match Indexed::open(&mapping)? {
        Some(compressed) => inspect(&compressed, wanted.as_deref()),
        None => inspect(&mapping, wanted.as_deref()),
    }
}

fn inspect(source: &dyn Source, wanted: Option<&str>) -> Result<()> {
    let events = Events::read(source, || Ok(()))?;
    for leaf in events.leaves() {
        let leaf = leaf?;
        println!(
            "{:40} {} {:?}",
            leaf.path.to_string(),
            leaf.dtype,
            leaf.shape
        );
        if wanted.is_some_and(|wanted| leaf.path.keys().eq(wanted.split('/'))) {
            println!("    sum: {}", sum(&leaf, source)?);
        }
    }
    Ok(())
}

fn sum(leaf: &Leaf<'_>, source: &dyn Source) -> Result<f64> {
    assert_eq!(leaf.dtype, "float32", "only float32 is summed here");
    let bytes = leaf.read(source)?;
    let (floats, _) = bytes.as_chunks::<4>();
    Ok(floats
        .iter()
        .map(|it| f64::from(f32::from_le_bytes(*it)))
        .sum())
}
