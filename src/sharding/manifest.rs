//! The manifest of a sharded checkpoint, written after the files of shards.
//!
//! It holds the encoding that one file would have, with *gaps* for the arrays, and each array's
//! division into shards and files (docs/sharded.md, "The manifest").

use std::fmt::Display;
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Deserializer, Serialize};
use serde_bytes::ByteBuf;

use crate::base::error::mismatch;
use crate::base::grow::{self, Growing, decode};
use crate::base::raw::Uninit;
use crate::base::source::{Source, missing};
use crate::format::layout::{Layout, Payload, Slice};
use crate::format::structure::check_version;
use crate::{Error, Result, codec::zlib};

pub const MARK: [u8; 8] = *b"\x93treepm\n";

const VERSION: u32 = 1;

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFile {
    #[serde(deserialize_with = "decode::text")]
    pub name: String,
    pub nbytes: u64,
    /// The CRC-32 of its record and all bytes after it, including the checksums of its leaves.
    pub record: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    #[serde(deserialize_with = "decode::list")]
    pub counts: Vec<u32>,
    /// The file of each shard, in C order.
    #[serde(deserialize_with = "shared")]
    pub files: Arc<Vec<u32>>,
    pub host: bool,
}

impl Grid {
    /// Whether this is an array of the host in one shard, which has no key of its own.
    pub fn is_unnamed(&self) -> bool {
        self.host && self.files.len() == 1
    }
}

fn shared<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Arc<Vec<u32>>, D::Error> {
    decode::list(from).map(Arc::new)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub before: u64,
    pub nbytes: u64,
    pub array: u32,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
pub struct Manifest {
    pub version: u32,
    #[serde(deserialize_with = "decode::list")]
    pub files: Vec<ShardFile>,
    #[serde(deserialize_with = "decode::list")]
    pub arrays: Vec<Grid>,
    /// In order; in files the key is `holes`.
    #[serde(rename = "holes", deserialize_with = "decode::list")]
    pub gaps: Vec<Gap>,
    /// The encoding without the gaps' bytes, compressed (zlib, RFC 1950).
    #[serde(deserialize_with = "decode::bytes")]
    pub skeleton: ByteBuf,
    /// The program's name and version; empty if unknown.
    #[serde(default, deserialize_with = "decode::text")]
    pub writer: String,
}

#[derive(Serialize)]
struct ManifestFields<'a> {
    version: u32,
    files: &'a [ShardFile],
    arrays: &'a [Grid],
    holes: &'a [Gap],
    skeleton: &'a ByteBuf,
    #[serde(skip_serializing_if = "str::is_empty")]
    writer: &'a str,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Manifest {
    /// `gap` returns the array of a missing payload.
    pub fn new<P: Payload>(
        layout: &Layout<P>,
        gap: impl Fn(&P) -> Option<usize>,
        files: Vec<ShardFile>,
        arrays: Vec<Grid>,
    ) -> Result<Self> {
        let encoded = Self::compressed(layout, &gap, Compression::default())?;
        let gaps: u64 = encoded.0.iter().map(|gap| gap.nbytes).sum();
        let nbytes = layout.len() as u64 - gaps;
        // A skeleton that inflates beyond the default limit is stored with zeros for gaps.
        let (gaps, skeleton) = if nbytes > most_inflated(encoded.1.len()) as u64 {
            Self::compressed(layout, &gap, Compression::none())?
        } else {
            encoded
        };
        Ok(Self {
            gaps,
            skeleton: skeleton.into(),
            ..Self::unwritten(files, arrays)
        })
    }

    /// The files and arrays of a manifest that is not written, without its encoding.
    pub fn unwritten(files: Vec<ShardFile>, arrays: Vec<Grid>) -> Self {
        Self {
            version: VERSION,
            files,
            arrays,
            ..Self::default()
        }
    }

    fn compressed<P: Payload>(
        layout: &Layout<P>,
        gap: impl Fn(&P) -> Option<usize>,
        level: Compression,
    ) -> Result<(Vec<Gap>, Vec<u8>)> {
        let encoder = || ZlibEncoder::new(Growing::default(), level);
        let mut encoder = zlib::state(encoder)?;
        let gaps = gaps_of(layout, gap, |bytes| Ok(encoder.write_all(bytes)?))?;
        // Not `finish`, which drops the encoder by value: zlib-rs 0.6 does not support that (its
        // issue 491).
        encoder.try_finish()?;
        Ok((gaps, std::mem::take(encoder.get_mut()).into_bytes()))
    }

    pub fn encode(&self) -> Result<Vec<u8>> {
        self.encode_with(&self.files, &self.arrays, &self.writer)
    }

    /// Encodes the manifest with these files and arrays, and this program.
    pub fn encode_with(
        &self,
        files: &[ShardFile],
        arrays: &[Grid],
        writer: &str,
    ) -> Result<Vec<u8>> {
        let fields = ManifestFields {
            version: self.version,
            files,
            arrays,
            holes: &self.gaps,
            skeleton: &self.skeleton,
            writer,
        };
        let mut bytes = grow::encode_named(&fields, &())?;
        let crc = crc32fast::hash(&bytes);
        grow::extend(&mut bytes, &crc.to_le_bytes())?;
        grow::extend(&mut bytes, &MARK)?;
        Ok(bytes)
    }

    /// The arrays with the files of their shards from `files`: for each process, the number of the
    /// file of each shard that the plan assigns to it, in order. `None` if a number is missing, or
    /// left over.
    pub fn placed(&self, files: Vec<Vec<u32>>) -> Result<Option<Vec<Grid>>> {
        let mut left = grow::collect(files.into_iter().map(Vec::into_iter))?;
        let mut arrays = grow::with_room(self.arrays.len())?;
        for grid in &self.arrays {
            let mut placed = grow::with_room(grid.files.len())?;
            for process in grid.files.iter() {
                match left.get_mut(*process as usize).and_then(Iterator::next) {
                    Some(file) => placed.push(file),
                    None => return Ok(None),
                }
            }
            arrays.push(Grid {
                counts: grow::to_vec(&grid.counts)?,
                files: Arc::new(placed),
                host: grid.host,
            });
        }
        let is_over = left.iter().any(|files| files.len() > 0);
        Ok((!is_over).then_some(arrays))
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((rest, mark)) = bytes.split_last_chunk::<8>() else {
            return damaged("it is truncated");
        };
        let Some((record, crc)) = rest.split_last_chunk::<4>() else {
            return damaged("it is truncated");
        };
        if *mark != MARK {
            return damaged("its end mark is missing");
        }
        let (found, expected) = (crc32fast::hash(record), u32::from_le_bytes(*crc));
        if found != expected {
            return damaged(&mismatch(expected, found));
        }
        if let Ok(Version { version }) = rmp_serde::from_slice(record) {
            check_version("the manifest", version, VERSION)?;
        }
        let manifest: Self = match rmp_serde::from_slice(record) {
            Ok(manifest) => manifest,
            Err(error) => return Err(decode::explain(&error, |error| damage(error))),
        };
        check_version("the manifest", manifest.version, VERSION)?; // before fields that other versions lack
        let is_split = |grid: &Grid| {
            let count = |product: usize, &count: &u32| product.checked_mul(count as usize);
            let shards = grid.counts.iter().try_fold(1, count);
            let is_file = |&file: &u32| (file as usize) < manifest.files.len();
            shards == Some(grid.files.len()) && shards != Some(0) && grid.files.iter().all(is_file)
        };
        if !manifest.arrays.iter().all(is_split) {
            return damaged("an array does not have one file per shard");
        }
        let has_array = |gap: &Gap| (gap.array as usize) < manifest.arrays.len();
        if !manifest.gaps.iter().all(has_array) {
            return damaged("a gap has an unknown array");
        }
        Ok(manifest)
    }

    /// `max_size` bounds the decompressed skeleton; by default, 1 MiB plus a hundred times the
    /// compressed size.
    pub fn encoding(&self, max_size: Option<usize>) -> Result<Sparse> {
        Sparse::new(self.inflated(max_size)?, &self.gaps)
    }

    fn inflated(&self, max_size: Option<usize>) -> Result<Vec<u8>> {
        let most = max_size.unwrap_or_else(|| most_inflated(self.skeleton.len()));
        let limit = (most as u64).saturating_add(1);
        let mut bytes = Vec::new();
        let decoder = zlib::state(|| ZlibDecoder::new(self.skeleton.as_slice()))?;
        match decoder.take(limit).read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                return Err(Error::OutOfMemory);
            }
            Err(error) => return damaged(&error.to_string()),
        }
        match max_size {
            Some(max_size) if bytes.len() > max_size => Err(Error::OutputLimit { max_size }),
            None if bytes.len() > most => damaged(&format!(
                "it decompresses to more than {most} bytes, over a hundred times its size; if you \
                 trust it, pass max_size= to allow more"
            )),
            _ => Ok(bytes),
        }
    }
}

/// Calls `write` with the parts of a layout that are not gaps.
fn gaps_of<P: Payload>(
    layout: &Layout<P>,
    gap: impl Fn(&P) -> Option<usize>,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Vec<Gap>> {
    let mut gaps = Vec::new();
    let mut before = 0;
    let mut bytes = Vec::new();
    for slice in layout.slices(0..layout.len()) {
        if let Slice::Payload(payload, ..) = &slice
            && let Some(array) = gap(payload)
        {
            let gap = Gap {
                before: std::mem::take(&mut before),
                nbytes: slice.len() as u64,
                array: u32::try_from(array).map_err(|_| Error::OutOfMemory)?,
            };
            grow::push(&mut gaps, gap)?;
            continue;
        }
        bytes.clear();
        crate::base::raw::append_with(&mut bytes, slice.len(), |target| slice.copy_to(0, target))?;
        write(&bytes)?;
        before += slice.len() as u64;
    }
    Ok(gaps)
}

fn most_inflated(nbytes: usize) -> usize {
    nbytes.saturating_mul(100).saturating_add(1 << 20)
}

fn damaged<T>(reason: &str) -> Result<T> {
    Err(damage(reason))
}

fn damage(reason: impl Display) -> Error {
    Error::Structure(format!("the manifest is damaged: {reason}"))
}

/// Encoded bytes with gaps, which only arrays can have: reading a gap is an error.
#[derive(Debug)]
pub struct Sparse {
    bytes: Vec<u8>,
    gaps: Vec<PlacedGap>,
    len: usize,
}

#[derive(Debug)]
struct PlacedGap {
    place: Range<usize>,
    array: usize,
    before: usize,
}

impl Sparse {
    /// The encoding of a layout, in which `gap` returns the array of a missing payload.
    pub fn of<P: Payload>(layout: &Layout<P>, gap: impl Fn(&P) -> Option<usize>) -> Result<Self> {
        let mut bytes = Vec::new();
        let gaps = gaps_of(layout, gap, |more| grow::extend(&mut bytes, more))?;
        Self::new(bytes, &gaps)
    }

    fn new(bytes: Vec<u8>, manifest_gaps: &[Gap]) -> Result<Self> {
        let (mut len, mut there) = (0_usize, 0_usize);
        let mut gaps = grow::with_room(manifest_gaps.len())?;
        for gap in manifest_gaps {
            let sizes = usize::try_from(gap.before)
                .and_then(|before| Ok((before, usize::try_from(gap.nbytes)?)));
            let Ok((before, nbytes)) = sizes else {
                return damaged("a gap is too large");
            };
            there = there.saturating_add(before);
            let start = len.checked_add(before);
            let end = start.and_then(|start| start.checked_add(nbytes));
            let (Some(start), Some(end), true) = (start, end, there <= bytes.len()) else {
                return damaged("a gap is outside the encoding");
            };
            if nbytes > 0 {
                gaps.push(PlacedGap {
                    place: start..end,
                    array: gap.array as usize,
                    before: there,
                });
            }
            len = end;
        }
        let is_length = |len: &usize| isize::try_from(*len).is_ok();
        match len.checked_add(bytes.len() - there).filter(is_length) {
            Some(len) => Ok(Sparse { bytes, gaps, len }),
            None => damaged("a gap is too large"),
        }
    }

    pub fn is_whole(&self, range: Range<usize>) -> bool {
        self.present(range.clone()) == range.len()
    }

    /// The array that fills these parts of the encoding; `None` if they are not gaps, or of several
    /// arrays.
    pub fn array_of(&self, parts: impl IntoIterator<Item = Range<usize>>) -> Option<usize> {
        let mut array = None;
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let gap = self.gaps.get(self.gaps_before(part.start))?;
            let is_other = array.is_some_and(|array| array != gap.array);
            if gap.place != part || is_other {
                return None;
            }
            array = Some(gap.array);
        }
        array
    }

    /// The number of gaps that end at `offset` or before.
    fn gaps_before(&self, offset: usize) -> usize {
        self.gaps.partition_point(|gap| gap.place.end <= offset)
    }

    fn present_before(&self, offset: usize) -> usize {
        match self.gaps.get(self.gaps_before(offset)) {
            Some(gap) => gap.before - gap.place.start.saturating_sub(offset),
            None => self.bytes.len() - (self.len - offset),
        }
    }
}

impl Source for Sparse {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let run = self.run(offset);
        if run < target.len() {
            return Err(missing(offset + run));
        }
        let from = self.present_before(offset);
        Ok(target.write_copy_of_slice(&self.bytes[from..from + target.len()]))
    }

    fn run(&self, offset: usize) -> usize {
        let gap = self.gaps.get(self.gaps_before(offset));
        let end = gap.map_or(self.len, |gap| gap.place.start);
        end.saturating_sub(offset)
    }

    fn present(&self, range: Range<usize>) -> usize {
        self.present_before(range.end) - self.present_before(range.start)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use std::iter::once;

    use proptest::prelude::*;

    use super::*;
    use crate::base::source::read_to;
    use crate::format::events::Events;
    use crate::format::layout::LayoutBuilder;

    #[derive(Debug)]
    enum TestPayload {
        There(Vec<u8>),
        Gap(usize),
    }

    impl Payload for TestPayload {
        fn len(&self) -> usize {
            match self {
                Self::There(bytes) => bytes.len(),
                Self::Gap(len) => *len,
            }
        }

        fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
            match self {
                Self::There(bytes) => bytes.copy_to(start, target),
                Self::Gap(_) => panic!("a gap must not be read"),
            }
        }
    }

    type Part = (Vec<u8>, Option<Vec<u8>>, usize);

    const GAP: u8 = 0xc1;

    fn manifest_of(parts: &[Part]) -> (Manifest, Vec<u8>) {
        let mut builder = LayoutBuilder::default();
        let mut whole = Vec::new();
        let mut arrays = Vec::new();
        for (header, payload, gap) in parts {
            builder.extend(header).unwrap();
            whole.extend_from_slice(header);
            if let Some(payload) = payload {
                builder.push(TestPayload::There(payload.clone())).unwrap();
                whole.extend_from_slice(payload);
            } else {
                builder.push(TestPayload::Gap(*gap)).unwrap();
                whole.resize(whole.len() + gap, GAP);
                arrays.push(Grid {
                    counts: vec![],
                    files: Arc::new(vec![0]),
                    host: false,
                });
            }
        }
        let number = std::cell::Cell::new(0);
        let gap = |leaf: &TestPayload| match leaf {
            TestPayload::There(_) => None,
            TestPayload::Gap(_) => Some(number.replace(number.get() + 1)),
        };
        let file = ShardFile {
            name: "0".into(),
            nbytes: 5,
            record: 7,
        };
        let manifest = Manifest::new(&builder.finish(), gap, vec![file], arrays).unwrap();
        (manifest, whole)
    }

    #[test]
    fn another_version_is_refused_in_both_forms_of_a_record() {
        let manifest = Manifest {
            version: VERSION + 1,
            ..manifest_of(&[]).0
        };
        let fields = (
            manifest.version,
            &manifest.files,
            &manifest.arrays,
            &manifest.gaps,
            &manifest.skeleton,
        );
        let map = manifest.encode().unwrap();
        let map = map[..map.len() - 12].to_vec(); // without its checksum and mark
        for mut bytes in [rmp_serde::to_vec(&fields).unwrap(), map] {
            bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
            bytes.extend(MARK);
            let error = Manifest::decode(&bytes).unwrap_err();
            assert!(error.reason().contains("has version 2"), "{error}");
            assert!(error.is_newer());
        }
    }

    proptest! {
        #[test]
        fn the_encoding_is_read_but_for_its_gaps(
            parts in prop::collection::vec(
                (prop::collection::vec(..GAP, 0..4), prop::option::of(prop::collection::vec(..GAP, 1..4)), 1usize..5),
                0..6,
            ),
        ) {
            let (manifest, whole) = manifest_of(&parts);
            let read = Manifest::decode(&manifest.encode().unwrap()).unwrap();
            prop_assert_eq!(&read, &manifest);
            let encoding = read.encoding(None).unwrap();
            prop_assert_eq!(encoding.len(), whole.len());
            for start in 0..=whole.len() {
                let run = whole[start..].iter().take_while(|byte| **byte != GAP).count();
                prop_assert_eq!(encoding.run(start), run);
                for end in start..=whole.len() {
                    let expected = &whole[start..end];
                    let present = expected.iter().filter(|byte| **byte != GAP).count();
                    prop_assert_eq!(encoding.present(start..end), present);
                    prop_assert_eq!(encoding.is_whole(start..end), present == end - start);
                    let mut bytes = Vec::new();
                    let read = read_to(&encoding, start..end, &mut bytes);
                    let mut target = vec![MaybeUninit::uninit(); end - start];
                    prop_assert_eq!(encoding.read_at(start, &mut target).is_ok(), read.is_ok());
                    if end - start <= run {
                        prop_assert_eq!(&bytes, expected);
                    } else {
                        prop_assert_eq!(read.unwrap_err().offset(), Some(start + run));
                        prop_assert_eq!(bytes.capacity(), 0);
                    }
                }
            }
        }
    }

    #[test]
    fn gaps_are_found_by_where_they_are() {
        let there = |byte| (vec![byte], None, 10);
        let (manifest, _) = manifest_of(&[there(1), there(2)]);
        let encoding = manifest.encoding(None).unwrap();
        assert_eq!(encoding.array_of(once(1..11)), Some(0));
        assert_eq!(encoding.array_of([5..5, 12..22]), Some(1));
        for no_gap in [
            0..1,
            0..11,
            1..10,
            2..11,
            1..12,
            1..22,
            11..12,
            11..22,
            5..5,
        ] {
            assert_eq!(encoding.array_of(once(no_gap)), None);
        }
        assert_eq!(encoding.array_of([1..11, 12..22]), None);
        let mut same = manifest.clone();
        same.gaps[1].array = 0;
        let encoding = same.encoding(None).unwrap();
        assert_eq!(encoding.array_of([1..11, 12..22]), Some(0));
    }

    fn read_before_a_gap(header: &[u8], gap: usize) -> Result<Events> {
        let header = [&[0x92], header].concat();
        let (mut manifest, _) = manifest_of(&[(header, None, 1), (vec![0x01], Some(vec![]), 0)]);
        manifest.gaps[0].nbytes = gap as u64;
        let encoding = manifest.encoding(None).unwrap();
        Events::read(&encoding)
    }

    #[test]
    fn only_bodies_of_values_lie_in_gaps() {
        assert!(read_before_a_gap(&[0xc4, 10], 10).is_ok());
        let huge = usize::MAX / 4;
        let refused: [&[u8]; 9] = [
            &[],                             // integers, if gaps were zeros
            &[0xc4],                         // a length
            &[0xcf, 0, 0, 0],                // an integer
            &[0xcb, 0x40],                   // a float
            &[0xaa],                         // text
            &[0xdb, 0xff, 0xff, 0xff, 0xff], // much text
            &[0xdd, 0xff, 0xff, 0xff, 0xff], // a list
            &[0xdf, 0x7f, 0xff, 0xff, 0xff], // a map
            &[0xc7, 10, 1],                  // the header of an array
        ];
        for header in refused {
            for gap in [1, 10, huge] {
                assert!(read_before_a_gap(header, gap).is_err(), "{header:x?} {gap}");
            }
        }
    }

    #[test]
    fn the_skeleton_is_limited() {
        let (manifest, _) = manifest_of(&[(vec![0x01; 1000], None, 10)]);
        assert!(manifest.encoding(Some(1000)).is_ok());
        let refused = manifest.encoding(Some(999));
        assert!(matches!(refused, Err(Error::OutputLimit { max_size: 999 })));
        let zeros = vec![0; 2 << 20];
        let (mut manifest, _) = manifest_of(&[(zeros.clone(), None, 10)]);
        assert!(manifest.skeleton.len() > zeros.len());
        assert!(manifest.encoding(None).is_ok());
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&zeros).unwrap();
        manifest.skeleton = encoder.finish().unwrap().into();
        let refused = manifest.encoding(None).unwrap_err().to_string();
        assert!(refused.contains("pass max_size="), "{refused}");
        assert!(manifest.encoding(Some(2 << 20)).is_ok());
    }

    #[test]
    fn shards_of_one_process_may_lie_in_several_files() {
        let grid = |counts, files| Grid {
            counts,
            files: Arc::new(files),
            host: false,
        };
        let arrays = vec![grid(vec![3], vec![0, 1, 0]), grid(vec![1], vec![1])];
        let manifest = Manifest::unwritten(vec![], arrays);
        let placed = |files| manifest.placed(files).unwrap();
        let expected = vec![grid(vec![3], vec![4, 1, 0]), grid(vec![1], vec![5])];
        assert_eq!(placed(vec![vec![4, 0], vec![1, 5]]), Some(expected));
        assert_eq!(placed(vec![vec![4], vec![1, 5]]), None);
        assert_eq!(placed(vec![vec![4, 0]]), None);
        assert_eq!(placed(vec![vec![4, 0, 0], vec![1, 5]]), None);
    }

    #[test]
    fn damage_is_found() {
        let (manifest, _) = manifest_of(&[(vec![1, 2], None, 10)]);
        let bytes = manifest.encode().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Manifest::decode(&damaged).is_err());
            assert!(Manifest::decode(&bytes[..at]).is_err());
        }
        let broken = |change: fn(&mut Manifest)| {
            let mut broken = manifest.clone();
            change(&mut broken);
            Manifest::decode(&broken.encode().unwrap())
                .and_then(|read| read.encoding(None).map(|_| ()))
        };
        assert!(broken(|_| ()).is_ok());
        let changes: [fn(&mut Manifest); 10] = [
            |manifest| manifest.version = 0,
            |manifest| manifest.files.clear(),
            |manifest| manifest.arrays.clear(),
            |manifest| manifest.arrays[0].counts = vec![u32::MAX; 4],
            |manifest| manifest.gaps[0].before = 1000,
            |manifest| manifest.gaps[0].nbytes = u64::MAX,
            |manifest| manifest.gaps[0].nbytes = u64::MAX / 2,
            |manifest| {
                manifest.arrays[0] = Grid {
                    counts: vec![0],
                    files: Arc::new(vec![]),
                    host: false,
                }
            },
            |manifest| {
                manifest.arrays[0] = Grid {
                    counts: vec![2],
                    files: Arc::new(vec![0]),
                    host: true,
                }
            },
            |manifest| manifest.skeleton = b"no zlib".to_vec().into(),
        ];
        for change in changes {
            assert!(matches!(broken(change), Err(Error::Structure(_))));
        }
    }
}
