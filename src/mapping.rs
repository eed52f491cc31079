//! Pages from the system: of a file, or fresh ones.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapMut};

use crate::Result;

/// Fresh pages for `len` bytes, huge ones where the system has them: one page fault for
/// 2 MiB instead of 512. Those that are not written to take no memory.
pub fn fresh_pages(len: usize) -> io::Result<MmapMut> {
    let pages = MmapMut::map_anon(len)?;
    #[cfg(target_os = "linux")]
    let _ = pages.advise(memmap2::Advice::HugePage); // nothing is lost without
    Ok(pages)
}

/// The pages of a whole file, read-only.
///
/// The mapping must not outlive the content: a file that is replaced by rename
/// (as this crate saves) keeps its old content for existing mappings, but a
/// process that *truncates* the file in place takes the pages away, and the
/// next access to them ends the program with SIGBUS. That is the nature of
/// `mmap` and of every library that offers it.
#[derive(Debug)]
pub struct Mapping(Mmap);

impl Mapping {
    /// Maps the file at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the pages are only read. Another process may write to the file
        // while they are mapped; what is read from them then is checked like any
        // other untrusted input, and payload bytes are only ever copied.
        Ok(Self(unsafe { Mmap::map(&file)? }))
    }

    /// Takes pages that have been read off this process's account until they are
    /// read again.
    ///
    /// Reading the header of an array makes all of the large page that it lies in
    /// resident, which adds up to a good part of the file without this. The large
    /// page around the start of `range` is included, since reading what comes after
    /// the start has brought back what lies before it.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        {
            /// The largest pages of the page cache on the usual machines.
            const LARGE_PAGE: usize = 2 << 20;
            let page = rustix::param::page_size();
            let start = range.start / LARGE_PAGE * LARGE_PAGE;
            let end = range.end / page * page;
            if start < end {
                // SAFETY: the mapping is read-only and backed by a file, so the
                // pages come back with the same content at the next access.
                // Advice that is refused has no effect.
                let _ = unsafe {
                    self.0.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        start,
                        end - start,
                    )
                };
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
