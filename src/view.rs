//! Reads an array of a file.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

use crate::array::{Bounds, Runs};
use crate::dtype::Dtype;
use crate::raw::{Room, Uninit, append_with};
use crate::source::{Pieces, Source, SourcePieces};
use crate::{Error, Result, grow, parallel};

/// An array of a [`File`](crate::File) whose elements are read on demand.
///
/// ```
/// use treepack::{Dtype, File, Writer};
///
/// let mut writer = Writer::new();
/// let numbers: Vec<u8> = (0..6_u16).flat_map(u16::to_le_bytes).collect();
/// writer.array("table", Dtype::U16, &[3, 2], numbers)?;
/// let mut bytes = Vec::new();
/// writer.write_to(&mut bytes)?;
///
/// let file = File::from_bytes(&bytes)?;
/// let table = file.get("table")?;
/// assert_eq!(table.shape(), [3, 2]);
/// let last = table.rows(2..3)?;
/// assert_eq!(last.shape(), [1, 2]);
/// let bytes = last.bytes()?;
/// let (elements, _) = bytes.as_chunks();
/// assert_eq!(elements.iter().map(|it| u16::from_le_bytes(*it)).sum::<u16>(), 4 + 5);
/// # Ok::<(), treepack::Error>(())
/// ```
#[derive(Clone)]
pub struct ArrayView<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) parts: Pieces,
    pub(crate) dtype: Dtype,
    pub(crate) shape: SmallVec<[usize; 6]>,
}

impl<'a> ArrayView<'a> {
    /// Returns the dtype.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the shape; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the size of all elements in bytes.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.parts.len()
    }

    /// Returns the elements in C order, little-endian. Borrows from bytes in memory; otherwise
    /// copies, since other processes may change a file.
    pub fn bytes(&self) -> Result<Cow<'a, [u8]>> {
        if let ([part], Some(memory)) = (self.parts.as_slice(), self.source.stable()) {
            return Ok(Cow::Borrowed(&memory[part.clone()]));
        }
        let mut bytes = Vec::new();
        append_with(&mut bytes, self.nbytes(), |target| self.read(target))?;
        Ok(Cow::Owned(bytes))
    }

    /// Selects rows, a range of the first dimension. Reads nothing.
    ///
    /// # Errors
    /// If the array has fewer rows.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self> {
        let count = self.shape.first().copied().unwrap_or(0);
        if rows.start > rows.end || rows.end > count || self.shape.is_empty() {
            let (start, end) = (rows.start, rows.end);
            let reason = format!(
                "rows {start} to {end} of an array of shape {:?}",
                self.shape()
            );
            return Err(Error::Option(reason));
        }
        let row = self.nbytes() / count.max(1);
        let parts = self.parts.of(rows.start * row..rows.end * row);
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Ok(Self {
            parts: Pieces::new(grow::collect(parts)?)?,
            shape,
            ..*self
        })
    }

    /// Reads a box, a range of each dimension, in C order, little-endian. Reads only the box.
    ///
    /// ```
    /// use treepack::{Dtype, File, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.array("table", Dtype::U8, &[2, 3], [1, 2, 3, 4, 5, 6])?;
    /// let mut bytes = Vec::new();
    /// writer.write_to(&mut bytes)?;
    ///
    /// let file = File::from_bytes(&bytes)?;
    /// assert_eq!(file.get("table")?.read_box(&[0..2, 1..3])?, [2, 3, 5, 6]);
    /// # Ok::<(), treepack::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] if the array does not contain the box.
    pub fn read_box(&self, ranges: &[Range<usize>]) -> Result<Vec<u8>> {
        let bounds = ranges.iter().map(|range| Bounds {
            start: range.start,
            count: range.len(),
            step: 1,
        });
        let bounds = grow::collect(bounds)?;
        match Runs::compact(&self.shape, self.dtype.itemsize(), &bounds) {
            Some(runs) if ranges.iter().all(|range| range.start <= range.end) => {
                runs.gather(self.source, &self.parts)
            }
            _ => {
                let shape = self.shape();
                Err(Error::Option(format!(
                    "the box {ranges:?} of an array of shape {shape:?}"
                )))
            }
        }
    }

    fn read<'t>(&self, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        let threads = parallel::threads(None, target.len(), parallel::MIN_COPY_BYTES)?;
        let ((), whole) = Room::share(target, |room| {
            let blocks = grow::collect(room.chunks(parallel::BLOCK).enumerate())?;
            let read = |(index, block): (usize, Room<'_>)| {
                block.fill(|block| self.copy_to(index * parallel::BLOCK, block))
            };
            parallel::for_each(blocks, threads, read, || Ok(()))
        })?;
        Ok(whole.expect("the blocks cover the memory"))
    }

    pub(crate) fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        self.in_parts().read_at(start, target)
    }

    fn in_parts(&self) -> SourcePieces<'_> {
        SourcePieces {
            source: self.source,
            parts: &self.parts,
        }
    }
}

impl fmt::Debug for ArrayView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArrayView {{ {}{:?} }}", self.dtype, self.shape())
    }
}
