//! The error type of the core: the reason, and the place in the input or the tree.

use std::borrow::Cow;
use std::collections::TryReserveError;
use std::fmt;
use std::io;
use std::str::FromStr;

/// Everything that can go wrong.
///
/// `offset` is always a byte offset into the whole encoded input. Match on the variants that
/// you can do something about; more may be added.
///
/// ```
/// use treepack::{Error, File};
///
/// match File::from_bytes(b"\x81\xa1w") {
///     Err(error @ (Error::Truncated { .. } | Error::At { .. })) => {
///         assert_eq!(error.offset(), Some(3)); // where the value of "w" should begin
///     }
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input ends inside a value.
    #[error("{} (byte {offset})", truncated(*missing))]
    Truncated {
        /// Where the value that does not fit begins.
        offset: usize,
        /// A lower bound of missing bytes.
        missing: u64,
    },
    /// The input violates the format at this place.
    #[error("{reason} (byte {offset})")]
    Malformed {
        /// Where the offending value begins.
        offset: usize,
        /// The violation.
        reason: String,
    },
    /// More bytes follow a value that should be all of the input.
    #[error("{reason} (byte {offset})")]
    Trailing {
        /// Where they begin.
        offset: usize,
        /// Their number, and the format that the input seems to have.
        reason: String,
    },
    /// Containers of the input are nested too deep.
    #[error("{} (byte {offset})", too_deep(*limit))]
    TooDeep {
        /// Where the container that is one too deep begins.
        offset: usize,
        /// The most levels.
        limit: usize,
    },
    /// A tree to be written is nested too deep.
    #[error("the tree is nested more than {limit} levels deep, or contains itself")]
    TreeTooDeep {
        /// The most levels.
        limit: usize,
    },
    /// A value is too large for the format.
    #[error("{what} of {len} bytes or elements does not fit in msgpack (at most 2**32 - 1)")]
    TooLarge {
        /// The kind of value.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// A key of the tree is reserved in the format.
    #[error("the key {key:?} is reserved: it marks {meaning}")]
    ReservedKey {
        /// The key.
        key: String,
        /// Its meaning in the format.
        meaning: &'static str,
    },
    /// An option has a value that is not allowed, or calls came in a wrong order.
    #[error("{0}")]
    Option(String),
    /// The record of a structure is damaged, or does not fit its tree.
    #[error("{0}")]
    Structure(String),
    /// A newer version of this library has written the data, in a form unknown here.
    #[error("{what}: it was written by a newer treepack; upgrade treepack")]
    Newer {
        /// The unknown part.
        what: String,
    },
    /// A gzip stream ends early.
    #[error("compressed file ended before the end-of-stream marker was reached")]
    GzipTruncated,
    /// A gzip stream is damaged, or is not gzip.
    #[error("{0}")]
    Gzip(String),
    /// The output would exceed the bound of the caller.
    #[error("the decompressed data exceeds max_size={max_size} bytes")]
    OutputLimit {
        /// The bound, in bytes.
        max_size: usize,
    },
    /// There is not enough memory.
    #[error("out of memory")]
    OutOfMemory,
    /// The caller has stopped the work.
    #[error("the work was stopped")]
    Stopped,
    /// The bytes of a leaf could not be read.
    #[error(transparent)]
    Payload(Box<dyn std::error::Error + Send + Sync>),
    /// A file was replaced, but may not survive a loss of power.
    #[error("the new file is in place, but its directory could not be synced to the disk: {0}")]
    NotDurable(io::Error),
    /// The operating system refused.
    #[error(transparent)]
    Io(io::Error),
    /// A file has no leaf of this path.
    #[error("there is no leaf {path:?}")]
    NoLeaf {
        /// The requested path.
        path: String,
    },
    /// A leaf is of another kind than requested.
    #[error("the leaf is {found}, not {wanted}")]
    OtherKind {
        /// Its kind.
        found: String,
        /// The requested kind.
        wanted: &'static str,
    },
    /// Leaves are not what was written, as their checksums or their headers tell.
    #[error("leaves are not what was written: {}", listed(paths, *more))]
    Corrupt {
        /// Where they are; of very many, or below very long keys, the first.
        paths: Vec<Path>,
        /// How many more there are.
        more: usize,
    },
    /// A patch belongs to other data than the given base.
    #[error("the patch was made against another base; these leaves differ: {}", listed(paths, *more))]
    BaseMismatch {
        /// The leaves that are missing there, or have another dtype, shape or content; of very many,
        /// the first.
        paths: Vec<Path>,
        /// How many more there are.
        more: usize,
    },
    /// Memory ran out while a failed patch was taken back.
    #[error("there was not enough memory to take a failed patch back: the buffer has neither tree")]
    Torn,
    /// A file was written to while it was open.
    #[error(
        "the file was overwritten in place while it was open: open it again, and let a new file \
         take its name"
    )]
    Overwritten,
    /// An error at a place in the tree.
    #[error("{error} (at {path})")]
    At {
        /// The place.
        path: Path,
        /// The error there.
        error: Box<Error>,
    },
}

impl Error {
    /// A [`Error::Malformed`].
    pub fn malformed(offset: usize, reason: impl Into<String>) -> Self {
        Self::Malformed {
            offset,
            reason: reason.into(),
        }
    }

    /// The message without the place in the input or in the tree.
    #[must_use]
    pub fn reason(&self) -> String {
        Reason(self).to_string()
    }

    /// The byte offset in the input, if known.
    #[must_use]
    pub fn offset(&self) -> Option<usize> {
        match self {
            Self::Truncated { offset, .. }
            | Self::Malformed { offset, .. }
            | Self::Trailing { offset, .. }
            | Self::TooDeep { offset, .. } => Some(*offset),
            Self::At { error, .. } => error.offset(),
            _ => None,
        }
    }

    /// Whether the error is about the work, not the input: stopped by the caller, out of memory, or
    /// failed to read.
    #[must_use]
    pub fn is_no_damage(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_no_damage(),
            Self::Stopped | Self::OutOfMemory | Self::Payload(_) | Self::Io(_) => true,
            _ => false,
        }
    }

    /// Whether the data are of a newer version, and so may be intact.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_newer(),
            error => matches!(error, Self::Newer { .. }),
        }
    }

    /// The error and its place in the tree, if known.
    #[must_use]
    pub fn split(self) -> (Self, Option<Path>) {
        match self {
            Self::At { path, error } => (*error, Some(path)),
            other => (other, None),
        }
    }
}

/// Displays an error without its place.
pub(crate) struct Reason<'a>(pub &'a Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Truncated { missing, .. } => f.write_str(&truncated(*missing)),
            Error::Malformed { reason, .. } | Error::Trailing { reason, .. } => f.write_str(reason),
            Error::TooDeep { limit, .. } => f.write_str(&too_deep(*limit)),
            Error::At { error, .. } => fmt::Display::fmt(&Reason(error), f),
            other => fmt::Display::fmt(other, f),
        }
    }
}

fn truncated(missing: u64) -> String {
    format!("the data ends inside a value: at least {missing} more bytes are needed")
}

fn listed(paths: &[Path], more: usize) -> impl fmt::Display {
    /// More are counted.
    const FEW: usize = 5;
    let few = &paths[..paths.len().min(FEW)];
    let more = more + paths.len() - few.len();
    fmt::from_fn(move |f| {
        for (number, path) in few.iter().enumerate() {
            f.write_str(if number > 0 { ", " } else { "" })?;
            write!(f, "{path}")?;
        }
        match more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    })
}

fn too_deep(limit: usize) -> String {
    format!("containers are nested more than {limit} levels deep")
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::OutOfMemory => Self::OutOfMemory,
            _ => Self::Io(error),
        }
    }
}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::OutOfMemory
    }
}

/// The result type of the core.
pub type Result<T> = std::result::Result<T, Error>;

/// A place in a tree: the keys that lead there.
///
/// It is written `params/encoder/0/kernel`, and `.` for the root. In a key, `~` is written `~0` and
/// `/` is written `~1`, as in JSON Pointer (RFC 6901); a key that is `.` is written `~2`.
///
/// ```
/// use treepack::Path;
///
/// let path: Path = "params/a~1b".parse()?;
/// assert_eq!(path.keys().collect::<Vec<_>>(), ["params", "a/b"]);
/// assert_eq!(path.to_string(), "params/a~1b");
/// # Ok::<(), treepack::Error>(())
/// ```
// Collected while a walk unwinds, so the innermost key comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// Adds the key of the container around the path so far, or `…` without memory for it.
    pub fn push_outer(&mut self, key: impl AsRef<str>) {
        if self.try_push_outer(key.as_ref()).is_err() {
            self.0.push("…".into());
        }
    }

    /// The same, but fails without memory for the key.
    pub fn try_push_outer(&mut self, key: &str) -> Result<()> {
        let mut copy = String::new();
        copy.try_reserve_exact(key.len())?;
        copy.push_str(key);
        self.0.try_reserve(1)?;
        self.0.push(copy);
        Ok(())
    }

    /// The keys from the root on.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().rev().map(String::as_str)
    }
}

/// A key as it is written in a path.
#[must_use]
pub fn escaped(key: &str) -> Cow<'_, str> {
    if key == "." {
        "~2".into()
    } else if key.contains(['~', '/']) {
        key.replace('~', "~0").replace('/', "~1").into()
    } else {
        key.into()
    }
}

/// Any text is a path; the only error is [`Error::OutOfMemory`].
impl FromStr for Path {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut path = Self::default();
        if text != "." {
            for part in text.rsplit('/') {
                path.try_push_outer(&unescaped(part))?;
            }
        }
        Ok(path)
    }
}

/// The inverse of [`escaped`].
fn unescaped(part: &str) -> Cow<'_, str> {
    if part.contains('~') {
        let part = part.replace("~2", ".").replace("~1", "/");
        part.replace("~0", "~").into()
    } else {
        part.into()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for (index, key) in self.keys().enumerate() {
            if index > 0 {
                f.write_str("/")?;
            }
            if key == "." {
                f.write_str("~2")?;
                continue;
            }
            // Without a copy, which would need memory.
            for part in key.split_inclusive(['~', '/']) {
                let plain = part.trim_end_matches(['~', '/']);
                f.write_str(plain)?;
                f.write_str(match &part[plain.len()..] {
                    "~" => "~0",
                    "/" => "~1",
                    _ => "",
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_written() {
        for keys in [
            vec![],
            vec![""],
            vec!["", ""],
            vec!["."],
            vec!["a", "~", "/", "~1", "~2", "~02", "..", "é"],
        ] {
            let mut path = Path::default();
            for key in keys.iter().rev() {
                path.push_outer(key);
            }
            let read: Path = path.to_string().parse().unwrap();
            assert_eq!(read, path);
            assert!(read.keys().eq(keys));
        }
    }

    #[test]
    fn of_many_leaves_that_are_corrupt_few_are_shown() {
        let paths = |count: usize| {
            (0..count)
                .map(|index| index.to_string().parse().unwrap())
                .collect()
        };
        let shown = |count, more| {
            let paths = paths(count);
            Error::Corrupt { paths, more }.to_string()
        };
        assert_eq!(shown(2, 0), "leaves are not what was written: 0, 1");
        assert!(shown(2, 1).ends_with(": 0, 1 and 1 more"));
        assert!(shown(7, 1).ends_with(": 0, 1, 2, 3, 4 and 3 more"));
    }

    #[test]
    fn whatever_has_an_offset_shows_it() {
        let limit = 3;
        for error in [
            Error::Truncated {
                offset: 17,
                missing: 2,
            },
            Error::malformed(17, "nonsense"),
            Error::TooDeep { offset: 17, limit },
        ] {
            let (shown, reason) = (error.to_string(), error.reason());
            assert_eq!(shown, format!("{reason} (byte 17)"));
            let mut path = Path::default();
            path.push_outer("a");
            let error = Box::new(error);
            let error = Error::At { path, error };
            assert_eq!(error.to_string(), format!("{shown} (at a)"));
            assert_eq!(error.reason(), reason);
        }
    }
}
