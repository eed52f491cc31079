//! Map keys as Python strings.

use pyo3::prelude::*;
use pyo3::types::PyString;
use smallvec::SmallVec;

use super::super::memory::decoded;

type CachedKey<'py> = (SmallVec<[u8; 24]>, Bound<'py, PyString>);

/// Recent map keys: layers repeat the same few.
#[derive(Default)]
pub(super) struct KeyCache<'py> {
    slots: Vec<Option<CachedKey<'py>>>,
    /// The strings that were made for the slots.
    made: usize,
}

impl<'py> KeyCache<'py> {
    const SLOTS: usize = 256;
    /// At first: to make and drop all would take a tenth of the time of a small message.
    const FIRST_SLOTS: usize = 16;
    const MAX_LEN: usize = 64;

    /// Returns the string of a key; its map has `keys` keys.
    #[inline]
    pub(super) fn get_of(
        &mut self,
        py: Python<'py>,
        text: &[u8],
        keys: u64,
    ) -> PyResult<Bound<'py, PyString>> {
        // All keys of a map differ, so a large map would only evict others.
        if keys > Self::SLOTS as u64 || text.len() > Self::MAX_LEN {
            return decoded(py, text);
        }
        if self.made == self.slots.len() && self.made < Self::SLOTS {
            let count = if self.made == 0 {
                Self::FIRST_SLOTS
            } else {
                Self::SLOTS
            };
            self.slots.clear();
            self.slots.resize_with(count, || None);
        }
        // FNV-1a. Its high bits hardly depend on the last byte, the only difference between `w0`
        // and `w1`.
        let hash = text.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        let at = hash as usize % self.slots.len();
        let slot = &mut self.slots[at];
        if let Some((known, string)) = slot
            && known[..] == *text
        {
            return Ok(string.clone());
        }
        let string = decoded(py, text)?;
        self.made += 1;
        *slot = Some((SmallVec::from_slice(text), string.clone()));
        Ok(string)
    }
}
