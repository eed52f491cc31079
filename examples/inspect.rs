//! Lists the leaves of a checkpoint, and sums an array: without Python.
//!
//! ```text
//! cargo run --release --example inspect -- model.msgpack params/Dense_0/kernel
//! ```

use std::env;

use treepack::{ArrayView, Dtype, File, Result};

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let file = File::open(arguments.next().expect("the path of a checkpoint"))?;
    for leaf in file.leaves() {
        println!("{:40} {}", leaf.path().to_string(), leaf.kind());
    }
    if let Some(path) = arguments.next() {
        println!("sum of {path}: {}", sum(&file.get(&path)?)?);
    }
    Ok(())
}

fn sum(array: &ArrayView<'_>) -> Result<f64> {
    assert_eq!(array.dtype(), Dtype::F32, "only float32 is summed here");
    let bytes = array.bytes()?;
    let (floats, _) = bytes.as_chunks();
    Ok(floats
        .iter()
        .map(|it| f64::from(f32::from_le_bytes(*it)))
        .sum())
}
