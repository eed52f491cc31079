//! The one error type of the core: what is wrong, and where in the input or the tree.

use std::borrow::Cow;
use std::collections::TryReserveError;
use std::fmt;
use std::io;
use std::str::FromStr;

use crate::grow;

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
        /// How many bytes are missing, at the least.
        missing: u64,
    },
    /// The input is not what the format allows at this place.
    #[error("{reason} (byte {offset})")]
    Malformed {
        /// Where the offending value begins.
        offset: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// More bytes follow a value that should be all of the input.
    #[error("{reason} (byte {offset})")]
    Trailing {
        /// Where they begin.
        offset: usize,
        /// How many they are, and what the input seems to be.
        reason: String,
    },
    /// Containers of the input are nested too deep.
    #[error("{} (byte {offset})", too_deep(*limit))]
    TooDeep {
        /// Where the container that is one too deep begins.
        offset: usize,
        /// How many levels there may be.
        limit: usize,
    },
    /// A tree that is to be written is nested too deep.
    #[error("the tree is nested more than {limit} levels deep, or contains itself")]
    TreeTooDeep {
        /// How many levels there may be.
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
    /// A key of the tree has a meaning of its own in the format.
    #[error("the key {key:?} is reserved: it marks {meaning}")]
    ReservedKey {
        /// The key.
        key: String,
        /// What it would be taken for.
        meaning: &'static str,
    },
    /// An option has a value that is not allowed, or calls came in an order that makes no sense.
    #[error("{0}")]
    Option(String),
    /// The record of a structure is damaged, or does not fit its tree.
    #[error("{0}")]
    Structure(String),
    /// A newer version of this library has written the data, in a way that this one does not know.
    #[error("{what}: it was written by a newer treepack; upgrade treepack")]
    Newer {
        /// What is not known here.
        what: String,
    },
    /// A gzip stream ends early.
    #[error("compressed file ended before the end-of-stream marker was reached")]
    GzipTruncated,
    /// A gzip stream is damaged, or is none.
    #[error("{0}")]
    Gzip(String),
    /// The output would exceed the bound that the caller set.
    #[error("the decompressed data exceeds max_size={max_size} bytes")]
    OutputLimit {
        /// The bound, in bytes.
        max_size: usize,
    },
    /// There is not enough memory.
    #[error("out of memory")]
    OutOfMemory,
    /// The caller, who is asked now and then, has stopped the work.
    #[error("the work was stopped")]
    Stopped,
    /// The bytes of a leaf could not be had.
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
        /// The path that was asked for.
        path: String,
    },
    /// A leaf is of another kind than what was asked for.
    #[error("the leaf is {found}, not {wanted}")]
    OtherKind {
        /// What it is.
        found: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// Leaves are not what was written, as their checksums or their headers tell.
    #[error("{}", corrupt(paths, *more))]
    Corrupt {
        /// Where they are; of very many, or below very long keys, the first.
        paths: Vec<Path>,
        /// How many more there are.
        more: usize,
    },
    /// A file was written to while it was open.
    #[error(
        "the file was overwritten in place while it was open: open it again, and let a new file \
         take its name"
    )]
    Overwritten,
    /// An error at a place in the tree.
    #[error("{error} (at {path})")]
    At {
        /// Where.
        path: Path,
        /// What.
        error: Box<Error>,
    },
}

impl Error {
    /// A [`Error::Malformed`] from anything printable.
    pub fn malformed(offset: usize, reason: impl Into<String>) -> Self {
        Self::Malformed {
            offset,
            reason: reason.into(),
        }
    }

    /// What is wrong, without the place in the input or in the tree.
    #[must_use]
    pub fn reason(&self) -> String {
        Reason(self).to_string()
    }

    /// The byte offset in the input, where there is one.
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

    /// Whether nothing is known to be wrong with the input: the caller has stopped the work, there
    /// was no memory for it, or it could not be read.
    #[must_use]
    pub fn is_no_damage(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_no_damage(),
            Self::Stopped | Self::OutOfMemory | Self::Payload(_) | Self::Io(_) => true,
            _ => false,
        }
    }

    /// Whether the data are of a newer version, and so nothing is known to be wrong with them.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_newer(),
            error => matches!(error, Self::Newer { .. }),
        }
    }

    /// The error, and the place in the tree where it happened, if that is known.
    #[must_use]
    pub fn split(self) -> (Self, Option<Path>) {
        match self {
            Self::At { path, error } => (*error, Some(path)),
            other => (other, None),
        }
    }
}

/// What is wrong, without the place, to be written anywhere.
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

fn corrupt(paths: &[Path], more: usize) -> impl fmt::Display {
    /// More are counted.
    const FEW: usize = 5;
    let few = &paths[..paths.len().min(FEW)];
    let more = more + paths.len() - few.len();
    fmt::from_fn(move |f| {
        f.write_str("leaves are not what was written: ")?;
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

/// The result of everything in the core.
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
// It is collected while a walk unwinds, so the innermost key comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// Goes one level up: `key` is what leads from there to the place so far. Where there is no
    /// memory for a key, `…` is in its place.
    pub fn push_outer(&mut self, key: impl AsRef<str>) {
        let key = grow::to_string(key.as_ref()).unwrap_or_else(|_| "…".into());
        self.0.push(key);
    }

    /// The same, or an error where there is no memory for the key.
    pub fn try_push_outer(&mut self, key: &str) -> Result<()> {
        let key = grow::to_string(key)?;
        grow::push(&mut self.0, key)
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

/// Any text is a path; the only error is that there is no memory for it.
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

/// The key that is written so in a path.
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
            // Without a copy, for which there might be no memory.
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
                .map(|it| it.to_string().parse().unwrap())
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
