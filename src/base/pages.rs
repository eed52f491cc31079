//! Fresh pages.
#![allow(unsafe_code)]

use std::io;

use memmap2::MmapMut;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::base::raw::{AsRaw, Fill, Filling, RawBytes, Uninit};
use crate::base::source::{Source, in_memory};
use crate::{Error, Result};

/// Allocates `len` zero bytes, in huge pages where possible: one page fault per 2 MiB, not 512.
/// Untouched pages take no memory.
pub(crate) fn fresh_pages(len: usize) -> io::Result<MmapMut> {
    let pages = MmapMut::map_anon(len)?;
    #[cfg(all(target_os = "linux", not(miri)))]
    let _ = pages.advise(memmap2::Advice::HugePage); // optional
    Ok(pages)
}

/// Returns pages to the system. Their content is lost.
#[cfg(all(unix, not(target_vendor = "apple")))]
pub(crate) const GIVE_BACK: UncheckedAdvice = UncheckedAdvice::DontNeed;
#[cfg(target_vendor = "apple")]
pub(crate) const GIVE_BACK: UncheckedAdvice = UncheckedAdvice::Free;

/// Fresh pages that grow without a copy.
#[derive(Debug)]
pub struct Pages {
    pages: MmapMut,
    len: usize,
}

impl Pages {
    const MIN_BYTES: usize = 1 << 20;

    pub fn with_room(expected: usize) -> Result<Self> {
        let pages = fresh_pages(expected.max(Self::MIN_BYTES));
        let pages = pages.map_err(|_| Error::OutOfMemory)?;
        Ok(Self { pages, len: 0 })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn room(&mut self, least: usize) -> Result<&mut [u8]> {
        let needed = self.len.checked_add(least).ok_or(Error::OutOfMemory)?;
        if needed > self.pages.len() {
            // Untouched pages cost only addresses.
            self.grow(needed.max(self.pages.len() / 2 * 3))?;
        }
        Ok(&mut self.pages[self.len..])
    }

    /// Appends the first `bytes` bytes of the room to the content.
    ///
    /// # Panics
    /// If the room is smaller.
    pub fn add(&mut self, bytes: usize) {
        assert!(bytes <= self.pages.len() - self.len);
        self.len += bytes;
    }

    #[cfg(target_os = "linux")]
    fn grow(&mut self, len: usize) -> Result<()> {
        let options = memmap2::RemapOptions::new().may_move(true);
        // SAFETY: `self` owns the pages and is borrowed mutably, so no pointer to them is left.
        // They are anonymous, so no file can end before them.
        let grown = unsafe { self.pages.remap(len, options) };
        // The system may name another cause.
        grown.map_err(|_| Error::OutOfMemory)
    }

    #[cfg(not(target_os = "linux"))]
    fn grow(&mut self, len: usize) -> Result<()> {
        let mut pages = fresh_pages(len).map_err(|_| Error::OutOfMemory)?;
        pages[..self.len].copy_from_slice(&self.pages[..self.len]);
        self.pages = pages;
        Ok(())
    }

    /// Appends the `len` bytes that `fill` writes and returns, all or none.
    ///
    /// # Panics
    /// If `fill` returns other bytes.
    pub(crate) fn fill(&mut self, len: usize, fill: impl Fill) -> Result<()> {
        let room = &mut self.room(len)?[..len];
        // SAFETY: `u8` and `MaybeUninit<u8>` have the same layout, and no code in this crate
        // uninitialises bytes.
        let room = unsafe { &mut *(std::ptr::from_mut(room) as *mut Uninit) };
        Filling::new(room).fill(len, fill)?;
        self.add(len);
        Ok(())
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.pages[..self.len]
    }

    /// Returns the pages of the first `done` bytes to the system, except on Windows.
    pub fn forget(&mut self, done: usize) {
        #[cfg(unix)]
        {
            let end = done.min(self.len) / rustix::param::page_size() * rustix::param::page_size();
            // SAFETY: `self` owns the pages, and no pointer to them is left.
            let _ = unsafe { self.pages.unchecked_advise_range(GIVE_BACK, 0, end) };
        }
        #[cfg(not(unix))]
        let _ = done;
    }
}

impl AsRaw for Pages {
    fn as_raw(&self) -> RawBytes<'_> {
        self.as_slice().into()
    }
}

in_memory!(Pages: as_slice,);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "its memory")]
    fn pages_have_what_was_filled() {
        let mut pages = Pages::with_room(9).unwrap();
        let _ = pages.fill(3, |part| Ok(part[..2].write_copy_of_slice(b"ab")));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn pages_grow_with_their_content() {
        let mut pages = Pages::with_room(0).unwrap();
        let mut expected = Vec::new();
        for part in [1, 1 << 20, 3 << 20, 7] {
            let room = pages.room(part).unwrap();
            room[..part].fill(u8::try_from(part % 251).unwrap());
            pages.add(part);
            expected.resize(expected.len() + part, u8::try_from(part % 251).unwrap());
        }
        assert!(pages.as_slice() == expected);
        pages.forget(expected.len() - 1);
        assert_eq!(pages.as_slice()[expected.len() - 1], 7);
        if cfg!(target_os = "linux") {
            assert_eq!(pages.as_slice()[0], 0);
        }
        assert!(matches!(pages.room(usize::MAX), Err(Error::OutOfMemory)));
        assert!(matches!(
            pages.room(usize::MAX / 4),
            Err(Error::OutOfMemory)
        ));
    }
}
