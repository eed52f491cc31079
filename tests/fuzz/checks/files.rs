//! Any bytes can be opened, or are an error; what is found lies in them, whatever their index says,
//! and is the same in memory, in windows and compressed.

use std::mem::MaybeUninit;

use treepack::catalog::{ArrayPlace, BLOCK_BYTES, Catalog};
use treepack::elements::Bounds;
use treepack::format::events::Events;
use treepack::format::footer::{Footer, Regions, Seal};
use treepack::format::structure::{Record, Value};
use treepack_codec::codec::gzip::Method;

use super::compressing::small_blocks;
use super::opened::Opened;
use super::records::described;
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
    let after = seal.close(&checksums, &[]).ok()?;
    let length = u32::try_from(record.len() + after.len()).ok()?;
    Some([state, &length.to_be_bytes(), record, &after].concat())
}

/// Each leaf in words, and what it is.
fn listed(file: &Opened<'_>) -> Vec<String> {
    let leaves = file.leaves().map(|value| {
        let events = file.catalog.events_of(&file.source, value);
        let events = events.map(|events| described(&events));
        let bytes = file.bytes(value).map_err(|error| error.to_string());
        let (path, kind) = (file.path(value), file.kind(value));
        format!("{path} {kind:?} {events:?} {bytes:?}")
    });
    leaves.collect()
}

/// Whether the metadata, if there are any, can be read.
fn has_metadata(file: &Opened<'_>) -> bool {
    file.catalog.record().is_none_or(|record| {
        let metadata = Record::read(record).map(|record| record.metadata);
        metadata.is_ok_and(|it| it.is_none_or(|value| Value::decode(&value).is_ok()))
    })
}

fn examine(data: &[u8]) {
    if let Ok(file) = Opened::new(data.to_vec()) {
        let leaves = listed(&file);
        let windowed = Opened::new(Windowed(data)).expect("as in memory");
        assert_eq!(leaves, listed(&windowed));
        let damage = file.damage();
        assert_eq!(damage, windowed.damage());
        for value in file.leaves() {
            if let Ok(array) = file.catalog.array(&file.source, value) {
                boxes(&file, &array, &file.bytes(value).unwrap());
            }
        }
        let is_plain = !data.starts_with(b"\x1f\x8b") && !data.starts_with(b"\xc1treepack");
        if is_plain && (100..3000).contains(&data.len()) {
            for method in [Method::Adaptive, Method::Numbers] {
                let stream = small_blocks(data, method, 97);
                let compressed = Opened::new(stream).expect("as without compression");
                assert_eq!(leaves, listed(&compressed));
                assert_eq!(has_metadata(&file), has_metadata(&compressed));
                assert!(damage.is_some() || compressed.damage().is_none());
            }
        }
    } else {
        assert!(Opened::new(Windowed(data)).is_err());
    }
    catalog(data);
}

/// Boxes are those of the whole.
fn boxes(file: &Opened<'_>, array: &ArrayPlace, bytes: &[u8]) {
    let shape = array.shape();
    let count = shape.iter().product::<usize>();
    let itemsize = bytes.len() / count.max(1);
    assert_eq!(
        (array.nbytes(), bytes.len()),
        (bytes.len(), count * itemsize)
    );
    let read = |ranges: &[(usize, usize)]| {
        let bounds = ranges.iter().map(|&(start, count)| Bounds {
            start,
            count,
            step: 1,
        });
        let runs = array
            .runs(&bounds.collect::<Vec<_>>(), None)
            .expect("it is in the array");
        let mut memory = vec![MaybeUninit::new(0); runs.extent()];
        array
            .read_runs(&file.source, &runs, &mut memory, threads(1), || Ok(()))
            .unwrap();
        // SAFETY: all of it was zero before.
        #[allow(unsafe_code)]
        unsafe { memory.assume_init_ref() }.to_vec()
    };
    let whole: Vec<_> = shape.iter().map(|len| (0, *len)).collect();
    assert!(read(&whole) == bytes);
    let mut noise = Noise::new(bytes.len());
    let some = shape.iter().map(|len| {
        let start = noise.up_to(*len);
        (start, noise.up_to(len - start))
    });
    let some: Vec<_> = some.collect();
    let Some((&(first, rows), others)) = some.split_first() else {
        return;
    };
    if bytes.is_empty() {
        return; // there may be any number of rows
    }
    let row = bytes.len() / shape[0].max(1);
    let mut all = whole.clone();
    all[0] = (first, rows);
    assert!(read(&all) == bytes[first * row..(first + rows) * row]);
    // A box is its rows, one after the other.
    let row_of = |row| read(&[&[(row, 1)], others].concat());
    assert!(read(&some) == (first..first + rows).flat_map(row_of).collect::<Vec<u8>>());
    all[0] = (0, shape[0] + 1);
    let bounds = all.iter().map(|&(start, count)| Bounds {
        start,
        count,
        step: 1,
    });
    assert!(array.runs(&bounds.collect::<Vec<_>>(), None).is_none());
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
