//! The one error type of the core: what is wrong, and at which byte of the input.

use std::io;

/// Everything that can go wrong in the core.
///
/// `offset` is always a byte offset into the whole encoded input.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input ends inside a value.
    #[error("the data ends inside a value: at least {missing} more bytes are needed")]
    Truncated {
        /// Where the value that does not fit begins.
        offset: usize,
        /// How many bytes are missing, at the least.
        missing: u64,
    },
    /// The input is not what the format allows at this place.
    #[error("{reason}")]
    Malformed {
        /// Where the offending value begins.
        offset: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Containers are nested deeper than [`crate::wire::MAX_DEPTH`].
    #[error(
        "containers are nested more than {} levels deep",
        crate::wire::MAX_DEPTH
    )]
    TooDeep {
        /// Where the container that is one too deep begins.
        offset: usize,
    },
    /// A value is too large for the format.
    #[error("{what} of {len} bytes or elements does not fit in msgpack (at most 2**32 - 1)")]
    TooLarge {
        /// The kind of value.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// An option has a value that is not allowed.
    #[error("{0}")]
    Option(String),
    /// The record of a structure is damaged, or does not fit its tree.
    #[error("{0}")]
    Structure(String),
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
    /// The caller, who is told of the progress, has stopped the work.
    #[error("the work was stopped")]
    Stopped,
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Error {
    /// A [`Error::Malformed`] from anything printable.
    pub fn malformed(offset: usize, reason: impl Into<String>) -> Self {
        Self::Malformed {
            offset,
            reason: reason.into(),
        }
    }

    /// The byte offset in the input, where there is one.
    #[must_use]
    pub fn offset(&self) -> Option<usize> {
        match self {
            Self::Truncated { offset, .. }
            | Self::Malformed { offset, .. }
            | Self::TooDeep { offset } => Some(*offset),
            _ => None,
        }
    }
}

/// The result of everything in the core.
pub type Result<T> = std::result::Result<T, Error>;
