//! Files are listed, read and written by what is at the root of the crate alone, also those that
//! Python wrote.

use std::borrow::Cow;
use std::fs;
use std::mem::MaybeUninit;
use std::path::{self, PathBuf};
use std::sync::Arc;

use treepack::{
    ArrayView, Bytes, Compress, Dtype, Error, File, LeafKind, Path, Result, Source, Value, Writer,
};

fn golden(name: &str) -> PathBuf {
    path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// The golden files, which `golden/make.py` has made, and of which those of flax have chunks.
const FILES: [&str; 5] = [
    "version-1.treepack",
    "version-1.treepack.gz",
    "flax-0.12.8.msgpack",
    "flax-0.5.3.msgpack",
    "eformer-0.0.101.msgpack",
];

fn bytes<const N: usize, T>(
    elements: impl IntoIterator<Item = T>,
    of: fn(T) -> [u8; N],
) -> Vec<u8> {
    elements.into_iter().flat_map(of).collect()
}

/// All arrays of the golden files.
fn arrays() -> Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)> {
    let kernel = bytes((0..12_u8).map(f32::from), f32::to_le_bytes);
    let bias = bytes([1.0; 4], f64::to_le_bytes);
    let half = bytes((0..6_u8).map(f32::from), |it| {
        let [.., low, high] = it.to_le_bytes();
        [low, high]
    });
    let large = bytes(0..40, i64::to_le_bytes);
    let step = bytes([7], i32::to_le_bytes);
    vec![
        ("params/dense/kernel", Dtype::F32, vec![3, 4], kernel),
        ("params/dense/bias", Dtype::F64, vec![4], bias),
        ("params/half", Dtype::BF16, vec![6], half),
        ("params/large", Dtype::I64, vec![4, 10], large),
        ("step", Dtype::I32, vec![], step),
    ]
}

/// All other leaves.
fn values() -> Vec<(&'static str, Value)> {
    vec![
        ("list/0", 1.into()),
        ("list/1/0", 2.5.into()),
        ("list/1/1", "text".into()),
        ("flag", true.into()),
        ("complex", Value::Complex(1.0, 2.0)),
        ("none", Value::None),
    ]
}

/// Looks at all that a golden file has.
fn check(file: &File<'_>) {
    let mut paths: Vec<String> = file.leaves().map(|leaf| leaf.path().to_string()).collect();
    let arrays = arrays();
    let mut expected: Vec<&str> = arrays.iter().map(|(path, ..)| *path).collect();
    for (path, dtype, shape, bytes) in &arrays {
        let array = file.get(path).unwrap();
        assert_eq!((array.dtype(), array.shape()), (*dtype, shape.as_slice()));
        assert_eq!(array.nbytes(), bytes.len());
        assert_eq!(array.bytes().unwrap(), bytes.as_slice(), "{path}");
        let kind = file.leaf(path).unwrap().kind().to_string();
        let scalar = kind == "int32" && *path == "step"; // what Python wrote is one of NumPy
        assert!(scalar || kind == format!("{dtype}{shape:?}"), "{kind}");
        assert_eq!(file.leaf(path).unwrap().dtype(), Some(*dtype));
        assert!(file.leaf(path).unwrap().nbytes() > bytes.len());
    }
    for (path, value) in values() {
        assert_eq!(file.leaf(path).unwrap().value().unwrap(), value, "{path}");
        expected.push(path);
    }
    assert_eq!((file.len(), file.is_empty()), (expected.len(), false));
    paths.sort();
    expected.sort_unstable();
    assert_eq!(paths, expected);
    file.verify().unwrap();
}

#[test]
fn files_that_python_wrote_are_read() {
    for name in FILES {
        let file = File::open(golden(name)).unwrap();
        check(&file);
        let of_treepack = name.starts_with("version");
        assert_eq!(file.has_checksums(), of_treepack, "{name}");
        let metadata = Value::Dict(vec![("made".into(), "by version 1 of the format".into())]);
        assert_eq!(file.metadata().unwrap(), of_treepack.then_some(metadata));
        check(&File::from_bytes(fs::read(golden(name)).unwrap()).unwrap());
    }
}

/// A writer of what is in the golden files.
fn writer<'a>(arrays: &'a [(&str, Dtype, Vec<usize>, Vec<u8>)]) -> Writer<'a> {
    let mut writer = Writer::new();
    for (path, dtype, shape, bytes) in arrays {
        writer.array(path, *dtype, shape, bytes).unwrap();
    }
    for (path, value) in values() {
        writer.value(path, value).unwrap();
    }
    writer
}

fn written(writer: &Writer<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/directory/model");
    let arrays = arrays();
    let mut writer = writer(&arrays);
    for compress in [Compress::No, Compress::Gzip, Compress::Numbers] {
        writer.compress(compress).durable(compress == Compress::No);
        writer.save(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert!(file.has_checksums());
        assert_eq!(file.metadata().unwrap(), None);
        let content = fs::read(&path).unwrap();
        let start: &[u8] = match compress {
            Compress::Gzip => b"\x1f\x8b",
            Compress::Numbers => b"\xc1treepack\x01",
            _ => &content,
        };
        assert!(content.starts_with(start));
        assert_eq!(written(&writer), content);
        // The old file is still there for who has it open.
        Writer::new().save(&path).unwrap();
        check(&file);
    }
}

/// `test_golden.py` compares the same file with what Python's `save` makes of the same tree.
#[test]
fn the_bytes_are_those_that_python_writes() {
    let mut writer = Writer::new();
    writer.metadata(Value::Dict(vec![("made".into(), "by the crate".into())]));
    let kernel = bytes((0..1000_u16).map(f32::from), f32::to_le_bytes);
    writer
        .array("params/dense/kernel", Dtype::F32, &[10, 100], &kernel)
        .unwrap();
    writer
        .array(
            "params/dense/bias",
            Dtype::BF16,
            &[3],
            [0, 0, 128, 63, 0, 64],
        )
        .unwrap();
    writer
        .array("params/empty", Dtype::F64, &[0, 4], [])
        .unwrap();
    writer.array("params/a~1b", Dtype::Bool, &[], [1]).unwrap();
    writer.value("step", 1_i64 << 40).unwrap();
    let expected = fs::read(golden("crate/version-1.treepack")).unwrap();
    assert_eq!(written(&writer), expected);
}

#[test]
fn arrays_of_other_files_are_read_when_they_are_written() {
    for name in FILES {
        let file = File::open(golden(name)).unwrap();
        let mut writer = Writer::new();
        for leaf in file.leaves() {
            let path = leaf.path().to_string();
            match leaf.kind() {
                LeafKind::Array(..) | LeafKind::Scalar(_) => {
                    let array = leaf.array().unwrap();
                    let (dtype, shape) = (array.dtype(), array.shape().to_vec());
                    writer.array(&path, dtype, &shape, array).unwrap();
                }
                _ => writer.value(&path, leaf.value().unwrap()).unwrap(),
            }
        }
        let copy = File::from_bytes(written(&writer)).unwrap();
        assert!(copy.has_checksums());
        for (path, dtype, shape, bytes) in arrays() {
            let array = copy.get(path).unwrap();
            assert_eq!((array.dtype(), array.shape()), (dtype, shape.as_slice()));
            assert_eq!(array.bytes().unwrap(), bytes);
        }
        copy.verify().unwrap();
    }
}

#[test]
fn boxes_are_those_of_the_array() {
    for name in FILES {
        let file = File::open(golden(name)).unwrap();
        let large = file.get("params/large").unwrap();
        for start in 0..4_u8 {
            for end in start..=4 {
                for (left, right) in [(0, 10), (3, 7), (9, 10), (5, 5_u8)] {
                    let row = |row| (row * 10 + left..row * 10 + right).map(i64::from);
                    let expected = bytes((start..end).flat_map(row), i64::to_le_bytes);
                    let [rows, columns] = [start..end, left..right]
                        .map(|range| usize::from(range.start)..usize::from(range.end));
                    assert_eq!(
                        large.read_box(&[rows, columns]).unwrap(),
                        expected,
                        "{name}"
                    );
                }
            }
        }
        assert_eq!(
            file.get("step").unwrap().read_box(&[]).unwrap(),
            [7, 0, 0, 0]
        );
        #[allow(clippy::reversed_empty_ranges, clippy::single_range_in_vec_init)]
        for wrong in [
            &[0..4][..],
            &[0..5, 0..1],
            &[2..1, 0..1],
            &[0..1, 0..1, 0..1],
        ] {
            assert!(
                matches!(large.read_box(wrong), Err(Error::Option(_))),
                "{wrong:?}"
            );
        }
    }
}

#[test]
fn rows_are_those_of_the_array() {
    let expected = &arrays()[3].3;
    for name in FILES {
        let file = File::open(golden(name)).unwrap();
        let large = file.get("params/large").unwrap();
        for start in 0..=4 {
            for end in start..=4 {
                let rows = large.rows(start..end).unwrap();
                assert_eq!(rows.shape(), [end - start, 10]);
                assert_eq!(rows.bytes().unwrap(), &expected[start * 80..end * 80]);
            }
        }
        let one = large.rows(1..4).unwrap().rows(1..2).unwrap();
        assert_eq!(one.bytes().unwrap(), &expected[160..240]);
        assert!(large.rows(3..5).is_err());
        #[allow(clippy::reversed_empty_ranges, clippy::single_range_in_vec_init)]
        // which is what is wrong
        let reversed = large.rows(3..2);
        assert!(reversed.is_err());
        assert!(file.get("step").unwrap().rows(0..0).is_err());
    }
}

#[test]
fn memory_is_borrowed_and_files_are_copied() {
    let path = golden("version-1.treepack");
    let content = fs::read(&path).unwrap();
    let (file, memory) = (
        File::open(&path).unwrap(),
        File::from_bytes(&content).unwrap(),
    );
    let is_borrowed = |array: ArrayView<'_>| matches!(array.bytes().unwrap(), Cow::Borrowed(_));
    assert!(is_borrowed(memory.get("params/large").unwrap()));
    assert!(!is_borrowed(file.get("params/large").unwrap()));
    // A view lives as long as its file, and the file owns what it was given.
    let owned = File::from_bytes(content.clone()).unwrap();
    assert!(is_borrowed(owned.get("params/large").unwrap().clone()));
}

#[test]
fn what_is_not_there_is_an_error() {
    let file = File::open(golden("version-1.treepack")).unwrap();
    for path in ["params", "params/none", "", ".", "step/0"] {
        let error = file.get(path).unwrap_err();
        assert!(matches!(error, Error::NoLeaf { path: found } if found == path));
    }
    let error = file.get("flag").unwrap_err().to_string();
    assert_eq!(error, "expected an array, found bool (at flag)");
    let error = file.leaf("step").unwrap().value().unwrap_err();
    let text = error.to_string();
    assert_eq!(text, "expected a plain value, found int32 (at step)");
    let missing = File::open("no/such/file").unwrap_err();
    assert!(matches!(missing, Error::Io(error) if error.kind() == std::io::ErrorKind::NotFound));
    assert!(File::open(golden("orbax")).is_err());
    let error = File::from_bytes(b"{\"a\": 1}").unwrap_err().to_string();
    assert!(error.contains("JSON"), "{error}");
    let error = File::from_bytes(b"").unwrap_err().to_string();
    assert!(error.contains("empty"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty");
    fs::write(&path, b"").unwrap();
    assert!(File::open(&path).unwrap_err().to_string().contains("empty"));
}

#[test]
fn damage_is_found() {
    for name in &FILES[..2] {
        let content = fs::read(golden(name)).unwrap();
        let mut found = 0;
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 1;
            let verified = File::from_bytes(&damaged).and_then(|file| file.verify());
            if let Err(Error::Corrupt { paths, .. }) = &verified {
                assert!(!paths.is_empty());
                found += 1;
            }
            // The header of gzip has bytes that mean nothing.
            assert!(
                verified.is_err() || name.ends_with("gz") && at < 10,
                "{name} {at}"
            );
        }
        // What cannot be inflated tells of no leaf.
        assert_eq!(found > 0, !name.ends_with("gz"));
    }
}

#[test]
fn leaves_have_one_place_each() {
    let mut writer = Writer::new();
    writer.value("a/b", 1).unwrap();
    for path in ["a", "a/b", "a/b/c", "."] {
        let error = writer.value(path, 1).unwrap_err().to_string();
        assert!(error.ends_with(&format!("(at {path})")), "{error}");
    }
    let deep = vec!["a"; 513].join("/");
    assert!(matches!(
        writer.value(&deep, 1),
        Err(Error::TreeTooDeep { .. })
    ));
    let deepest = format!("d{}", "/a".repeat(511));
    writer.value(&deepest, 1).unwrap();
    writer.value("/~2/~0~1", u64::MAX).unwrap();
    let file = File::from_bytes(written(&writer)).unwrap();
    let paths: Vec<String> = file.leaves().map(|leaf| leaf.path().to_string()).collect();
    assert_eq!(paths, ["a/b", deepest.as_str(), "/~2/~0~1"]);
    let keys = file.leaf("/~2/~0~1").unwrap().path();
    assert!(keys.keys().eq(["", ".", "~/"]));
    assert_eq!(
        file.leaf("/~2/~0~1").unwrap().value().unwrap(),
        u64::MAX.into()
    );
}

#[test]
fn a_tree_may_be_a_leaf_or_nothing() {
    let mut writer = Writer::new();
    writer.array(".", Dtype::U8, &[2], [1, 2]).unwrap();
    assert!(writer.value("a", 1).is_err());
    let file = File::from_bytes(written(&writer)).unwrap();
    assert_eq!(file.get(".").unwrap().bytes().unwrap(), [1, 2].as_slice());
    assert_eq!(file.leaves().next().unwrap().path(), Path::default());
    let nothing = written(&Writer::new());
    assert!(File::from_bytes(nothing).unwrap().is_empty());
}

#[test]
fn what_cannot_be_written_is_an_error() {
    let mut writer = Writer::new();
    for shape in [&[2][..], &[], &[3, 0], &[usize::MAX, 0], &[1; 65]] {
        assert!(
            writer.array("a", Dtype::U8, shape, [1, 2, 3]).is_err(),
            "{shape:?}"
        );
    }
    assert!(
        writer
            .array("a", Dtype::U8, &[usize::MAX, usize::MAX, 0], [])
            .is_err()
    );
    for value in [
        Value::List(vec![]),
        Value::Named("int".into(), Value::from("-1").into()),
        Value::Named("set".into(), Value::None.into()),
    ] {
        assert!(writer.value("a", value).is_err());
    }
    writer.value("a/__treepack__", 1).unwrap();
    let mut bytes = Vec::new();
    let error = writer.write_to(&mut bytes).unwrap_err();
    let (error, path) = error.split();
    assert!(matches!(error, Error::ReservedKey { .. }));
    assert_eq!(path.unwrap().to_string(), "a/__treepack__");
    assert!(bytes.is_empty());
}

#[test]
fn the_old_file_stays_until_the_new_one_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    let names = || fs::read_dir(directory.path()).unwrap().count();
    let begin = |step: i32| {
        let mut writer = Writer::new();
        writer.value("step", step).unwrap();
        writer
    };
    let step = || {
        let file = File::open(&path).unwrap();
        file.leaf("step").unwrap().value().unwrap()
    };
    begin(1).save(&path).unwrap();
    let mut refused = begin(2);
    refused.value("__treepack__", 1).unwrap();
    assert!(refused.save(&path).is_err());
    assert_eq!((names(), step()), (1, 1.into()));
    // What fails while it is written: a view of a source that fails.
    let content = fs::read(golden("version-1.treepack")).unwrap();
    let source = Failing {
        content,
        fail: Arc::default(),
    };
    let fail = source.fail.clone();
    let file = File::from_source(source).unwrap();
    let large = file.get("params/large").unwrap();
    fail.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut failing = begin(3);
    failing.array("w", large.dtype(), &[40], large).unwrap();
    assert!(matches!(failing.save(&path), Err(Error::Stopped)));
    assert_eq!((names(), step()), (1, 1.into()));
}

/// A source of the program, which may fail.
struct Failing {
    content: Vec<u8>,
    fail: Arc<std::sync::atomic::AtomicBool>,
}

impl Source for Failing {
    fn len(&self) -> usize {
        self.content.len()
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        if self.fail.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        Ok(target.write_copy_of_slice(&self.content[offset..offset + target.len()]))
    }
}

#[test]
fn sources_of_the_program_are_read() {
    for name in FILES {
        let content = fs::read(golden(name)).unwrap();
        check(
            &File::from_source(Failing {
                content,
                fail: Arc::default(),
            })
            .unwrap(),
        );
    }
}

#[test]
fn files_and_writers_go_to_other_threads() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<File<'_>>();
    is_sync::<File<'_>>();
    is_send::<ArrayView<'_>>();
    is_send::<Writer<'_>>();
    is_send::<Bytes<'_>>();
    is_send::<Error>();
}

#[test]
fn gzip_is_read_in_parts() {
    let numbers = bytes(0..1_u32 << 18, u32::to_le_bytes);
    let mut writer = Writer::new();
    let shape = [256, 1024];
    writer.array("a", Dtype::U32, &shape, &numbers).unwrap();
    writer.array("b", Dtype::U32, &shape, &numbers).unwrap();
    let stream = written(writer.compress(true));
    let file = File::from_bytes(&stream).unwrap();
    let rows = file.get("b").unwrap().rows(100..103).unwrap();
    assert_eq!(rows.bytes().unwrap(), &numbers[100 * 4096..103 * 4096]);
    file.verify().unwrap();
    let mut damaged = stream.clone();
    damaged[stream.len() / 4] ^= 1;
    let damaged = File::from_bytes(damaged).unwrap();
    let Err(Error::Corrupt { paths, .. }) = damaged.verify() else {
        panic!("a block is damaged");
    };
    assert_eq!(paths, ["a".parse().unwrap()]);
    assert_eq!(damaged.get("b").unwrap().bytes().unwrap(), numbers);
    assert!(matches!(
        damaged.get("a").unwrap().bytes(),
        Err(Error::Gzip(_))
    ));
    // Without its index it is inflated as a whole.
    let mut damaged = stream.clone();
    let end = damaged.len();
    damaged[end - 20] ^= 1;
    let damaged = File::from_bytes(damaged).unwrap();
    assert_eq!(damaged.get("a").unwrap().bytes().unwrap(), numbers);
    assert!(matches!(damaged.verify(), Err(Error::Gzip(_))));
    assert!(File::from_bytes(&stream[..stream.len() / 2]).is_err());
}

/// What flax writes for an array.
fn array(dtype: &str, shape: &[usize], bytes: &[u8]) -> rmpv::Value {
    let shape = shape.iter().map(|dim| rmpv::Value::from(*dim)).collect();
    let body = rmpv::Value::Array(vec![rmpv::Value::Array(shape), dtype.into(), bytes.into()]);
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &body).unwrap();
    rmpv::Value::Ext(1, encoded)
}

fn map(pairs: Vec<(&str, rmpv::Value)>) -> Vec<u8> {
    let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value));
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &rmpv::Value::Map(pairs.collect())).unwrap();
    encoded
}

#[test]
fn leaves_of_all_kinds_are_listed() {
    let key = map(vec![
        ("__prng_key__", "threefry2x32".into()),
        ("data", array("uint32", &[2], &[1, 0, 0, 0, 2, 0, 0, 0])),
    ]);
    let key = rmpv::decode::read_value(&mut &key[..]).unwrap();
    let encoded = map(vec![
        ("key", key),
        ("code", array("<i2", &[2], &[1, 0, 2, 0])),
        ("other", array("float96", &[1], &[0; 12])),
        ("list", rmpv::Value::Array(vec![1.into()])),
    ]);
    let file = File::from_bytes(&encoded).unwrap();
    let kinds: Vec<String> = file
        .leaves()
        .map(|leaf| format!("{}: {}", leaf.path(), leaf.kind()))
        .collect();
    let expected = [
        "key: key<threefry2x32>[2]",
        "code: <i2[2]",
        "other: float96[1]",
        "list/0: int",
    ];
    assert_eq!(kinds, expected);
    let dtypes: Vec<_> = file.leaves().map(|leaf| leaf.dtype()).collect();
    assert_eq!(dtypes, [Some(Dtype::U32), Some(Dtype::I16), None, None]);
    let key = file.get("key").unwrap();
    assert_eq!((key.dtype(), key.shape()), (Dtype::U32, &[2][..]));
    assert_eq!(key.bytes().unwrap(), [1, 0, 0, 0, 2, 0, 0, 0].as_slice());
    assert_eq!(file.get("code").unwrap().dtype(), Dtype::I16);
    let error = file.get("other").unwrap_err().to_string();
    assert!(
        error.contains("float96") && error.ends_with("(byte 90, at other)"),
        "{error}"
    );
    assert!(file.verify().unwrap_err().to_string().contains("float96"));
}

#[test]
fn damage_below_a_long_key_names_the_first_paths() {
    const LEAVES: usize = 20;
    let key = "k".repeat(1 << 20);
    let mut writer = Writer::new();
    for leaf in 0..LEAVES {
        let path = format!("{key}/x{leaf}");
        writer.array(&path, Dtype::U8, &[16], [0xAB; 16]).unwrap();
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    let places: Vec<usize> = bytes
        .windows(16)
        .enumerate()
        .filter(|(_, window)| *window == [0xAB; 16])
        .map(|(place, _)| place)
        .collect();
    assert_eq!(places.len(), LEAVES);
    for place in places {
        bytes[place] ^= 1;
    }
    let Err(Error::Corrupt { paths, more }) = File::from_bytes(&bytes).unwrap().verify() else {
        panic!("all leaves are damaged");
    };
    assert_eq!(paths.len() + more, LEAVES);
    assert!((1..9).contains(&paths.len()));
}
