//! Mapped files.
#![allow(unsafe_code)]

use std::fs::File;
#[cfg(target_os = "linux")]
use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(target_os = "linux")]
use memmap2::UncheckedAdvice;
use memmap2::{Mmap, MmapOptions};

use crate::base::parallel;
#[cfg(any(target_os = "linux", not(unix)))]
use crate::base::raw::zeroed;
use crate::base::raw::{Filling, RawBytes, Uninit};
use crate::base::source::Source;
use crate::base::system;
pub use crate::files::handle::open;
use crate::files::handle::{Handle, open_regular};
use crate::{Error, Result};

/// An open file, mapped unless its file system (FUSE with direct I/O) or an address limit forbids
/// it.
///
/// As a [`Source`] it reads the file, so that headers make no pages resident.
///
/// Truncating the file in place ends the program with SIGBUS.
#[derive(Debug)]
pub struct Mapping {
    file: Handle,
    len: usize,
    pages: Option<Mmap>,
    #[cfg(target_os = "linux")]
    metadata: Metadata,
    #[cfg(target_os = "linux")]
    last_cold: LastCold,
}

impl Mapping {
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path)?;
        let metadata = system::repeated(|| file.metadata())?;
        let len = usize::try_from(metadata.len()).map_err(|_| Error::OutOfMemory)?;
        let mut options = MmapOptions::new();
        options.len(len);
        // Some file systems allow only private mappings. On Windows those take memory for all
        // pages. SAFETY: the pages are only lent as `RawBytes`, whose content may change.
        let pages = unsafe {
            if cfg!(unix) {
                options.map_copy_read_only(&file)
            } else {
                options.map(&file)
            }
        };
        Ok(Self {
            file: Handle::new(file, path)?,
            len,
            pages: pages.ok(),
            #[cfg(target_os = "linux")]
            metadata,
            #[cfg(target_os = "linux")]
            last_cold: LastCold(AtomicUsize::new(usize::MAX)),
        })
    }

    /// Fails if the file's size or time has changed since it was opened.
    #[cfg(target_os = "linux")]
    pub fn check_unchanged(&self) -> Result<()> {
        let Some(file) = self.file.kept() else {
            return Ok(());
        };
        let now = system::repeated(|| file.metadata())?;
        let is_same =
            now.len() == self.metadata.len() && now.modified()? == self.metadata.modified()?;
        if is_same {
            Ok(())
        } else {
            Err(Error::Overwritten)
        }
    }

    #[cfg(not(target_os = "linux"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)] // as on Linux
    pub fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }

    pub fn prefetch(&self, ranges: Vec<Range<usize>>) {
        #[cfg(target_os = "linux")]
        for range in ranges {
            let Some(len) = std::num::NonZero::new(range.len() as u64) else {
                continue;
            };
            if let Some(file) = self.file.kept() {
                let advice = rustix::fs::Advice::WillNeed;
                let _ = rustix::fs::fadvise(file, range.start as u64, Some(len), advice);
            } else if let Some(pages) = &self.pages {
                let advice = memmap2::Advice::WillNeed;
                let _ = pages.advise_range(advice, range.start, range.len());
            }
        }
        #[cfg(not(target_os = "linux"))]
        drop(ranges);
    }

    /// `prefetch` in another thread. Afterwards, page faults no longer read neighbouring pages.
    pub fn prefetch_only(self: &Arc<Self>, ranges: Vec<Range<usize>>) {
        #[cfg(target_os = "linux")]
        let _ = (self.pages.as_ref()).map(|pages| pages.advise(memmap2::Advice::Random));
        let mapping = self.clone();
        // Without a thread, pages are read on use.
        parallel::spawn(move || mapping.prefetch(ranges));
    }

    /// [`read_at`] that notes reads which had to wait for the disk.
    #[cfg(target_os = "linux")]
    fn read_headers<'t>(
        &self,
        file: &File,
        offset: usize,
        target: &'t mut Uninit,
    ) -> Result<&'t mut [u8]> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        let mut filling = Filling::new(target);
        let mut is_cold = false;
        let resident = filling.fill_some(|target| {
            let bytes = zeroed(target);
            let mut target = [io::IoSliceMut::new(bytes)];
            match preadv2(file, &mut target, offset as u64, ReadWriteFlags::NOWAIT) {
                Ok(read) => Ok(&mut bytes[..read]),
                Err(error) => {
                    is_cold = error == Errno::AGAIN;
                    Ok(&mut [])
                }
            }
        })?;
        let read = read_on(file, offset + resident, filling)?;
        if is_cold {
            self.last_cold.note(file, offset);
        }
        Ok(read)
    }

    /// Drops the pages from resident memory until the next access.
    pub fn release(&self) {
        #[cfg(target_os = "linux")]
        if let Some(pages) = &self.pages {
            // SAFETY: the mapping is read-only and backed by a file, so the next access finds the
            // same content. Refused advice has no effect.
            let _ = unsafe { pages.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    pub fn pages(&self) -> Option<RawBytes<'_>> {
        // SAFETY: the pages stay mapped as long as `self`. Other processes may write to them.
        let raw = |pages: &Mmap| unsafe { RawBytes::new(pages.as_ptr(), pages.len()) };
        self.pages.as_ref().map(raw)
    }
}

/// Longer reads are not headers.
#[cfg(target_os = "linux")]
const MOST_OF_HEADERS: usize = 4 << 10;

/// The last short read of a mapped file that waited for the disk.
///
/// A mapping reads ahead in large blocks, but single pages near cached ones: fourteen times as many
/// page faults.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct LastCold(AtomicUsize);

#[cfg(target_os = "linux")]
impl LastCold {
    /// Nearer reads are of small arrays, whose pages are used again.
    const FAR: usize = 1 << 20;

    fn note(&self, file: &File, offset: usize) {
        let last = self.0.swap(offset, Ordering::Relaxed);
        if last != usize::MAX && last.abs_diff(offset) >= Self::FAR {
            let page = rustix::param::page_size();
            let start = last / page * page;
            let len = std::num::NonZero::new(2 * page.max(MOST_OF_HEADERS) as u64);
            let advice = rustix::fs::Advice::DontNeed;
            let _ = rustix::fs::fadvise(file, start as u64, len, advice);
        }
    }
}

impl Source for Mapping {
    fn len(&self) -> usize {
        self.len
    }

    fn read_at<'t>(&self, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        match self.file.opened(target.len()) {
            #[cfg(target_os = "linux")]
            Some(file) if target.len() <= MOST_OF_HEADERS => {
                self.read_headers(&file, offset, target)
            }
            Some(file) => read_at(&file, offset, target),
            None => match self.pages() {
                Some(pages) => pages.read_at(offset, target),
                None => Err(io::Error::other(
                    "the file was replaced while too many open files kept it closed: open it again, \
                     or raise `ulimit -n`",
                )
                .into()),
            },
        }
    }

    fn near(&self) -> usize {
        4 << 10 // copied in the time of a call
    }
}

pub fn read_at<'t>(file: &File, offset: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
    read_on(file, offset, Filling::new(target))
}

fn read_on<'t>(file: &File, offset: usize, mut filling: Filling<'t>) -> Result<&'t mut [u8]> {
    let mut offset = offset as u64;
    while filling.left() > 0 {
        let missing = filling.left() as u64;
        let read = filling.fill_some(|target| match read_some(file, target, offset) {
            Ok([]) => Err(Error::Truncated {
                offset: usize::try_from(offset).unwrap_or(usize::MAX),
                missing,
            }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(&mut []),
            read => Ok(read?),
        })?;
        offset += read as u64;
    }
    Ok(filling.finish())
}

#[cfg(unix)]
fn read_some<'t>(file: &File, target: &'t mut Uninit, offset: u64) -> io::Result<&'t mut [u8]> {
    Ok(rustix::io::pread(file, target, offset)?.0)
}

#[cfg(not(unix))]
fn read_some<'t>(file: &File, target: &'t mut Uninit, offset: u64) -> io::Result<&'t mut [u8]> {
    const MOST: usize = 1 << 20;
    let len = target.len().min(MOST);
    let target = zeroed(&mut target[..len]);
    let read = std::os::windows::fs::FileExt::seek_read(file, target, offset)?;
    Ok(&mut target[..read])
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::thread;

    use super::*;

    #[cfg(unix)] // elsewhere it cannot be replaced
    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn headers_are_of_the_file_that_is_mapped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        std::fs::write(&path, b"old").unwrap();
        let mapping = Mapping::open(&path).unwrap();
        let other = directory.path().join("other");
        std::fs::write(&other, b"new").unwrap();
        std::fs::rename(&other, &path).unwrap();
        let mut bytes = [MaybeUninit::uninit(); 3];
        assert_eq!(mapping.read_at(0, &mut bytes).unwrap(), b"old");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn what_is_mapped_is_the_file_and_may_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        std::fs::write(&path, b"content").unwrap();
        let mapping = Mapping::open(&path).unwrap();
        assert_eq!(mapping.pages().unwrap().len(), 7);
        assert!(mapping.stable().is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn threads_read_one_file_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        let content: Vec<u8> = (0..=255).flat_map(|number| [number; 256]).collect();
        std::fs::write(&path, content).unwrap();
        let file = open(&path).unwrap();
        thread::scope(|scope| {
            for first in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    for number in (first..256).step_by(4) {
                        let mut room = [MaybeUninit::uninit(); 256];
                        let bytes = read_at(file, number * 256, &mut room).unwrap();
                        assert!(bytes.iter().all(|&byte| usize::from(byte) == number));
                    }
                });
            }
        });
        let mut room = [MaybeUninit::uninit(); 2];
        let beyond = read_at(&file, (1 << 16) - 1, &mut room);
        assert!(matches!(beyond, Err(Error::Truncated { missing: 1, .. })));
    }
}
