//! Opens files, within the process's limit of open files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::base::system::repeated;
use crate::{Error, Result};

static KEPT: AtomicUsize = AtomicUsize::new(0);

/// A mapped file: kept open, or beyond a limit reopened for each read. It has no lock, which a fork
/// could inherit held.
#[derive(Debug)]
pub struct Handle {
    file: Option<Arc<File>>,
    is_random: AtomicBool,
    path: PathBuf,
    id: Id,
}

impl Handle {
    pub fn new(file: File, path: &Path) -> io::Result<Self> {
        let id = Id::of(&file)?;
        let kept = KEPT.fetch_add(1, Ordering::Relaxed);
        let mut made = Self {
            file: Some(Arc::new(file)),
            is_random: AtomicBool::new(false),
            // The program may change its working directory.
            path: std::path::absolute(path).unwrap_or_else(|_| path.into()),
            id,
        };
        if kept >= most_kept() {
            made.close();
        }
        Ok(made)
    }

    #[cfg(target_os = "linux")]
    pub fn kept(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// The file, for a read of `bytes`; `None` if it was replaced, or cannot be opened.
    pub fn opened(&self, bytes: usize) -> Option<Arc<File>> {
        /// Longer reads are not headers.
        const MOST: usize = 64 << 10;
        // Headers are scattered, so reading ahead would be wasted.
        let is_random = bytes <= MOST;
        if let Some(file) = &self.file {
            if self.is_random.swap(is_random, Ordering::Relaxed) != is_random {
                advise(file, is_random);
            }
            return Some(file.clone());
        }
        let file = open(&self.path).ok()?;
        if Id::of(&file).ok()? != self.id {
            return None;
        }
        if is_random {
            advise(&file, true);
        }
        Some(Arc::new(file))
    }

    fn close(&mut self) {
        if self.file.take().is_some() {
            KEPT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

/// Opens a file for reading, and a pipe without waiting for its writer.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    options.read(true).open(path)
}

pub fn open_regular(path: &Path) -> Result<File> {
    let file = open(path)?;
    if repeated(|| file.metadata())?.is_file() {
        return Ok(file);
    }
    let path = path.display();
    Err(Error::Structure(format!("{path} is not a regular file")))
}

fn advise(file: &File, is_random: bool) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::Advice;
        let advice = if is_random {
            Advice::Random
        } else {
            Advice::Normal
        };
        // Refused advice is harmless.
        let _ = rustix::fs::fadvise(file, 0, None, advice);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, is_random);
}

/// Half of the process's limit of open files.
#[cfg(unix)]
fn most_kept() -> usize {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current;
    let most = limit.map(|limit| usize::try_from(limit / 2).unwrap_or(usize::MAX));
    most.unwrap_or(usize::MAX)
}

#[cfg(not(unix))]
fn most_kept() -> usize {
    1 << 14 // a process may have a thousand times as many
}

/// The identity of a file, whatever its name.
#[derive(Debug, PartialEq, Eq)]
pub struct Id(u64, u64);

#[cfg(unix)]
impl Id {
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::in_metadata(&repeated(|| file.metadata())?))
    }

    /// Does not follow a symbolic link.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::in_metadata(&repeated(|| {
            std::fs::symlink_metadata(path)
        })?))
    }

    fn in_metadata(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(metadata.dev(), metadata.ino())
    }
}

#[cfg(windows)]
impl Id {
    pub fn of(file: &File) -> io::Result<Self> {
        let information = winapi_util::file::information(file)?;
        Ok(Self(
            information.volume_serial_number(),
            information.file_index(),
        ))
    }

    /// Does not follow a symbolic link.
    pub fn at(path: &Path) -> io::Result<Self> {
        use std::os::windows::fs::OpenOptionsExt;
        const NO_ACCESS: u32 = 0;
        const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
        let mut options = File::options();
        options.access_mode(NO_ACCESS);
        Self::of(&options.custom_flags(OPEN_REPARSE_POINT).open(path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_same_length_are_distinguished() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("1"), directory.path().join("2"));
        std::fs::write(&one, "same").unwrap();
        std::fs::write(&other, "same").unwrap();
        let file = File::open(&one).unwrap();
        assert_ne!(Id::of(&file).unwrap(), Id::at(&other).unwrap());
        let id = Id::of(&file).unwrap();
        let renamed = directory.path().join("3");
        std::fs::rename(&one, &renamed).unwrap();
        assert_eq!(id, Id::at(&renamed).unwrap());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn a_file_that_was_closed_is_read_again_unless_it_was_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        std::fs::write(&path, "old").unwrap();
        let mut handle = Handle::new(File::open(&path).unwrap(), &path).unwrap();
        handle.close();
        assert!(handle.file.is_none());
        assert!(handle.opened(1).is_some(), "it is opened again");
        let other = directory.path().join("other");
        std::fs::write(&other, "new").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert!(handle.opened(1).is_none());
    }
}
