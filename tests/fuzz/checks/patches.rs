//! A patch gives back the encoding that it was made of; any other one is refused, or makes no more than
//! it may.

use std::mem::MaybeUninit;

use treepack::Result;
use treepack::format::array::{Alignment, Array, ChunkLimit, Framing};
use treepack::format::encoder::Encoder;
use treepack::format::layout::{Layout, LayoutBuilder};
use treepack::format::structure::Kind;
use treepack::format::wire::EXT_NDARRAY;
use treepack::patches::{Base, Join, Patch, apply, make, value_len};

use super::{parts, threads};

const DTYPES: [(&str, usize); 5] = [
    ("float32", 4),
    ("bfloat16", 2),
    ("int8", 1),
    ("uint64", 8),
    ("float64", 8),
];

/// Bytes of the end of a patch: its checksum, the length of its record, the mark.
const END: usize = 16;

/// A tree of two arrays with these elements.
fn layout(bytes: &[u8], (dtype, itemsize): (&str, usize)) -> Layout<Vec<u8>> {
    let framing = Framing {
        align: Alignment::new(16).unwrap(),
        chunks: ChunkLimit::new(1e9),
        may_box: true,
    };
    let mut encoder = Encoder::<Vec<u8>>::described(framing);
    encoder.map(2).unwrap();
    let (one, two) = bytes.split_at(bytes.len() / itemsize / 2 * itemsize);
    for (name, bytes) in [("one", one), ("two", two)] {
        let array = Array {
            code: EXT_NDARRAY,
            shape: &[bytes.len() / itemsize],
            dtype,
            itemsize,
        };
        encoder.key(name).unwrap();
        let content = |out: &mut LayoutBuilder<Vec<u8>>, range: std::ops::Range<usize>| {
            out.push(bytes[range].to_vec())
        };
        encoder.array(&array, Kind::Plain, content).unwrap();
    }
    encoder.end(Kind::Dict).unwrap();
    encoder.finish(None).unwrap()
}

fn bytes_of(layout: &Layout<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for slice in layout.slices(0..layout.len()) {
        let mut part = vec![MaybeUninit::uninit(); slice.len()];
        bytes.extend_from_slice(slice.copy_to(0, &mut part).unwrap());
    }
    bytes
}

fn joined(patch: &[u8], base: &Vec<u8>, salvage: bool) -> Result<Vec<u8>> {
    let read = if salvage { Patch::salvage } else { Patch::read };
    let patch = read(patch, &())?;
    let opened = Base::open(base, base, salvage, &())?;
    let join = Join::new(&patch, &opened, salvage, &())?;
    let mut memory = vec![MaybeUninit::uninit(); join.len()];
    Ok(join.fill(base, &mut memory, threads(2), &())?.to_vec())
}

/// The base and the patch of an input: a byte for the dtype, and the elements of both trees.
pub fn made(input: &[u8]) -> Option<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let (kind, rest) = input.split_first()?;
    let [held, new] = parts(rest)[..] else {
        return None;
    };
    let dtype = DTYPES[usize::from(*kind) % DTYPES.len()];
    let len = held.len().min(new.len()) / dtype.1 * dtype.1;
    let base = bytes_of(&layout(&held[..len], dtype));
    let new = layout(&new[..len], dtype);
    let whole = bytes_of(&new);
    let opened = Base::open(&base, &base, false, &()).unwrap();
    let patch = bytes_of(&make(new, &opened, "", threads(2), &()).unwrap());
    Some((base, whole, patch))
}

/// Makes a patch of any elements, and joins and applies it.
pub fn make_any(input: &[u8]) {
    let Some((mut base, whole, patch)) = made(input) else {
        return;
    };
    assert!(patch.len() <= whole.len() + whole.len() / 1000 + 200);
    assert!(joined(&patch, &base, false).unwrap() == whole);
    assert!(joined(&patch, &base, true).unwrap() == whole);
    let read = Patch::read(&patch, &()).unwrap();
    assert_eq!(
        apply(&read, &mut base, threads(2), &()).unwrap(),
        whole.len()
    );
    assert!(base == whole);
}

/// Reads any patch, with its own checksum and with the right one.
pub fn read_any(input: &[u8]) {
    let [patch, base] = parts(input)[..] else {
        return;
    };
    check(patch, &base.to_vec());
    let mut patch = patch.to_vec();
    if let Some(at) = patch.len().checked_sub(END) {
        let sum = crc32fast::hash(&patch[..at]);
        patch[at..at + 4].copy_from_slice(&sum.to_le_bytes());
        check(&patch, &base.to_vec());
    }
}

fn check(patch: &[u8], base: &Vec<u8>) {
    // In place, bytes after the base's value are room; a file has none.
    let len = value_len(base, &()).unwrap_or(base.len());
    let salvaged = joined(patch, &base[..len].to_vec(), true);
    let found = joined(patch, &base[..len].to_vec(), false);
    for found in [&found, &salvaged].into_iter().flatten() {
        assert!(found.len() <= patch.len() + base.len());
    }
    let Ok(patch) = Patch::read(patch, &()) else {
        return;
    };
    let mut memory = base.clone();
    match apply(&patch, &mut memory, threads(2), &()) {
        Ok(len) => assert!(found.is_ok_and(|found| found == memory[..len])),
        Err(_) => assert!(memory == *base, "an error changes nothing"),
    }
}
