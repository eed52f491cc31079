//! Replaces a file atomically: a complete temporary file in the same directory is renamed over it,
//! if `durable` after it is on the disk.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::thread;
#[cfg(unix)]
use std::time::Duration;

use tempfile::NamedTempFile;

use super::output::Output;
use super::temporary::{self, directory_of};
use crate::base::system::{self, repeated};
use crate::base::watch::Watch;
use crate::{Error, Result, base::parallel};

/// Replaces `path` atomically with the output of `write`; returns the number of bytes. If `durable`,
/// the file then survives a power loss; otherwise only a crash of the process.
///
/// Reserves room for the expected `size`; 0 if unknown. Creates missing directories and follows a
/// symbolic link. Writes directly to pipes and devices, which cannot be replaced.
pub fn replace_file(
    path: &Path,
    durable: bool,
    size: usize,
    watch: &dyn Watch,
    write: impl FnOnce(&mut Output<'_>) -> Result<()>,
) -> Result<u64> {
    if repeated(|| fs::metadata(path)).is_ok_and(|metadata| !metadata.is_file()) {
        return write_pipe(&open_pipe(path, watch)?, watch, write);
    }
    let replacement = Replacement::begin(path, false)?;
    let write = || {
        preallocate(replacement.file(), size, watch)?;
        let mut output = Output::new(replacement.file(), false, durable, watch);
        write(&mut output)?;
        output.finish()
    };
    match write() {
        Ok(written) => replacement.complete(durable, watch).map(|()| written),
        Err(error) => Err(replacement.discard(error, watch)),
    }
}

pub struct Replacement {
    temporary: NamedTempFile,
    path: PathBuf,
    old: Option<fs::Metadata>,
    new_directories: Vec<PathBuf>,
}

impl Replacement {
    /// Creates a temporary file beside `path`, and missing directories. Follows a symbolic link.
    /// With `private`, or if there is an old file, only the owner can open it.
    pub fn begin(path: &Path, private: bool) -> Result<Self> {
        let new_directories = make_directories(directory_of(path))?;
        let (path, old) = destination(path)?;
        let name = path
            .file_name()
            .ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
        let temporary = temporary::create(directory_of(&path), name, private || old.is_some())?;
        Ok(Self {
            temporary,
            path,
            old,
            new_directories,
        })
    }

    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    pub fn place(&self) -> &Path {
        self.temporary.path()
    }

    /// Removes the temporary file.
    pub fn abandon(self) {
        temporary::remove(self.place());
    }

    pub fn complete(self, durable: bool, watch: &dyn Watch) -> Result<()> {
        if let Err(error) = self.seal(durable, watch) {
            return Err(self.discard(error, watch));
        }
        temporary::persist(self.temporary, &self.path)?;
        if durable {
            sync_directory(directory_of(&self.path)).map_err(Error::NotDurable)?;
            for directory in self.new_directories {
                sync_directory(&directory).map_err(Error::NotDurable)?;
            }
        }
        Ok(())
    }

    fn seal(&self, durable: bool, watch: &dyn Watch) -> Result<()> {
        if let Some(old) = &self.old {
            keep_permissions(self.file(), old)?;
        }
        if durable {
            let file = repeated(|| self.file().try_clone())?;
            parallel::elsewhere(move || system::sync(&file), watch)??;
        }
        // Some file systems report a full disk only on close.
        Ok(system::close(repeated(|| self.file().try_clone())?)?)
    }

    /// Removes the temporary file after `error`. Returns that, or an error of the removal.
    fn discard(self, error: Error, watch: &dyn Watch) -> Error {
        let is_stopped = matches!(error, Error::Stopped);
        match temporary::discard(self.temporary, (!is_stopped).then_some(watch)) {
            Ok(()) => error,
            Err(other) => other,
        }
    }
}

pub fn write_pipe(
    file: &File,
    watch: &dyn Watch,
    write: impl FnOnce(&mut Output<'_>) -> Result<()>,
) -> Result<u64> {
    let mut output = Output::new(file, true, false, watch);
    write(&mut output)?;
    output.finish()
}

/// Creates a directory and its missing parents. Returns the directories with a new entry, innermost
/// first.
pub fn make_directories(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    let mut missing = directory;
    while !missing.as_os_str().is_empty() && !repeated(|| missing.try_exists()).unwrap_or(false) {
        let Some(parent) = missing.parent() else {
            break;
        };
        changed.push(directory_of(missing).into());
        missing = parent;
    }
    if !changed.is_empty() {
        repeated(|| fs::create_dir_all(directory))?;
    }
    Ok(changed)
}

#[cfg(unix)]
fn keep_permissions(file: &File, old: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let mut mode = old.mode() & 0o7777;
    if repeated(|| file.metadata())?.gid() != old.gid() {
        let kept = repeated(|| std::os::unix::fs::fchown(file, None, Some(old.gid())));
        if kept.is_err() {
            // The old group's rights are not another group's.
            mode = mode & !0o070 | (mode & 0o007) << 3;
        }
    }
    unless_refused(file.set_permissions(fs::Permissions::from_mode(mode)))
}

/// Ignores a call that the file system lacks or forbids.
#[cfg(unix)]
fn unless_refused(done: io::Result<()>) -> io::Result<()> {
    use rustix::io::Errno;
    const REFUSALS: [Errno; 6] = [
        Errno::PERM,
        Errno::ACCESS,
        Errno::INVAL,
        Errno::NOTSUP,
        Errno::NOSYS,
        Errno::ROFS,
    ];
    match done.as_ref().map_err(Errno::from_io_error) {
        Err(Some(error)) if REFUSALS.contains(&error) => Ok(()),
        _ => done,
    }
}

#[cfg(not(unix))]
fn keep_permissions(file: &File, old: &fs::Metadata) -> io::Result<()> {
    file.set_permissions(old.permissions())
}

#[cfg(unix)]
fn open_pipe(path: &Path, watch: &dyn Watch) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    #[allow(clippy::cast_possible_wrap)] // flags are bits
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut options = File::options();
    loop {
        let opened = options.write(true).custom_flags(nonblocking).open(path);
        match opened {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                let is_pipe = {
                    use std::os::unix::fs::FileTypeExt;
                    repeated(|| fs::metadata(path))?.file_type().is_fifo()
                };
                if !is_pipe {
                    return Err(error.into());
                }
                watch.check()?;
                thread::sleep(Duration::from_millis(10));
            }
            opened => return Ok(opened?),
        }
    }
}

#[cfg(not(unix))]
fn open_pipe(path: &Path, _: &dyn Watch) -> Result<File> {
    Ok(File::options().write(true).open(path)?)
}

fn destination(path: &Path) -> io::Result<(PathBuf, Option<fs::Metadata>)> {
    const MAX_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match repeated(|| fs::symlink_metadata(&path)) {
            Ok(metadata) if metadata.is_symlink() => {
                let target = repeated(|| fs::read_link(&path))?;
                path = path.parent().unwrap_or(Path::new("")).join(target);
            }
            Ok(metadata) => return Ok((path, Some(metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((path, None)),
            Err(error) => return Err(error),
        }
    }
    // For the system's own error about a loop of links.
    repeated(|| fs::metadata(&path)).map(|metadata| (path, Some(metadata)))
}

/// Reserves room, so that a full disk fails early and blocks are contiguous.
#[cfg(target_os = "linux")]
fn preallocate(file: &File, size: usize, watch: &dyn Watch) -> Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    /// A program may have a timer that interrupts every attempt.
    const ATTEMPTS: usize = 10;
    if size == 0 {
        return Ok(());
    }
    for _ in 0..ATTEMPTS {
        match fallocate(file, FallocateFlags::empty(), 0, size as u64) {
            Err(Errno::INTR) => watch.check()?,
            Err(error @ (Errno::NOSPC | Errno::FBIG | Errno::DQUOT)) => {
                return Err(io::Error::from(error).into());
            }
            Ok(()) | Err(_) => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
#[allow(clippy::unnecessary_wraps)] // as on systems that reserve
fn preallocate(_: &File, _: usize, _: &dyn Watch) -> Result<()> {
    Ok(())
}

#[cfg(unix)]
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    // Ignored where a directory cannot be opened or the file system cannot sync it.
    unless_refused(File::open(directory).and_then(|directory| system::sync(&directory)))
}

#[cfg(not(unix))]
#[allow(clippy::unnecessary_wraps)] // as where there is something to do
pub fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
