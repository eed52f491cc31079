//! Inputs to begin with, made of the golden files: each container and form that there is.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use treepack::base::source::{Source, read_to};
use treepack::format::footer::Footer;
use treepack::format::structure::{Kind, Record};
use treepack::sharding::manifest::{MARK, Manifest};
use treepack_codec::codec::gzip::Method;

use super::compressing::{small_blocks, stream_of};
use super::frame::Frame;
use super::{CUT, Noise, patches};

/// A target, what it does with an input, and the inputs.
pub type Target = (&'static str, fn(&[u8]), Vec<Vec<u8>>);

/// All targets; `golden` is the folder of golden files.
pub fn targets(golden: &Path) -> Vec<Target> {
    let mut files = Vec::new();
    collect(golden, &mut files);
    files.sort();
    let (zipped, plain): (Vec<_>, Vec<_>) = files
        .iter()
        .cloned()
        .partition(|file| file.starts_with(b"\x1f\x8b") || file.starts_with(b"\xc1treepack"));
    let blocks = small_blocks(&plain[0], Method::Numbers, 301);
    let opened = files.iter().cloned().chain([blocks]);
    let read = plain.iter().cloned().chain([arrays_alike()]).collect();
    vec![
        ("compress", super::compressing::gzip, contents()),
        ("compress_numbers", super::compressing::numbers, contents()),
        ("decompress", super::codec::stream, gzip_streams(&zipped)),
        (
            "decompress_numbers",
            super::codec::numbers,
            number_streams(),
        ),
        ("manifest", super::shards::manifest, manifests(golden)),
        ("open", super::files::open, opened.collect()),
        ("patch", patches::read_any, patches_of(&changes())),
        ("patch_make", patches::make_any, changes()),
        ("read", super::records::read, read),
        ("safetensors", super::headers::safetensors, headers()),
        ("structure", super::records::structure, records(&plain)),
    ]
}

/// The contents of all small files in a folder, but for programs.
fn collect(folder: &Path, found: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
            continue;
        }
        let content = fs::read(&path).unwrap();
        if path.extension().is_none_or(|it| it != "py" && it != "pyc") && content.len() < 10_000 {
            found.push(content);
        }
    }
}

/// Headers of safetensors: of nothing, of several arrays, with escapes, and damaged ones.
fn headers() -> Vec<Vec<u8>> {
    let array = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let other = r#"{"dtype":"F4","shape":[2,3],"data_offsets":[8,11],"more":[null,true,-1.5e3]}"#;
    [
        "{}".to_owned(),
        format!(r#"{{"__metadata__":{{"format":"pt"}},"a.b":{array},"a.c":{other}}} "#),
        format!(r#"{{"a\u00e9\ud83d\ude00\n":{array}}}"#),
        format!(r#"{{"a":{array},"a.b":{other}}}"#),
        format!(r#"{{"a":{array},"a":{array}}}"#),
        r#"{"a":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}}"#.to_owned(),
        format!("{{\"a\":{}", "[".repeat(200)),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// A list of arrays of one element each, more than a window has: their headers are the same.
fn arrays_alike() -> Vec<u8> {
    let array = b"\xc7\x15\x01\x93\x91\x01\xa7float64\xc4\x08\0\0\0\0\0\0\xf0\x3f";
    [&b"\xdc\x01\0"[..], &array.repeat(256)].concat()
}

/// Elements of each width, text, one byte, and noise.
fn elements() -> Vec<Vec<u8>> {
    let waves = (0..300_u16).map(|at| (f64::from(at) / 50.0).sin());
    let doubles: Vec<u8> = waves.clone().flat_map(f64::to_le_bytes).collect();
    let floats: Vec<u8> = waves
        .clone()
        .flat_map(|it| (it as f32).to_le_bytes())
        .collect();
    let halves: Vec<u8> = floats.chunks(4).flat_map(|it| [it[2], it[3]]).collect();
    let mut noise = Noise::new(0);
    let bytes: Vec<u8> = (0..600)
        .map(|_| noise.up_to(20) as u8 * noise.up_to(2) as u8)
        .collect();
    let random: Vec<u8> = (0..600).map(|_| noise.next() as u8).collect();
    let text = b"weights and biases, weights and more ".repeat(20);
    let integers: Vec<u8> = (0..200_u64).flat_map(|at| (at * 3).to_le_bytes()).collect();
    vec![
        doubles,
        floats,
        halves,
        bytes,
        random,
        text,
        integers,
        vec![7; 900],
        vec![1],
        vec![],
    ]
}

/// Elements, with what says how they become many.
fn contents() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for (number, data) in elements().into_iter().enumerate() {
        for (level, headers, times, masks) in [
            (10, 0, 0, [0; 8]),
            (number as u8, 5, 3, [0, 0xff, 0x7f, 0, 0, 0xff, 0x7f, 0]),
            (1, 3, 15, [0xff, 0xff, 0x0f, 0, 0xff, 0xff, 0x0f, 0]),
        ] {
            found.push([&[level, headers, times], &masks[..], &data].concat());
        }
        if number % 3 == 0 {
            found.push([&[10, 9, 255], &[0; 8][..], &data].concat());
        }
    }
    found
}

/// Elements of two trees, with the number of their dtype.
fn changes() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for (number, held) in elements().into_iter().enumerate() {
        let mut moved = held.clone();
        for (at, byte) in moved.iter_mut().enumerate() {
            *byte = byte.wrapping_add(u8::from(at % 97 == 8));
        }
        let shifted: Vec<u8> = held.iter().map(|byte| byte.wrapping_add(1)).collect();
        for (kind, new) in [(0, &held), (number as u8, &moved), (1, &shifted)] {
            found.push([&[kind], &held[..], CUT, new].concat());
        }
    }
    found
}

/// Patches with their bases.
fn patches_of(changes: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let made = changes.iter().filter_map(|it| patches::made(it));
    made.map(|(base, _, patch)| [&patch, CUT, &base].concat())
        .collect()
}

fn number_streams() -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for data in elements() {
        for stream in [
            stream_of(&data, 0, Method::Numbers, 1),
            small_blocks(&data, Method::Numbers, 400),
            small_blocks(&data.repeat(4), Method::Numbers, 1501),
        ] {
            found.push(stream[10..].to_vec());
        }
    }
    found
}

fn gzip_streams(files: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut found = files.to_vec();
    for data in elements() {
        for level in [None, Some(0), Some(1), Some(9)] {
            found.push(stream_of(&data, 0, Method::of_level(level).unwrap(), 1));
        }
        let blocks = small_blocks(&data, Method::Adaptive, 400);
        // As if all blocks had only literals, which some have.
        if let Some(mut frame) = Frame::read(&blocks) {
            frame
                .blocks
                .iter_mut()
                .for_each(|block| block.literal = true);
            found.push(frame.write());
        }
        found.push(blocks);
        let mut zlib = flate2::GzBuilder::new()
            .extra(b"extra".to_vec())
            .filename("name")
            .comment("comment")
            .write(Vec::new(), Compression::new(6));
        zlib.write_all(&data).unwrap();
        let first = zlib.finish().unwrap();
        let mut zlib = GzEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&data).unwrap();
        found.push([&first, &[0; 3][..], &zlib.finish().unwrap(), &[0]].concat());
    }
    found
}

/// The record, the index and the metadata of files, and their types.
fn records(files: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for file in files {
        let Some(start) = Footer::start_in(file).unwrap() else {
            continue;
        };
        let Ok((bytes, _)) = Footer::split(&file[start..]) else {
            continue;
        };
        let record = Record::decode(bytes).unwrap();
        found.push(bytes.to_vec());
        found.extend(record.index.map(|it| it.to_vec()));
        found.extend(record.metadata.map(|it| it.to_vec()));
        found.extend(record.nodes.iter().filter_map(|node| match &node.0 {
            Kind::Typed(_, value) | Kind::DictWithKeys(value) => Some(value.to_vec()),
            _ => None,
        }));
    }
    found
}

/// Manifests by themselves, with their encoding, and with the files.
fn manifests(golden: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for folder in ["forms/directory", "landed/2026-11-22-directory"] {
        let folder = golden.join(folder);
        let bytes = fs::read(folder.join("manifest.treepack")).unwrap();
        let manifest = Manifest::decode(&bytes).unwrap();
        let record = &bytes[..bytes.len() - MARK.len() - 4];
        let encoding = manifest.encoding(None).unwrap();
        let mut skeleton = Vec::new();
        let mut at = 0;
        while at < encoding.len() {
            let run = encoding.run(at);
            read_to(&encoding, at..at + run, &mut skeleton).unwrap();
            at += run.max(1);
        }
        let mut whole = [record, CUT, &skeleton].concat();
        found.extend([record.to_vec(), whole.clone()]);
        for file in &manifest.files {
            whole.extend_from_slice(CUT);
            whole.extend(fs::read(folder.join(&file.name)).unwrap());
        }
        found.push(whole);
    }
    found
}

/// Writes the inputs to a folder for each target.
pub fn write(golden: &Path, folder: &Path) {
    for (name, _, inputs) in targets(golden) {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        for (number, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), input).unwrap();
        }
    }
}
