//! The error type of the core, and paths into a tree.

use std::borrow::Cow;
use std::collections::TryReserveError;
use std::fmt;
use std::io;

/// Any error of the core.
///
/// `offset` is always a byte offset into the whole encoded input.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input ends inside a value.
    #[error("{} (byte {offset})", truncated(*missing))]
    Truncated {
        offset: usize,
        /// The missing bytes, at least.
        missing: u64,
    },
    /// The input violates the format.
    #[error("{reason} (byte {offset})")]
    Malformed { offset: usize, reason: String },
    /// More bytes follow the value that should fill the input.
    #[error("{reason} (byte {offset})")]
    Trailing {
        offset: usize,
        /// Their number, and the format that the input seems to have.
        reason: String,
    },
    /// The input nests containers too deep.
    #[error("{} (byte {offset})", too_deep(*limit))]
    TooDeep {
        /// Start of the first container that is too deep.
        offset: usize,
        limit: usize,
    },
    /// The tree to write is nested too deep.
    #[error("the tree is nested more than {limit} levels deep, or contains itself")]
    TreeTooDeep { limit: usize },
    /// A value is too large for the format.
    #[error(
        "{kind} of {len} bytes or elements does not fit in msgpack (at most 2**32 - 1): split it, or make it an array"
    )]
    TooLarge { kind: &'static str, len: usize },
    /// The format reserves a key of the tree.
    #[error("the key {key:?} is reserved: it marks {meaning}; choose another key")]
    ReservedKey { key: String, meaning: &'static str },
    /// An option has an invalid value, or calls came in the wrong order.
    #[error("{0}")]
    Option(String),
    /// The structure record is damaged or does not fit its tree.
    #[error("{0}")]
    Structure(String),
    /// A newer version wrote the data in an unknown form.
    #[error("{reason}: it was written by a newer treepack; upgrade treepack")]
    Newer { reason: String },
    /// A gzip stream ends early.
    #[error("compressed file ended before the end-of-stream marker was reached: copy it again")]
    GzipTruncated,
    /// A gzip stream is damaged, or the data are not gzip.
    #[error("{0}")]
    Gzip(String),
    /// The output would exceed the caller's limit.
    #[error(
        "the decompressed data exceeds max_size={max_size} bytes: pass a larger max_size=, if you trust the data"
    )]
    OutputLimit { max_size: usize },
    /// An allocation failed.
    #[error("out of memory")]
    OutOfMemory,
    /// The caller stopped the work.
    #[error("the work was stopped")]
    Stopped,
    /// The bytes of a leaf could not be read.
    #[error(transparent)]
    Payload(Box<dyn std::error::Error + Send + Sync>),
    /// A file was replaced, but may not survive a power loss.
    #[error("the new file is in place, but its directory could not be synced to the disk: {0}")]
    NotDurable(io::Error),
    /// A system call failed.
    #[error(transparent)]
    Io(io::Error),
    /// A leaf does not match its checksum.
    #[error(
        "damaged leaves: {0}; copy the file again, or read its intact leaves with `treepack salvage`"
    )]
    Corrupt(Path),
    /// A patch belongs to other data than the given base.
    #[error("the patch was made against another base: pass that one, or send the whole tree; {}: {}", if *has_none { "this one has none of the leaves" } else { "these leaves differ" }, listed(paths, *more))]
    BaseMismatch {
        /// The first leaves that are missing in the base, or differ in dtype, shape or content.
        paths: Vec<Path>,
        more: usize,
        /// Whether the base has none of the leaves.
        has_none: bool,
    },
    /// Undoing a failed patch ran out of memory.
    #[error("out of memory while undoing a failed patch: the buffer has neither tree")]
    Torn,
    /// A file was written to while it was open.
    #[error(
        "the file was overwritten in place while it was open: open it again, and replace files by \
         renaming new ones"
    )]
    Overwritten,
    /// An error at a path in the tree.
    #[error("{} ({}at {path})", Reason(error), before(error.offset()))]
    At { path: Path, error: Box<Error> },
}

impl Error {
    pub fn malformed(offset: usize, reason: impl Into<String>) -> Self {
        Self::Malformed {
            offset,
            reason: reason.into(),
        }
    }

    pub(crate) fn at(path: Path, error: Self) -> Self {
        let error = Box::new(error);
        Self::At { path, error }
    }

    /// Adds a path of one key.
    pub(crate) fn at_key(key: &str, error: Self) -> Self {
        let mut path = Path::default();
        path.push_outer(key);
        Self::at(path, error)
    }

    /// Adds a path to an error of the data.
    pub(crate) fn of_data_at(self, path: impl FnOnce() -> Path) -> Self {
        match self {
            error if error.is_no_damage() => error,
            error => Self::at(path(), error),
        }
    }

    /// The message without offset and path.
    pub fn reason(&self) -> String {
        Reason(self).to_string()
    }

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

    /// Returns whether the error is not about the input: stopped by the caller, out of memory, or a
    /// failed read.
    pub fn is_no_damage(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_no_damage(),
            Self::Stopped | Self::OutOfMemory | Self::Payload(_) | Self::Io(_) => true,
            _ => false,
        }
    }

    /// Returns whether a newer version wrote the data, which may be intact.
    pub fn is_newer(&self) -> bool {
        match self {
            Self::At { error, .. } => error.is_newer(),
            error => matches!(error, Self::Newer { .. }),
        }
    }

    /// Splits the error from its path, if it has one.
    pub fn split(self) -> (Self, Option<Path>) {
        match self {
            Self::At { path, error } => (*error, Some(path)),
            other => (other, None),
        }
    }
}

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

fn before(offset: Option<usize>) -> impl fmt::Display {
    fmt::from_fn(move |f| offset.map_or(Ok(()), |offset| write!(f, "byte {offset}, ")))
}

fn truncated(missing: u64) -> String {
    let bytes = if missing == 1 { "byte is" } else { "bytes are" };
    format!(
        "the data ends early, inside a value: at least {missing} more {bytes} needed; copy it \
         again, or read its intact leaves with `treepack salvage`"
    )
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

pub fn mismatch(expected: u32, found: u32) -> String {
    format!("checksum mismatch: expected {expected:08x}, found {found:08x}")
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

pub type Result<T> = std::result::Result<T, Error>;

/// The keys from the root of a tree to a value.
///
/// Displayed as `params/encoder/0/kernel`, and as `.` for the root. Keys are escaped as in JSON
/// Pointer (RFC 6901): `~` as `~0`, `/` as `~1`; a key `.` is written `~2`.
// Innermost key first, in the order in which a walk unwinds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// Adds an outer key, or `…` if out of memory.
    pub fn push_outer(&mut self, key: impl AsRef<str>) {
        if self.try_push_outer(key.as_ref()).is_err() {
            self.0.push("…".into());
        }
    }

    pub fn try_push_outer(&mut self, key: &str) -> Result<()> {
        let mut copy = String::new();
        copy.try_reserve_exact(key.len())?;
        copy.push_str(key);
        self.0.try_reserve(1)?;
        self.0.push(copy);
        Ok(())
    }

    /// The keys, outermost first.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().rev().map(String::as_str)
    }
}

pub fn escaped(key: &str) -> Cow<'_, str> {
    if key == "." {
        "~2".into()
    } else if key.contains(['~', '/']) {
        key.replace('~', "~0").replace('/', "~1").into()
    } else {
        key.into()
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
            // Without allocating, since memory may be exhausted.
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

    fn path_of(keys: &[&str]) -> Path {
        let mut path = Path::default();
        keys.iter().rev().for_each(|key| path.push_outer(key));
        path
    }

    #[test]
    fn keys_are_escaped_in_paths() {
        for (keys, text) in [
            (&[][..], "."),
            (&[""], ""),
            (&["", ""], "/"),
            (&["."], "~2"),
            (&["a", "~", "/", "..", "é"], "a/~0/~1/../é"),
            (&["~1", "~2", "~02", "b/~"], "~01/~02/~002/b~1~0"),
        ] {
            let path = path_of(keys);
            assert_eq!(path.to_string(), text);
            assert!(path.keys().eq(keys.iter().copied()));
        }
    }

    #[test]
    fn of_many_leaves_that_differ_few_are_shown() {
        let shown = |count: usize, more| {
            let paths = (0..count).map(|index| path_of(&[&index.to_string()]));
            let (paths, has_none) = (paths.collect(), false);
            Error::BaseMismatch {
                paths,
                more,
                has_none,
            }
            .to_string()
        };
        assert!(shown(2, 0).ends_with(": 0, 1"));
        assert!(shown(2, 1).ends_with(": 0, 1 and 1 more"));
        assert!(shown(7, 1).ends_with(": 0, 1, 2, 3, 4 and 3 more"));
    }

    #[test]
    fn errors_show_their_offset() {
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
            let error = Error::at(path_of(&["a"]), error);
            assert_eq!(error.to_string(), format!("{reason} (byte 17, at a)"));
            assert_eq!(error.reason(), reason);
        }
    }
}
