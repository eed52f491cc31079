//! Reads headers and short texts from a source, never past its end.
//!
//! It parses copies: of 16 bytes of memory at a time, or of a window of another source. So no byte
//! changes between check and use.

use std::ops::Range;

use crate::base::raw::RawBytes;
use crate::base::source::{Source, bytes_of, missing, read_to};
use crate::format::wire::Head;
use crate::{Error, Result};

/// The first window after a jump: enough for a key and the headers of an array, and cheap to read
/// from a disk. Sequential reads double it.
const MIN_WINDOW: usize = 512;
const MAX_WINDOW: usize = 1 << 20;

/// A shorter jump is read through, which is cheaper than another disk request.
const NEAR_BYTES: usize = 16 << 10;

pub const AHEAD: usize = 32;

/// A position in encoded bytes.
///
/// Checks every length against the bytes left, so that callers may allocate for it.
pub struct Cursor<'a> {
    source: &'a dyn Source,
    /// All of the source, if it is in memory.
    memory: Option<RawBytes<'a>>,
    /// Otherwise a copy of a part, and its offset.
    window: Vec<u8>,
    window_start: usize,
    position: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(source: &'a dyn Source) -> Self {
        Self::within(source, 0..source.len())
    }

    /// # Panics
    /// If the part exceeds the source.
    pub fn within(source: &'a dyn Source, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= source.len());
        Self {
            source,
            memory: source.memory(),
            window: Vec::new(),
            window_start: 0,
            position: part.start,
            end: part.end,
        }
    }

    /// Moves to another part; keeps the window if it is near.
    ///
    /// # Panics
    /// If the part exceeds the source.
    pub fn seek(&mut self, part: Range<usize>) {
        assert!(part.start <= part.end && part.end <= self.source.len());
        (self.position, self.end) = (part.start, part.end);
    }

    #[inline]
    pub fn offset(&self) -> usize {
        self.position
    }

    #[inline]
    pub fn left(&self) -> usize {
        self.end - self.position
    }

    pub fn finish(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(Error::Trailing {
                offset: self.position,
                reason: format!(
                    "{left} trailing byte{} after the end of the value: something was added before or \
                     after it, or line ends were changed; copy the file again, in binary mode, and \
                     of a longer buffer, pass only the value's bytes",
                    if left == 1 { "" } else { "s" }
                ),
            }),
        }
    }

    /// Checks that the value's bytes or elements can follow.
    pub fn head(&mut self) -> Result<Head> {
        self.head_inlined()
    }

    /// [`head`](Self::head), inlined where a call would be too slow.
    #[inline(always)]
    pub fn head_inlined(&mut self) -> Result<Head> {
        let bytes = self.peek()?;
        let left = self.left();
        let (head, width) = match Head::read(&bytes, left) {
            Ok(header) => header,
            Err(width) => return Err(self.no_head(width)),
        };
        // Each element takes at least one byte, which bounds the count.
        let least = match head {
            Head::Str(len) | Head::Bin(len) | Head::Ext(_, len) | Head::Array(len) => len.into(),
            Head::Map(pairs) => 2 * u64::from(pairs),
            _ => 0,
        };
        let room = (left - width) as u64;
        if least > room {
            return Err(Error::Truncated {
                offset: self.position,
                missing: least - room,
            });
        }
        if matches!(head, Head::Array(_) | Head::Map(_)) && self.memory.is_none() {
            self.check_present(least)?;
        }
        self.position += width;
        Ok(head)
    }

    /// Does not fail where the source is incomplete.
    fn check_present(&self, least: u64) -> Result<()> {
        let present = self.source.present(self.position..self.end) as u64;
        match least.checked_sub(present) {
            Some(missing @ 1..) => Err(Error::Truncated {
                offset: self.position,
                missing,
            }),
            _ => Ok(()),
        }
    }

    #[cold]
    fn no_head(&self, width: usize) -> Error {
        match width {
            0 => Error::malformed(self.position, "byte 0xc1 does not start a msgpack value"),
            _ => Error::Truncated {
                offset: self.position,
                missing: (width - self.left()) as u64,
            },
        }
    }

    /// `head` must have checked `len`.
    #[inline]
    pub fn skip(&mut self, len: usize) {
        debug_assert!(len <= self.left());
        self.position += len;
    }

    /// `head` must have checked `len`.
    #[inline]
    pub fn read(&mut self, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let from = self.position;
        match self.memory {
            Some(memory) => memory.slice(from..from + len).append_to(out)?,
            None if len <= MIN_WINDOW => {
                self.look(len)?;
                let at = from - self.window_start;
                out.try_reserve(len)?;
                out.extend_from_slice(&self.window[at..at + len]);
            }
            None => read_to(self.source, from..from + len, out)?,
        }
        self.position += len;
        Ok(())
    }

    pub fn copy(&self, range: Range<usize>) -> Result<Vec<u8>> {
        bytes_of(self.source, range)
    }

    /// `None` near the end of the source or the window.
    #[inline]
    pub fn ahead(&self) -> Option<[u8; AHEAD]> {
        if let Some(memory) = self.memory {
            return memory.load(self.position);
        }
        let window = self.position.checked_sub(self.window_start);
        let window = window.and_then(|at| self.window.get(at..));
        window.and_then(<[u8]>::first_chunk).copied()
    }

    /// Skips an expected string if it is short and not near the end: much cheaper than reading it.
    #[inline]
    pub fn skip_text(&mut self, text: &str) -> bool {
        let Some(ahead) = self.ahead() else {
            return false;
        };
        let head = match ahead {
            [0xd9, len, ..] if usize::from(len) == text.len() => 2,
            [fixed @ 0xa0..=0xbf, ..] if usize::from(fixed & 0x1f) == text.len() => 1,
            _ => return false,
        };
        let end = head + text.len();
        let is_same = ahead.get(head..end) == Some(text.as_bytes()) && end <= self.left();
        if is_same {
            self.position += end;
        }
        is_same
    }

    /// Ends the input `len` bytes after this position, and returns its previous end.
    pub fn limit(&mut self, len: usize) -> usize {
        debug_assert!(len <= self.left());
        std::mem::replace(&mut self.end, self.position + len)
    }

    pub fn unlimit(&mut self, end: usize) {
        self.end = end;
    }

    /// Zeros past the end.
    #[inline]
    fn peek(&mut self) -> Result<[u8; 16]> {
        match self.memory.and_then(|memory| memory.load(self.position)) {
            Some(bytes) => Ok(bytes),
            None => self.peek_slowly(),
        }
    }

    #[inline(never)]
    fn peek_slowly(&mut self) -> Result<[u8; 16]> {
        let mut bytes = [0; 16];
        let left = (self.source.len() - self.position).min(bytes.len());
        let len = left.min(self.source.run(self.position));
        let len = match self.source.at_hand(self.position) {
            0 => len, // within an array
            at_hand => len.min(at_hand),
        };
        if let Some(memory) = self.memory {
            for (at, byte) in bytes[..len].iter_mut().enumerate() {
                [*byte] = memory.load(self.position + at).unwrap_or_default();
            }
        } else {
            self.look(len)?;
            bytes[..len].copy_from_slice(&self.window[self.position - self.window_start..][..len]);
        }
        if len < left && Head::read(&bytes, len).is_err_and(|width| width > len) {
            return Err(missing(self.position + len));
        }
        Ok(bytes)
    }

    fn look(&mut self, len: usize) -> Result<()> {
        let window_end = self.window_start + self.window.len();
        let inside = self.window_start <= self.position && self.position <= window_end;
        if inside && len <= window_end - self.position {
            return Ok(());
        }
        let is_near = inside
            || (window_end > 0 && (window_end..=window_end + NEAR_BYTES).contains(&self.position));
        let size = if is_near {
            (2 * self.window.len()).clamp(MIN_WINDOW, MAX_WINDOW)
        } else {
            MIN_WINDOW
        };
        let run = self.source.run(self.position);
        if len > run {
            return Err(missing(self.position + run));
        }
        let size = size
            .min(run.min(self.source.at_hand(self.position)))
            .max(len);
        self.window.clear();
        self.window_start = self.position;
        read_to(
            self.source,
            self.position..self.position + size,
            &mut self.window,
        )
    }
}
