//! Recognises other formats and suggests how to read them.

use crate::base::source::{Source, bytes_of};
use crate::catalog::stream_item;
use crate::{Error, Result, sharding::manifest};

const START_BYTES: usize = 4096;

const END_BYTES: usize = 8;

pub fn explain(error: Error, source: &dyn Source) -> Error {
    if let Error::At { path, error } = error {
        return Error::at(path, explain(*error, source));
    }
    let Some(offset) = error.offset() else {
        return error;
    };
    if source.is_empty() {
        return Error::malformed(offset, "the data is empty (0 bytes): send or read it again");
    }
    match Sample::of(source).as_ref().map(Sample::describe) {
        Ok(Some(format)) => {
            let reason = format!("the data looks like {format}");
            match error {
                Error::Trailing { .. } => Error::Trailing { offset, reason },
                _ => Error::malformed(offset, format!("{reason}; {}", error.reason())),
            }
        }
        _ => error,
    }
}

/// The beginning and end of data.
pub struct Sample<'a> {
    source: &'a dyn Source,
    start: Vec<u8>,
    end: Vec<u8>,
}

impl<'a> Sample<'a> {
    pub fn of(source: &'a dyn Source) -> Result<Self> {
        let len = source.len();
        Ok(Self {
            source,
            start: bytes_of(source, 0..len.min(START_BYTES))?,
            end: bytes_of(source, len.saturating_sub(END_BYTES)..len)?,
        })
    }

    /// Returns whether the data begin like another format, so they are not damaged msgpack.
    pub fn is_foreign(&self) -> bool {
        let mut magics = MAGICS.iter().filter(|(offset, ..)| *offset == 0);
        self.is_safetensors() || magics.any(|(_, magic, _)| self.start.starts_with(magic))
    }

    /// The format that `treepack.open` reads, or the command line converts.
    pub fn convertible(&self) -> Option<&'static str> {
        if self.is_safetensors() {
            Some("safetensors")
        } else if self.zipped().is_some_and(|name| name.ends_with(b".npy"))
            || self.start.starts_with(NO_MEMBERS)
        {
            Some("npz")
        } else {
            // Leaves in sequence, as written by `EasyLM` and `EasyDeL`.
            stream_item(self.source, 0).is_ok().then_some("stream")
        }
    }

    pub fn describe(&self) -> Option<String> {
        let start = self.start.as_slice();
        let convertible = self.convertible().map(|format| match format {
            "safetensors" => "a safetensors file: read it with treepack.load",
            "npz" => "an npz archive of NumPy: read it with treepack.load",
            _ => {
                "a stream of EasyLM: read it with treepack.read_stream, or convert it with \
                 `treepack convert`"
            }
        });
        let begins = |(offset, magic, _): &&(usize, &[u8], &str)| {
            let bytes = start.get(*offset..);
            bytes.is_some_and(|bytes| bytes.starts_with(magic))
        };
        let ends = |(magic, _): &&(&[u8], &str)| self.end.ends_with(magic);
        let description = convertible
            .or_else(|| self.zipped().map(zip_of))
            .or_else(|| MAGICS.iter().find(begins).map(|magic| magic.2))
            .or_else(|| ENDS.iter().find(ends).map(|magic| magic.1))
            .or_else(|| pickle_of(start, &self.end))
            .or_else(|| protobuf_of(start))
            .or_else(|| {
                // jax.export's flatbuffers have no mark, but contain StableHLO as MLIR bytecode
                // (https://mlir.llvm.org/docs/BytecodeFormat, "Magic Number").
                start
                    .windows(MLIR.len())
                    .any(|window| window == MLIR)
                    .then_some("a function of jax.export: read it with jax.export.deserialize")
            });
        let description = description.map(String::from);
        description
            .or_else(|| self.zeros())
            .or_else(|| text_of(start))
    }

    /// Describes data that begin with zeros, of which it reads at most [`ZERO_BYTES`].
    fn zeros(&self) -> Option<String> {
        let len = self.source.len();
        if !self.start.get(..16)?.iter().all(|byte| *byte == 0) {
            return None;
        }
        let start = bytes_of(self.source, 0..len.min(ZERO_BYTES)).ok()?;
        let zeros = start.iter().take_while(|byte| **byte == 0).count();
        if zeros == len {
            return Some(ZEROS.into());
        }
        Some(format!(
            "a damaged file, whose first {zeros} bytes are zeros, as after a power failure; copy \
             it again, or read its intact leaves with `treepack salvage`; of a buffer of \
             `pack_into`, pass the bytes from its `offset` on"
        ))
    }

    /// Returns whether the data begin with the length of a JSON header that fits
    /// (<https://huggingface.co/docs/safetensors>, "Format").
    fn is_safetensors(&self) -> bool {
        let Some((len, header)) = self.start.split_first_chunk::<8>() else {
            return false;
        };
        header.trim_ascii_start().starts_with(b"{")
            && u64::from_le_bytes(*len) <= (self.source.len() - 8) as u64
    }

    /// The name of the first file in an archive, before which may be folders, which have no data.
    ///
    /// APPNOTE.TXT of PKWARE, section 4.3.7
    fn zipped(&self) -> Option<&[u8]> {
        let mut entry = self.start.as_slice();
        let mut first = None;
        while entry.starts_with(b"PK\x03\x04") {
            let rest = entry.get(30..)?;
            let name = length_at(entry, 26)?;
            let file = &rest[..rest.len().min(name)];
            first = Some(file);
            if !file.ends_with(b"/") {
                break;
            }
            entry = rest.get(name + length_at(entry, 28)?..).unwrap_or_default();
        }
        first
    }
}

fn length_at(entry: &[u8], at: usize) -> Option<usize> {
    let length = entry.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*length).into())
}

/// The start of an archive without members, APPNOTE.TXT of PKWARE, section 4.3.16
const NO_MEMBERS: &[u8] = b"PK\x05\x06";

const PICKLE: &str = "a Python pickle, which may run code when it is read: load it where you trust it, and save it \
     with treepack";

const TORCH: &str = "a checkpoint of PyTorch: load it with torch.load(weights_only=True), and save \
                     its tensors as arrays of NumPy";

const ZLIB: &str = "zlib data: decompress them with the module zlib of Python";

const ZERO_BYTES: usize = 1 << 20;

const ZEROS: &str = "only zeros: the file was never written, for example after a power failure";

const MLIR: &[u8] = b"ML\xefR";

const MAGICS: &[(usize, &[u8], &str)] = &[
    // RFC 1952, section 2.3.1
    (
        0,
        b"\x1f\x8b",
        "gzip data: use from_compressed_bytes, or load_from_file",
    ),
    // docs/format.md, "Numbers"
    (
        0,
        b"\xc1treepack\x01",
        "data compressed as numbers: use from_compressed_bytes, or load_from_file",
    ),
    // RFC 1950, section 2.2, with a window of 32 KiB
    (0, b"x\x01", ZLIB),
    (0, b"x\x5e", ZLIB),
    (0, b"x\x9c", ZLIB),
    (0, b"x\xda", ZLIB),
    // RFC 8878, section 3.1.1
    (
        0,
        b"\x28\xb5\x2f\xfd",
        "Zstandard data: decompress them with `zstd -d`",
    ),
    // https://tukaani.org/xz/xz-file-format.txt, section 2.1.1.1
    (
        0,
        b"\xfd7zXZ\0",
        "xz data: decompress them with `xz -d`, or the module lzma of Python",
    ),
    // https://sourceware.org/bzip2/ and its manual: the level comes next
    (
        0,
        b"BZh",
        "bzip2 data: decompress them with `bzip2 -d`, or the module bz2 of Python",
    ),
    // https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md
    (
        0,
        b"\x04\x22\x4d\x18",
        "LZ4 data: decompress them with `lz4 -d`",
    ),
    // https://www.7-zip.org/7z.html, 7zFormat.txt
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    // https://docs.hdfgroup.org/hdf5/v1_14/_f_m_t3.html, section II.A
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, such as weights of Keras: load it with Keras or h5py, and save its arrays",
    ),
    // https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    (0, b"\x93NUMPY", "a .npy file: read it with treepack.load"),
    // The pickled magic number of torch.save before 1.6
    // (https://github.com/pytorch/pytorch/blob/main/torch/serialization.py, MAGIC_NUMBER)
    (0, b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", TORCH),
    // https://www.gnu.org/software/tar/manual/html_node/Standard.html
    (257, b"ustar", "a tar archive: unpack it first"),
    // https://parquet.apache.org/docs/file-format/
    (
        0,
        b"PAR1",
        "a Parquet file, which holds tables: read it with pyarrow or pandas",
    ),
    // https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format; Feather version 1
    (
        0,
        b"ARROW1",
        "an Arrow file, which holds tables: read it with pyarrow",
    ),
    (
        0,
        b"FEA1",
        "a Feather file, which holds tables: read it with pyarrow",
    ),
    // https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    (
        0,
        b"GGUF",
        "a GGUF file of llama.cpp: read it with the package gguf, and save its arrays",
    ),
    // A flatbuffer's identifier is at byte 4 (https://flatbuffers.dev/internals/); TFL3 is from
    // tensorflow/lite/schema/schema.fbs
    (
        4,
        b"TFL3",
        "a model of TensorFlow Lite: read it with its interpreter",
    ),
    // https://openxla.org/stablehlo/bytecode
    (
        0,
        MLIR,
        "a module of StableHLO or MLIR, such as jax.export makes: it has a function, not a tree",
    ),
];

const ENDS: &[(&[u8], &str)] = &[
    // kTableMagicNumber of LevelDB, TensorFlow's format for the index of a checkpoint
    // (https://github.com/google/leveldb/blob/main/doc/table_format.md)
    (
        b"\x57\xfb\x80\x8b\x24\x75\x47\xdb",
        "the index of a TensorFlow checkpoint: read it with tf.train.load_checkpoint, and save its \
         arrays",
    ),
    (
        &manifest::MARK,
        "the manifest of a sharded checkpoint: give the directory that it is in",
    ),
];

fn zip_of(name: &[u8]) -> &'static str {
    if name.ends_with(b".pkl") {
        // https://github.com/pytorch/pytorch/blob/main/caffe2/serialize/inline_container.h
        TORCH
    } else if matches!(name, b"metadata.json" | b"config.json") {
        // https://keras.io/guides/serialization_and_saving: metadata, config, weights in HDF5
        "a model of Keras (a zip archive): load it with Keras, and save its weights"
    } else {
        "a zip archive: unpack it first"
    }
}

/// The format of a pickle (<https://docs.python.org/3/library/pickletools.html>): PROTO and its
/// number, then optionally FRAME; protocol 0 is text. All end with STOP.
fn pickle_of(start: &[u8], end: &[u8]) -> Option<&'static str> {
    let is_binary = matches!(start, [0x80, 2..=5, ..]);
    let textual: [&[u8]; 5] = [b"(dp", b"(lp", b"ccopy_reg\n", b"cnumpy", b"c__builtin__\n"];
    let is_text = textual.iter().any(|prefix| start.starts_with(prefix));
    let is_framed = matches!(start, [0x80, 4 | 5, 0x95, ..]);
    (is_framed || (is_binary || is_text) && (end.ends_with(b".") || start.len() == START_BYTES))
        .then_some(PICKLE)
}

/// Recognises protobuf, which has no magic number, by its first fields: an integer and a message.
fn protobuf_of(start: &[u8]) -> Option<&'static str> {
    let [0x08, version, 0x12, len, rest @ ..] = start else {
        return None;
    };
    let name = rest.get(..usize::from(*len));
    match version {
        // saved_model_schema_version (https://github.com/tensorflow/tensorflow/blob/master/
        // tensorflow/core/protobuf/saved_model.proto)
        1 => Some("a SavedModel of TensorFlow: load it with TensorFlow, and save its variables"),
        // ir_version and producer_name (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto)
        3..=32 if name.is_some_and(|name| !name.is_empty() && name.is_ascii()) => {
            Some("a model of ONNX: load it with onnx, and save its initializers as arrays of NumPy")
        }
        _ => None,
    }
}

/// Describes data of treepack or gzip that are encoded as text: no words of a text, nor a path.
fn encoded(text: &str) -> Option<&'static str> {
    let text = text.trim_ascii_end();
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(&byte);
    if text.len() < 64 || !text.bytes().all(is_base64) {
        None
    } else if text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Some("hexadecimal text: decode it first, as by bytes.fromhex(text)")
    } else if text.starts_with(['g', 'h', 'i', 'j', 'k', '3']) || text.starts_with("H4sI") {
        // A first byte of 0x80 to 0x93, 0xdc to 0xdf; gzip.
        Some("base64 text: decode it first, as by base64.b64decode(text)")
    } else {
        None
    }
}

fn text_of(start: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be cut.
        Err(error) if error.error_len().is_none() && start.len() == START_BYTES => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let text = text.trim_start_matches('\u{feff}').trim_ascii_start();
    let is_odd =
        |char: char| char.is_control() && !matches!(char, '\t' | '\n' | '\r' | '\x0c' | '\x1b');
    if text.is_empty() || text.contains(is_odd) {
        return None;
    }
    let begins = |prefix: &str| {
        let start = text.as_bytes().get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    let description = if begins("version https://git-lfs") {
        // https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, "The Pointer"
        "a git-LFS pointer: run `git lfs pull` to get the real file"
    } else if begins("<!doctype") || begins("<html") {
        "an HTML page: the download went wrong; look at it in a browser or editor"
    } else if begins("<?xml") || begins("<error>") {
        "an XML document: the download went wrong; look at it in an editor"
    } else if begins("model_checkpoint_path:") {
        // https://github.com/tensorflow/tensorflow, CheckpointState of checkpoint_state.proto
        "the list of TensorFlow checkpoints of a directory: read one with tf.train.load_checkpoint"
    } else if begins("{") && text.contains("\"weight_map\"") {
        // https://huggingface.co/docs/safetensors, "model.safetensors.index.json"
        "the index of a checkpoint in several files (JSON): convert each of its files with \
         `treepack convert`"
    } else if begins("{") || begins("[") {
        "JSON text: read it with the module json"
    } else if let Some(encoded) = encoded(text) {
        encoded
    } else {
        let shown: String = text
            .chars()
            .take_while(|char| *char != '\n')
            .take(60)
            .collect();
        let is_word = |text: &str| {
            let mut chars = text.chars();
            chars.all(|char| char.is_alphanumeric() || "_-\"'".contains(char))
        };
        let field = shown.split_once(": ");
        let is_yaml = begins("---") || field.is_some_and(|(name, _)| is_word(name));
        let kind = if is_yaml { "YAML text" } else { "text" };
        return Some(format!(
            "{kind} that begins with {shown:?}: read it as text, or if it is a path, pass a str"
        ));
    };
    Some(description.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(data: &[u8]) -> String {
        let error = explain(Error::malformed(0, "odd"), &data.to_vec());
        error.reason().replace("; odd", "")
    }

    #[test]
    fn msgpack_looks_like_nothing_else() {
        for data in [
            b"\x81\xa1w".as_slice(),
            b"\xde\x00\x10\xa1a\x01",
            b"\xc1",
            b"\x80\x80",
            b"\x92\x91\xa1a\x01",
            b"\x08\x02\x12\x01a",
            b"\0\0",
        ] {
            assert_eq!(seen(data), "odd", "{data:x?}");
        }
    }

    #[test]
    fn truncated_formats_do_not_panic() {
        let stream = b"\x92\x92\xa1a\xd9\x03abc\xc4\x01\x01".as_slice();
        let header = b"\x09\0\0\0\0\0\0\0{\"a\":{}} ".as_slice();
        for (data, format) in [
            (stream, "stream of EasyLM"),
            (b"PK\x03\x04", "zip"),
            (header, "safetensors"),
            (b"\x80\x04K\x01.", "pickle"),
        ] {
            for end in 0..data.len() {
                let _ = seen(&data[..end]);
            }
            if data.len() > 4 {
                assert!(seen(data).contains(format), "{}", seen(data));
            }
        }
    }

    #[test]
    fn only_zeros_were_never_written() {
        for (zeros, rest, format) in [
            (16, 0, "only zeros"),
            (START_BYTES, 0, "only zeros"),
            (ZERO_BYTES, 0, "only zeros"),
            (512, 1, "whose first 512 bytes are zeros"),
            (START_BYTES, 1, "whose first 4096 bytes are zeros"),
            (ZERO_BYTES + 1, 1, "whose first 1048576 bytes are zeros"),
        ] {
            let mut data = vec![0; zeros];
            data.resize(zeros + rest, b'x');
            assert!(seen(&data).contains(format), "{}", seen(&data));
        }
    }

    #[test]
    fn text_is_described_by_its_start() {
        let long = "é".repeat(START_BYTES);
        for (text, format) in [
            (
                "Not Found",
                "text that begins with \"Not Found\": read it as text, or if it is a path, pass a str",
            ),
            (
                "name: x\nother: y",
                "YAML text that begins with \"name: x\": read it as text, or if it is a path, pass a str",
            ),
            (long[..].as_ref(), "text that begins"),
            ("{ \"a\": 1 }", "JSON"),
            ("\u{feff}<HTML>", "HTML"),
        ] {
            assert!(seen(text.as_bytes()).contains(format), "{text:.20}");
        }
    }
}
