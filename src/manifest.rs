//! What holds the files of a sharded checkpoint together.
//!
//! Each process writes a file of the shards that it has. A manifest, written last, has all else: the
//! encoding of the whole tree as one file would have it, but with *holes* in the place of the arrays,
//! and for each array how it is split into shards and which file has them.
//!
//! ```text
//! record (MessagePack) | CRC-32 of it (u32) | mark (8 bytes)
//! ```

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Range;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::grow::{self, Growing, decode};
use crate::layout::{Layout, Payload, Slice};
use crate::raw::{Filling, zeroed};
use crate::source::Source;
use crate::{Error, Result, zlib};

/// What a manifest ends with.
pub const MARK: [u8; 8] = *b"\x93treepm\n";

/// The version of the format that is written, and the only one that is read.
const VERSION: u32 = 1;

/// A file with shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardFile {
    /// Its name in the directory.
    #[serde(deserialize_with = "decode::text")]
    pub name: String,
    /// How many bytes it has.
    pub nbytes: u64,
    /// The CRC-32 of its record with all that stands after it, the checksums of its leaves included.
    pub record: u32,
}

/// How an array is split into shards of the same shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grid {
    /// How many shards there are in each dimension.
    #[serde(deserialize_with = "decode::list")]
    pub counts: Vec<u32>,
    /// The number of the file of each shard, the last dimension varying fastest.
    #[serde(deserialize_with = "decode::list")]
    pub files: Vec<u32>,
    /// Whether it is an array of the host, not of devices. It is one shard.
    pub host: bool,
}

/// Bytes that are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hole {
    /// How many bytes are there between the hole before and this one.
    pub before: u64,
    /// How many bytes it has.
    pub nbytes: u64,
    /// The number of the array that is in it.
    pub array: u32,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of the format.
    pub version: u32,
    /// The files with the shards.
    #[serde(deserialize_with = "decode::list")]
    pub files: Vec<ShardFile>,
    /// How each array is split.
    #[serde(deserialize_with = "decode::list")]
    pub arrays: Vec<Grid>,
    /// The holes in the encoding, in order.
    #[serde(deserialize_with = "decode::list")]
    pub holes: Vec<Hole>,
    /// The encoding without the bytes of holes, compressed (zlib, RFC 1950).
    #[serde(deserialize_with = "decode::bytes")]
    pub skeleton: ByteBuf,
}

/// What is read of a record first.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Manifest {
    /// A manifest of a layout of which some payloads are not there: `hole` tells of which array
    /// they are.
    pub fn new<P: Payload>(
        layout: &Layout<P>,
        hole: impl Fn(&P) -> Option<usize>,
        files: Vec<ShardFile>,
        arrays: Vec<Grid>,
    ) -> Result<Self> {
        let encoder = || ZlibEncoder::new(Growing::default(), Compression::default());
        let mut encoder = zlib::state(encoder)?;
        let mut holes = Vec::new();
        let mut before = 0;
        let mut bytes = Vec::new();
        for slice in layout.slices(0..layout.len()) {
            if let Slice::Payload(payload, ..) = &slice
                && let Some(array) = hole(payload)
            {
                let hole = Hole {
                    before: std::mem::take(&mut before),
                    nbytes: slice.len() as u64,
                    array: u32::try_from(array).map_err(|_| Error::OutOfMemory)?,
                };
                grow::push(&mut holes, hole)?;
                continue;
            }
            bytes.clear();
            crate::raw::append_with(&mut bytes, slice.len(), |target| slice.copy_to(0, target))?;
            encoder.write_all(&bytes)?;
            before += slice.len() as u64;
        }
        Ok(Self {
            version: VERSION,
            files,
            arrays,
            holes,
            skeleton: encoder.finish()?.into_bytes().into(),
        })
    }

    /// The manifest as bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = grow::encode_named(self, &())?;
        let crc = crc32fast::hash(&bytes);
        grow::extend(&mut bytes, &crc.to_le_bytes())?;
        grow::extend(&mut bytes, &MARK)?;
        Ok(bytes)
    }

    /// A copy of it.
    pub fn try_clone(&self) -> Result<Self> {
        let file = |file: &ShardFile| {
            let name = grow::to_string(&file.name)?;
            Ok(ShardFile { name, ..*file })
        };
        let grid = |grid: &Grid| {
            Ok(Grid {
                counts: grow::to_vec(&grid.counts)?,
                files: grow::to_vec(&grid.files)?,
                host: grid.host,
            })
        };
        Ok(Self {
            version: self.version,
            files: grow::try_collect(self.files.iter().map(file))?,
            arrays: grow::try_collect(self.arrays.iter().map(grid))?,
            holes: grow::to_vec(&self.holes)?,
            skeleton: grow::to_vec(&self.skeleton)?.into(),
        })
    }

    /// Reads a manifest.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((rest, mark)) = bytes.split_last_chunk::<8>() else {
            return damaged("it is too short");
        };
        let Some((record, crc)) = rest.split_last_chunk::<4>() else {
            return damaged("it is too short");
        };
        if *mark != MARK {
            return damaged("it does not end with its mark");
        }
        if crc32fast::hash(record) != u32::from_le_bytes(*crc) {
            return damaged("it has another checksum");
        }
        let found = rmp_serde::from_slice::<Version>(record);
        if let Ok(Version { version }) = found
            && version != VERSION
        {
            return Err(Error::Structure(format!(
                "the manifest has version {version}, and this treepack reads version {VERSION}: \
                 upgrade treepack"
            )));
        }
        let manifest: Self = match rmp_serde::from_slice(record) {
            Ok(manifest) => manifest,
            Err(error) => {
                return Err(decode::explain(&error, |error| {
                    damaged::<()>(&error.to_string()).unwrap_err()
                }));
            }
        };
        let is_split = |grid: &Grid| {
            let count = |product: usize, &count: &u32| product.checked_mul(count as usize);
            let shards = grid.counts.iter().try_fold(1, count);
            let known = |&file: &u32| (file as usize) < manifest.files.len();
            shards == Some(grid.files.len()) && grid.files.iter().all(known)
        };
        if !manifest.arrays.iter().all(is_split) {
            return damaged("an array has another number of shards, or one is in no file");
        }
        let has_array = |hole: &Hole| (hole.array as usize) < manifest.arrays.len();
        if !manifest.holes.iter().all(has_array) {
            return damaged("a hole is of no array");
        }
        Ok(manifest)
    }

    /// The encoding, in which zeros are in the place of holes.
    pub fn encoding(&self) -> Result<Sparse> {
        let mut bytes = Vec::new();
        let mut decoder = zlib::state(|| ZlibDecoder::new(self.skeleton.as_slice()))?;
        if let Err(error) = decoder.read_to_end(&mut bytes) {
            return match error.kind() {
                io::ErrorKind::OutOfMemory => Err(Error::OutOfMemory),
                _ => damaged(&error.to_string()),
            };
        }
        let (mut len, mut there) = (0_usize, 0_usize);
        let mut holes = Vec::new();
        holes.try_reserve_exact(self.holes.len())?;
        for hole in &self.holes {
            let sizes = usize::try_from(hole.before)
                .and_then(|before| Ok((before, usize::try_from(hole.nbytes)?)));
            let Ok((before, nbytes)) = sizes else {
                return damaged("a hole is too large");
            };
            there = there.saturating_add(before);
            let start = len.checked_add(before);
            let end = start.and_then(|start| start.checked_add(nbytes));
            let (Some(start), Some(end), true) = (start, end, there <= bytes.len()) else {
                return damaged("a hole is not in the encoding");
            };
            holes.push(PlacedHole {
                place: start..end,
                array: hole.array as usize,
                before: there,
            });
            len = end;
        }
        match len.checked_add(bytes.len() - there) {
            Some(len) => Ok(Sparse { bytes, holes, len }),
            None => damaged("a hole is too large"),
        }
    }
}

fn damaged<T>(what: &str) -> Result<T> {
    Err(Error::Structure(format!("the manifest is damaged: {what}")))
}

/// Encoded bytes of which some are not there, and read as zeros.
#[derive(Debug)]
pub struct Sparse {
    bytes: Vec<u8>,
    holes: Vec<PlacedHole>,
    len: usize,
}

#[derive(Debug)]
struct PlacedHole {
    place: Range<usize>,
    array: usize,
    /// How many bytes are there before it.
    before: usize,
}

impl Sparse {
    /// The number of the array whose bytes begin first in a range.
    #[must_use]
    pub fn array_in(&self, range: Range<usize>) -> Option<usize> {
        let begins_before = |hole: &PlacedHole| hole.place.start < range.start;
        let hole = self.holes.get(self.holes.partition_point(begins_before))?;
        (hole.place.start < range.end).then_some(hole.array)
    }
}

impl Source for Sparse {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(
        &self,
        offset: usize,
        target: &'t mut [MaybeUninit<u8>],
    ) -> Result<&'t mut [u8]> {
        let mut filling = Filling::new(target);
        let mut at = offset;
        let mut number = self.holes.partition_point(|hole| hole.place.end <= at);
        while filling.left() > 0 {
            let hole = self.holes.get(number);
            let place = hole.map_or(self.len..self.len, |hole| hole.place.clone());
            let is_there = at < place.start;
            let end = if is_there { place.start } else { place.end };
            let len = filling.left().min(end - at);
            if is_there {
                let before = hole.map_or(self.bytes.len(), |hole| hole.before);
                let from = before - (place.start - at);
                filling.write(&self.bytes[from..from + len]);
            } else {
                filling.fill(len, |now| Ok(zeroed(now)))?;
                number += 1;
            }
            at = end;
        }
        Ok(filling.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::LayoutBuilder;
    use crate::source::read_to;

    #[derive(Debug)]
    enum Leaf {
        There(Vec<u8>),
        Hole(usize),
    }

    impl Payload for Leaf {
        fn len(&self) -> usize {
            match self {
                Self::There(bytes) => bytes.len(),
                Self::Hole(len) => *len,
            }
        }

        fn copy_to<'t>(
            &self,
            start: usize,
            target: &'t mut [MaybeUninit<u8>],
        ) -> Result<&'t mut [u8]> {
            match self {
                Self::There(bytes) => bytes.copy_to(start, target),
                Self::Hole(_) => panic!("nobody asks for what is not there"),
            }
        }
    }

    /// Headers, and the payload after them, or how many bytes it would have.
    type Part = (Vec<u8>, Option<Vec<u8>>, usize);

    fn manifest(parts: &[Part]) -> (Manifest, Vec<u8>) {
        let mut builder = LayoutBuilder::default();
        let mut whole = Vec::new();
        let mut arrays = Vec::new();
        for (header, payload, hole) in parts {
            builder.extend(header).unwrap();
            whole.extend_from_slice(header);
            if let Some(payload) = payload {
                builder.push(Leaf::There(payload.clone())).unwrap();
                whole.extend_from_slice(payload);
            } else {
                builder.push(Leaf::Hole(*hole)).unwrap();
                whole.resize(whole.len() + hole, 0);
                arrays.push(Grid {
                    counts: vec![],
                    files: vec![0],
                    host: false,
                });
            }
        }
        let number = std::cell::Cell::new(0);
        let hole = |leaf: &Leaf| match leaf {
            Leaf::There(_) => None,
            Leaf::Hole(_) => Some(number.replace(number.get() + 1)),
        };
        let file = ShardFile {
            name: "0".into(),
            nbytes: 5,
            record: 7,
        };
        let made = Manifest::new(&builder.finish(), hole, vec![file], arrays).unwrap();
        (made, whole)
    }

    proptest! {
        #[test]
        fn the_encoding_is_read_with_zeros_in_its_holes(
            parts in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..4), prop::option::of(prop::collection::vec(any::<u8>(), 1..4)), 1usize..5),
                0..6,
            ),
        ) {
            let (made, whole) = manifest(&parts);
            let read = Manifest::decode(&made.encode().unwrap()).unwrap();
            prop_assert_eq!(&read, &made);
            let encoding = read.encoding().unwrap();
            prop_assert_eq!(encoding.len(), whole.len());
            for start in 0..=whole.len() {
                for end in start..=whole.len() {
                    let mut found = Vec::new();
                    read_to(&encoding, start..end, &mut found).unwrap();
                    prop_assert_eq!(&found, &whole[start..end]);
                }
            }
        }
    }

    #[test]
    fn holes_are_found_by_where_they_are() {
        let there = |byte| (vec![byte], None, 10);
        let (made, _) = manifest(&[there(1), there(2)]);
        let encoding = made.encoding().unwrap();
        assert_eq!(encoding.array_in(0..11), Some(0));
        assert_eq!(encoding.array_in(1..2), Some(0));
        assert_eq!(encoding.array_in(2..12), None);
        assert_eq!(encoding.array_in(11..22), Some(1));
        assert_eq!(encoding.array_in(13..99), None);
    }

    #[test]
    fn damage_is_found() {
        let (made, _) = manifest(&[(vec![1, 2], None, 10)]);
        let bytes = made.encode().unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Manifest::decode(&damaged).is_err());
            assert!(Manifest::decode(&bytes[..at]).is_err());
        }
        let broken = |change: fn(&mut Manifest)| {
            let mut broken = made.clone();
            change(&mut broken);
            Manifest::decode(&broken.encode().unwrap()).and_then(|read| read.encoding().map(|_| ()))
        };
        assert!(broken(|_| ()).is_ok());
        let changes: [fn(&mut Manifest); 7] = [
            |it| it.version = 2,
            |it| it.files.clear(),
            |it| it.arrays.clear(),
            |it| it.arrays[0].counts = vec![u32::MAX; 4],
            |it| it.holes[0].before = 1000,
            |it| it.holes[0].nbytes = u64::MAX,
            |it| it.skeleton = b"no zlib".to_vec().into(),
        ];
        for change in changes {
            assert!(matches!(broken(change), Err(Error::Structure(_))));
        }
    }
}
