//! Reading headers and short texts one by one from a source, never past its end.
//!
//! What is parsed is a copy: of 16 bytes of memory at a time, or of a window of a source that
//! does not lie in memory. So nothing changes between its check and its use.

use std::ops::Range;

use crate::raw::RawBytes;
use crate::source::{Source, missing, read_to};
use crate::wire::Head;
use crate::{Error, Result};

/// The first window after a jump: enough for a key and the headers of an array, and little to be
/// read from a disk. Reading on doubles it.
const MIN_WINDOW: usize = 512;
const MAX_WINDOW: usize = 1 << 20;

/// A jump over fewer bytes is read through: so many cost less than another request to a disk.
const NEAR_BYTES: usize = 16 << 10;

/// How many bytes [`Cursor::ahead`] shows.
pub const AHEAD: usize = 32;

/// A position in encoded bytes.
///
/// Every length is checked against what is left before it is believed, so that
/// a caller may allocate for it.
pub struct Cursor<'a> {
    source: &'a dyn Source,
    /// All of the source, if it lies in memory.
    memory: Option<RawBytes<'a>>,
    /// A copy of a part of it otherwise, and where that begins.
    window: Vec<u8>,
    window_start: usize,
    position: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of the source.
    #[must_use]
    pub fn new(source: &'a dyn Source) -> Self {
        Self::within(source, 0..source.len())
    }

    /// A cursor over a part of a source.
    ///
    /// # Panics
    /// If the source ends before.
    #[must_use]
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

    /// Goes to another part of the source; what is near is not read once more.
    ///
    /// # Panics
    /// If the source ends before.
    pub fn seek(&mut self, part: Range<usize>) {
        assert!(part.start <= part.end && part.end <= self.source.len());
        (self.position, self.end) = (part.start, part.end);
    }

    /// The offset of the next byte.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> usize {
        self.position
    }

    /// How many bytes are left.
    #[inline]
    #[must_use]
    pub fn left(&self) -> usize {
        self.end - self.position
    }

    /// Errors unless everything has been read.
    pub fn finish(&self) -> Result<()> {
        match self.left() {
            0 => Ok(()),
            left => Err(Error::Trailing {
                offset: self.position,
                reason: format!("{left} trailing bytes after the end of the value"),
            }),
        }
    }

    /// Reads the header of the next value, after which come its bytes or elements, and checks
    /// that there is room for them.
    pub fn head(&mut self) -> Result<Head> {
        self.head_inlined()
    }

    /// The same, for where it matters that nothing is called.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn head_inlined(&mut self) -> Result<Head> {
        let bytes = self.peek()?;
        let left = self.left();
        let (head, width) = match Head::read(&bytes, left) {
            Ok(found) => found,
            Err(width) => return Err(self.no_head(width)),
        };
        // An element takes at least one byte, so a count beyond what is left is a lie.
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

    /// Errors if there are not so many bytes left apart from what is missing.
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
            0 => Error::malformed(self.position, "byte 0xc1 starts no msgpack value"),
            _ => Error::Truncated {
                offset: self.position,
                missing: (width - self.left()) as u64,
            },
        }
    }

    /// Goes past the next `len` bytes, which `head` has found to be there.
    #[inline]
    pub fn skip(&mut self, len: usize) {
        debug_assert!(len <= self.left());
        self.position += len;
    }

    /// Appends the next `len` bytes, which `head` has found to be there, to `out`.
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

    /// A copy of the next bytes, unless the end is near, or that of the window.
    #[inline]
    #[must_use]
    pub fn ahead(&self) -> Option<[u8; AHEAD]> {
        if let Some(memory) = self.memory {
            return memory.load(self.position);
        }
        let window = self.position.checked_sub(self.window_start);
        let window = window.and_then(|at| self.window.get(at..));
        window.and_then(<[u8]>::first_chunk).copied()
    }

    /// Goes past a string if it is this one, short and not near the end: much less than to read it.
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

    /// Lets the input end `len` bytes after this position, and returns where it ended before.
    pub fn limit(&mut self, len: usize) -> usize {
        debug_assert!(len <= self.left());
        std::mem::replace(&mut self.end, self.position + len)
    }

    /// Lets the input end where it did before.
    pub fn unlimit(&mut self, end: usize) {
        self.end = end;
    }

    /// The next 16 bytes, or what there is of them and zeros.
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

    /// Moves the window, if it does not hold the next `len` bytes.
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
        let size = size.max(len).min(run);
        self.window.clear();
        self.window_start = self.position;
        read_to(
            self.source,
            self.position..self.position + size,
            &mut self.window,
        )
    }
}
