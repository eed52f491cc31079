//! Files list their leaves, whoever wrote them, and show their damage.

use std::fs;
use std::path::{Path, PathBuf};

use treepack::Error;
use treepack::base::source::bytes_of;
use treepack::codec::gzip::{self, Method};
use treepack::files::mapping::Mapping;
use treepack::format::encoder::Encoder;
use treepack::format::events::Event;

use crate::opened::Opened;
use crate::round_trip::{Tree, encoded, framing};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
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

/// Compares all leaves of a golden file: their kinds, and of arrays the bytes.
fn check(file: &Opened<'_>) {
    let arrays = [
        (
            "params/dense/kernel",
            r#"Array("float32", [3, 4])"#,
            bytes((0..12_u8).map(f32::from), f32::to_le_bytes),
        ),
        (
            "params/dense/bias",
            r#"Array("float64", [4])"#,
            bytes([1.0; 4], f64::to_le_bytes),
        ),
        (
            "params/half",
            r#"Array("bfloat16", [6])"#,
            bytes((0..6_u8).map(f32::from), |it| {
                let [.., low, high] = it.to_le_bytes();
                [low, high]
            }),
        ),
        (
            "params/large",
            r#"Array("int64", [4, 10])"#,
            bytes(0..40, i64::to_le_bytes),
        ),
    ];
    let values = [
        ("list/0", "Int"),
        ("list/1/0", "Float"),
        ("list/1/1", "Str"),
        ("flag", "Bool"),
        ("complex", "Complex"),
        ("none", "None"),
        ("step", r#"Scalar("int32")"#),
    ];
    let mut expected: Vec<_> = values.to_vec();
    expected.extend(arrays.iter().map(|(path, kind, _)| (*path, *kind)));
    expected.sort_unstable();
    let shown = |value| (file.path(value), format!("{:?}", file.kind(value)));
    let mut found: Vec<_> = file.leaves().map(shown).collect();
    found.sort_unstable();
    let found: Vec<_> = found.iter().map(|it| (&*it.0, &*it.1)).collect();
    assert_eq!(found, expected);
    for (path, _, elements) in arrays {
        assert_eq!(file.bytes(file.at(path)).unwrap(), elements, "{path}");
    }
    let first = |path| {
        let events = file.catalog.events_of(&file.source, file.at(path));
        let events = events.unwrap();
        (events.as_slice()[0], events)
    };
    assert!(matches!(first("list/0").0, Event::Uint(1) | Event::Int(1)));
    assert!(matches!(first("list/1/0").0, Event::Float(2.5)));
    let (Event::Str(text), events) = first("list/1/1") else {
        panic!("no text");
    };
    assert_eq!(events.text(text), "text");
    let (Event::Complex(number), events) = first("complex") else {
        panic!("no complex number");
    };
    assert_eq!(events.complex(number), (1.0, 2.0));
    let (Event::Scalar(number), events) = first("step") else {
        panic!("no scalar");
    };
    let span = events.array(number).spans[0].range();
    assert_eq!(bytes_of(&file.source, span).unwrap(), [7, 0, 0, 0]);
    assert_eq!(file.damage(), None);
}

#[test]
fn golden_files_are_read_from_files_and_memory() {
    for name in FILES {
        let path = golden(name);
        check(&Opened::new(Mapping::open(&path).unwrap()).unwrap());
        check(&Opened::new(fs::read(&path).unwrap()).unwrap());
    }
}

#[test]
fn damage_of_any_byte_is_found() {
    for name in &FILES[..2] {
        let content = fs::read(golden(name)).unwrap();
        let mut found = 0;
        for at in 0..content.len() {
            let mut damaged = content.clone();
            damaged[at] ^= 1;
            let Ok(file) = Opened::new(damaged) else {
                continue;
            };
            let damage = file.damage();
            found += usize::from(
                damage
                    .as_ref()
                    .is_some_and(|it| it.contains("params/large")),
            );
            // The header of gzip has bytes that mean nothing.
            assert!(
                damage.is_some() || name.ends_with("gz") && at < 10,
                "{name} {at}"
            );
        }
        // No leaf is found in data that cannot be inflated.
        assert_eq!(found >= 320, !name.ends_with("gz"), "{name} {found}");
    }
}

#[test]
fn gzip_is_read_in_parts() {
    let numbers: Vec<f32> = (0..1_u16 << 15).flat_map(|it| [f32::from(it); 8]).collect();
    let elements = bytes(numbers.iter().copied(), f32::to_le_bytes);
    let tree = ["a", "b"].map(|key| (key.into(), Tree::Array(numbers.clone())));
    let plain = encoded(
        &Tree::Map(tree.into()),
        Encoder::indexed(framing(64, 1e9), false),
    );
    let threads = std::num::NonZero::<usize>::MIN;
    let mut stream = Vec::new();
    for method in [Method::Numbers, Method::Adaptive] {
        stream.clear();
        gzip::compress(&plain, method, threads, &mut stream, &()).unwrap();
        let file = Opened::new(stream.clone()).unwrap();
        assert_eq!(file.bytes(file.at("b")).unwrap(), elements);
        assert_eq!(file.damage(), None);
    }
    let mut damaged = stream.clone();
    damaged[stream.len() / 4] ^= 1;
    let damaged = Opened::new(damaged).unwrap();
    assert_eq!(damaged.damage().unwrap(), "a");
    assert_eq!(damaged.bytes(damaged.at("b")).unwrap(), elements);
    let error = damaged.bytes(damaged.at("a")).unwrap_err();
    assert!(matches!(error, Error::Gzip(_)));
    // Without its index it is inflated as a whole.
    let mut damaged = stream.clone();
    let end = damaged.len();
    damaged[end - 20] ^= 1;
    let damaged = Opened::new(damaged).unwrap();
    assert_eq!(damaged.bytes(damaged.at("a")).unwrap(), elements);
    assert!(damaged.damage().is_some());
    assert!(Opened::new(stream[..stream.len() / 2].to_vec()).is_err());
}

/// What flax writes for an array.
fn array(dtype: &str, shape: &[usize], bytes: &[u8]) -> rmpv::Value {
    let shape = shape.iter().map(|dim| rmpv::Value::from(*dim)).collect();
    let body = rmpv::Value::Array(vec![rmpv::Value::Array(shape), dtype.into(), bytes.into()]);
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &body).unwrap();
    rmpv::Value::Ext(1, encoded)
}

fn map(pairs: Vec<(&str, rmpv::Value)>) -> rmpv::Value {
    let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value));
    rmpv::Value::Map(pairs.collect())
}

#[test]
fn leaves_of_all_kinds_are_listed() {
    let key = map(vec![
        ("__prng_key__", "threefry2x32".into()),
        ("data", array("uint32", &[2], &[1, 0, 0, 0, 2, 0, 0, 0])),
    ]);
    let tree = map(vec![
        ("key", key),
        ("code", array("<i2", &[2], &[1, 0, 2, 0])),
        ("other", array("float96", &[1], &[0; 12])),
        ("list", rmpv::Value::Array(vec![1.into()])),
    ]);
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &tree).unwrap();
    let file = Opened::new(encoded).unwrap();
    let shown = |value| format!("{}: {:?}", file.path(value), file.kind(value));
    let expected = [
        r#"key: PrngKey("threefry2x32", [2])"#,
        r#"code: Array("<i2", [2])"#,
        r#"other: Array("float96", [1])"#,
        "list/0: Int",
    ];
    assert_eq!(file.leaves().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(
        file.bytes(file.at("key")).unwrap(),
        [1, 0, 0, 0, 2, 0, 0, 0]
    );
}
