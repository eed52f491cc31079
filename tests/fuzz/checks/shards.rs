//! Any bytes are the manifest of a sharded checkpoint or an error, and its arrays are read from any
//! files, or are an error.

use std::mem::MaybeUninit;
use std::sync::Arc;

use treepack::base::source::{Source, read_to};
use treepack::catalog::{Catalog, FoundArrays};
use treepack::elements::Bounds;
use treepack::sharding::boxes::{ManifestPlace, OpenFile, ShardBox, ShardedArray};
use treepack::sharding::manifest::{MARK, Manifest};

use super::{files, parts, threads};

/// A record; then, if they follow, what its encoding has besides arrays, and files with shards.
pub fn manifest(input: &[u8]) {
    let input = parts(input);
    // The checksum keeps random bytes from going further, so it is the right one here.
    let mut bytes = input[0].to_vec();
    bytes.extend_from_slice(&crc32fast::hash(input[0]).to_le_bytes());
    bytes.extend_from_slice(&MARK);
    let Ok(mut manifest) = Manifest::decode(&bytes) else {
        return;
    };
    let again = Manifest::decode(&manifest.encode().unwrap()).expect("what was read is written");
    assert_eq!(again, manifest);
    if let Some(skeleton) = input.get(1).filter(|skeleton| !skeleton.is_empty()) {
        manifest.skeleton = zlib(skeleton).into();
    }
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
    let Ok(catalog) = Catalog::open(&encoding, false, &()).map(Arc::new) else {
        let _ = Catalog::open(&encoding, true, &());
        return;
    };
    let sources = input.iter().skip(2);
    let sources = sources.map(|file| files::sealed(file).unwrap_or_else(|| file.to_vec()));
    let sources: Vec<Vec<u8>> = sources.collect();
    let opened: Vec<_> = sources
        .iter()
        .map(|source| {
            (
                Catalog::open(source, true, &()).unwrap(),
                FoundArrays::default(),
            )
        })
        .collect();
    let open: Vec<_> = (0..)
        .zip(&sources)
        .zip(&opened)
        .map(|((number, source), (catalog, arrays))| OpenFile {
            number,
            catalog,
            source,
            arrays,
        })
        .collect();
    let mut left = 100;
    for value in 0..catalog.values() {
        let Some(leaf) = catalog.leaf(value) else {
            continue;
        };
        let place = catalog.place(leaf);
        let _ = catalog.events_of(&encoding, value);
        let Some((dtype, shape)) = catalog.dtype_and_shape(leaf) else {
            continue;
        };
        let Ok(array) = catalog.array(&encoding, value) else {
            continue;
        };
        let Some(number) = encoding.array_of(array.parts().iter().cloned()) else {
            continue;
        };
        assert!(
            array
                .parts()
                .iter()
                .all(|part| part.start >= place.start && part.end <= place.end)
        );
        left -= 1;
        if left == 0 {
            return;
        }
        let shape: Vec<usize> = shape
            .iter()
            .map(|dim| usize::try_from(*dim).unwrap())
            .collect();
        let itemsize = array.nbytes() / shape.iter().product::<usize>().max(1);
        read(
            &manifest,
            number,
            (catalog.clone(), value),
            dtype,
            itemsize,
            &shape,
            &open,
        );
    }
}

fn zlib(data: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::none());
    std::io::Write::write_all(&mut out, data).unwrap();
    out.finish().unwrap()
}

/// Reads an array whole and by rows, which is the same.
fn read(
    manifest: &Manifest,
    number: usize,
    place: ManifestPlace,
    dtype: &str,
    itemsize: usize,
    shape: &[usize],
    open: &[OpenFile<'_>],
) {
    let (grid, dtype) = (&manifest.arrays[number], dtype.to_owned());
    let Ok(Some(array)) = ShardedArray::new(grid, shape, place, dtype, itemsize) else {
        return;
    };
    let array = Arc::new(array);
    let all: Vec<_> = shape.iter().map(|len| (0, *len)).collect();
    let (whole, missing) = part(&array, &all, itemsize, open);
    assert!(whole.is_none() || missing.is_none());
    let (Some(whole), Some(&rows)) = (whole, shape.first()) else {
        return;
    };
    let rows = rows.min(5);
    let mut by_rows = Vec::new();
    for row in 0..rows {
        let mut some = all.clone();
        some[0] = (row, 1);
        by_rows.extend(
            part(&array, &some, itemsize, open)
                .0
                .expect("all can be read"),
        );
    }
    assert!(whole.starts_with(&by_rows));
}

/// A box, if it can be read, and a shard that its file does not have.
fn part(
    array: &Arc<ShardedArray>,
    ranges: &[(usize, usize)],
    itemsize: usize,
    open: &[OpenFile<'_>],
) -> (Option<Vec<u8>>, Option<usize>) {
    let bounds: Vec<_> = ranges
        .iter()
        .map(|&(start, count)| Bounds {
            start,
            count,
            step: 1,
        })
        .collect();
    let found = ShardBox::new(array.clone(), &bounds).expect("it is in the array");
    let nbytes = bounds.iter().map(|it| it.count).product::<usize>() * itemsize;
    if nbytes > 1 << 20 || found.len() > 1 << 12 {
        return (None, None);
    }
    let needed = found.files().unwrap();
    assert_eq!(needed.iter().map(|(_, bytes)| bytes).sum::<usize>(), nbytes);
    let mut strides = vec![itemsize; bounds.len()];
    for dim in (1..bounds.len()).rev() {
        strides[dim - 1] = strides[dim] * bounds[dim].count.max(1);
    }
    let mut memory = vec![MaybeUninit::new(0); nbytes];
    let read = found.read(open, &mut memory, &strides, threads(1), &());
    let missing = found.missing(open, &()).ok().flatten();
    // SAFETY: all of it was zero before.
    #[allow(unsafe_code)]
    let bytes = unsafe { memory.assume_init_ref() }.to_vec();
    (read.is_ok().then_some(bytes), missing)
}
