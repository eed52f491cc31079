//! Any bytes can be opened, or are an error; what is found lies in them, whatever their index says,
//! and is the same in memory, in windows and compressed.

use treepack::catalog::{BLOCK_BYTES, Catalog};
use treepack::events::Events;
use treepack::gzip::Method;
use treepack::structure::{Footer, Regions, Seal};
use treepack::{ArrayView, File};

use super::compressing::small_blocks;
use super::{Noise, Windowed, threads};

/// Checks bytes as they are, and with the checksum that fits to their record.
pub fn open(data: &[u8]) {
    examine(data);
    if let Some(sealed) = sealed(data) {
        examine(&sealed);
    }
}

/// The data with lengths and a checksum that fit to the record; without a footer, that gets one.
pub fn sealed(data: &[u8]) -> Option<Vec<u8>> {
    const KEY: &[u8] = b"\xac__treepack__\xc6";
    let at = data.windows(KEY.len()).rposition(|bytes| bytes == KEY)?;
    let (state, rest) = data.split_at(at + KEY.len());
    let (mut record, mut checksums) = (rest.get(4..)?, Vec::new());
    if let Some(footer) = Footer::find(record) {
        record = &record[..record.len() - Footer::BYTES];
        let sums = footer.checksums.min(record.len() / 4);
        let (before, sums) = record.split_at(record.len() - 4 * sums);
        record = before;
        let sums = sums.as_chunks().0.iter();
        checksums.extend(sums.map(|sum| u32::from_le_bytes(*sum)));
    }
    let seal = Seal::new(record, Regions::new(vec![0; checksums.len()]));
    let after = seal.close(&checksums).ok()?;
    let length = u32::try_from(record.len() + after.len()).ok()?;
    Some([state, &length.to_be_bytes(), record, &after].concat())
}

/// Each leaf in words, and what it is.
fn listed(file: &File<'_>) -> Vec<String> {
    let leaves = file.leaves().map(|leaf| {
        let value = leaf.value().map_err(|error| error.to_string());
        let array = leaf.array().map_err(|error| error.to_string());
        let array = array.map(|array| {
            (
                format!("{array:?}"),
                array.bytes().map_err(|it| it.to_string()),
            )
        });
        format!("{leaf:?} {:?} {value:?} {array:?}", leaf.dtype())
    });
    leaves.collect()
}

fn examine(data: &[u8]) {
    if let Ok(file) = File::from_bytes(data) {
        let leaves = listed(&file);
        let windowed = File::from_source(Windowed(data)).expect("as in memory");
        assert_eq!(leaves, listed(&windowed));
        let sound = file.verify().map_err(|error| error.to_string());
        assert_eq!(sound, windowed.verify().map_err(|error| error.to_string()));
        let metadata = file.metadata();
        for leaf in file.leaves() {
            // Of equal keys the last counts, in which there may be something else.
            let found = file.leaf(&leaf.path().to_string());
            assert!(found.is_ok_and(|found| found.path() == leaf.path()) || leaves.len() > 1);
            if let Ok(array) = leaf.array() {
                boxes(&array, leaf.nbytes());
            }
        }
        let is_plain = !data.starts_with(b"\x1f\x8b") && !data.starts_with(b"\xc1treepack");
        if is_plain && (100..3000).contains(&data.len()) {
            for method in [Method::Adaptive, Method::Numbers] {
                let stream = small_blocks(data, method, 97);
                let compressed = File::from_bytes(&stream).expect("as without compression");
                let packed = listed(&compressed);
                assert_eq!(leaves, packed);
                assert_eq!(metadata.is_ok(), compressed.metadata().is_ok());
                assert!(sound.is_err() || compressed.verify().is_ok());
            }
        }
    } else {
        assert!(File::from_source(Windowed(data)).is_err());
    }
    catalog(data);
}

/// Boxes and rows are those of the whole.
fn boxes(array: &ArrayView<'_>, nbytes: usize) {
    let Ok(bytes) = array.bytes() else {
        return;
    };
    let shape = array.shape();
    let itemsize = array.dtype().itemsize();
    assert!(bytes.len() <= nbytes && array.nbytes() == bytes.len());
    assert_eq!(bytes.len(), shape.iter().product::<usize>() * itemsize);
    let whole: Vec<_> = shape.iter().map(|len| 0..*len).collect();
    assert!(array.read_box(&whole).unwrap() == *bytes);
    let mut noise = Noise::new(bytes.len());
    let some = shape.iter().map(|len| {
        let start = noise.up_to(*len);
        start..start + noise.up_to(len - start)
    });
    let some: Vec<_> = some.collect();
    let found = array.read_box(&some).unwrap();
    if let [rows, others @ ..] = &some[..] {
        let part = array.rows(rows.clone()).unwrap();
        let row = bytes.len() / shape[0].max(1);
        assert!(*part.bytes().unwrap() == bytes[rows.start * row..rows.end * row]);
        let inside = std::iter::once(0..rows.len()).chain(others.iter().cloned());
        let inside: Vec<_> = inside.collect();
        assert!(part.read_box(&inside).unwrap() == found);
        assert!(array.rows(0..shape[0] + 1).is_err());
    }
}

fn catalog(data: &[u8]) {
    let data = data.to_vec();
    let scanned = Events::read(&data).is_ok();
    for salvage in [false, true] {
        let opened = Catalog::open(&data, salvage, &());
        let Ok(catalog) = opened else {
            assert!(!salvage, "what is damaged is left out");
            continue;
        };
        let mut before = 0;
        for value in 0..catalog.values() {
            let path = catalog.path_of(value);
            let Some(leaf) = catalog.leaf(value) else {
                continue;
            };
            let place = catalog.place(leaf);
            assert!(place.region <= place.start && place.start <= place.end);
            assert!(before <= place.end && place.end <= data.len());
            before = place.end;
            let keys: Vec<&str> = path.keys().collect();
            // Of equal keys the last counts, in which there may be something else.
            let found = catalog.find(0, keys, &()).expect("no watch stops it");
            assert!(found.is_none_or(|found| catalog.path_of(found) == path));
            let read = Events::read_part(&data, place.start..place.end);
            assert!(read.is_ok() || !scanned || catalog.record().is_some());
            let read = catalog.events_of(&data, value);
            if let Ok(array) = catalog.array(&data, value) {
                assert!(read.is_ok() && array.parts().iter().all(|part| part.end <= data.len()));
            }
        }
        let all = catalog.totals(0);
        let kinds = catalog.kinds_in(0).expect("there is memory");
        let sum =
            |(leaves, bytes), &(_, count, more): &(_, usize, usize)| (leaves + count, bytes + more);
        assert_eq!(kinds.iter().fold((0, 0), sum), all);
        let unlike = catalog.unlike_index(&data, |_| true, &()).unwrap();
        assert!(unlike.iter().all(|leaf| *leaf <= catalog.len()));
        let found = catalog
            .verify(&data, false, BLOCK_BYTES, threads(1), &())
            .unwrap();
        assert_eq!(found.len(), catalog.len() + 1);
    }
}
