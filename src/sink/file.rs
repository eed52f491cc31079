//! Writing a file so that a crash at any point leaves the old one or the new one, whole.
//!
//! The bytes go to a temporary file in the same directory, which is renamed
//! over the destination once it is complete (and, if asked for, on the disk).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::layout::{Layout, Payload};

/// What must be on the disk when a save returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Everything: the save survives a loss of power.
    Synced,
    /// Nothing in particular: the save survives a crash of the process.
    Cached,
}

/// Writes all that `write` writes to `path`, or leaves `path` as it was.
///
/// `size` is how many bytes are expected, to reserve room for; 0 if unknown.
/// A symbolic link is followed. A path that is no regular file (a pipe, a
/// device) is written to directly, since it cannot be replaced.
pub fn write_file(
    path: &Path,
    durability: Durability,
    size: usize,
    write: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let mut file = File::options().write(true).open(path)?;
        return write(&mut file);
    }
    let (path, old) = destination(path)?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut temporary = tempfile::Builder::new() // removed on drop
        .prefix(".treepack-")
        .suffix(".tmp")
        .make_in(directory, create)?;
    if let Some(old) = old {
        temporary.as_file().set_permissions(old.permissions())?;
    }
    preallocate(temporary.as_file(), size)?;
    write(temporary.as_file_mut())?;
    if durability == Durability::Synced {
        temporary.as_file().sync_all()?;
    }
    temporary.persist(&path).map_err(|error| error.error)?;
    if durability == Durability::Synced {
        sync_directory(directory)?;
    }
    Ok(())
}

/// Writes the layout's memory to `file`, with no copy in between of what is large.
///
/// `done` is told how many bytes have been written, and can stop the work.
pub fn write_layout<P: Payload>(
    layout: &Layout<P>,
    file: &mut File,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    /// After how many bytes `done` is told.
    const PART: usize = 64 << 20;
    /// Smaller slices are joined: a call for each would cost more than to copy them.
    const JOIN_MAX_BYTES: usize = 64 << 10;
    let mut file = BufWriter::with_capacity(JOIN_MAX_BYTES, file);
    for start in (0..layout.len()).step_by(PART) {
        let end = layout.len().min(start + PART);
        for slice in layout.slices(start..end) {
            file.write_all(slice)?;
        }
        done(end)?;
    }
    Ok(file.flush()?)
}

/// Makes a file with the permissions of any new file: all, less the umask.
fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

/// Where `path` leads when links are followed, and what is there now.
fn destination(path: &Path) -> io::Result<(PathBuf, Option<fs::Metadata>)> {
    /// As many links as Linux follows.
    const MAX_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => {
                let target = fs::read_link(&path)?;
                path = path.parent().unwrap_or(Path::new("")).join(target);
            }
            Ok(found) => return Ok((path, Some(found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((path, None)),
            Err(error) => return Err(error),
        }
    }
    // The system's own error for a loop of links.
    fs::metadata(&path).map(|found| (path, Some(found)))
}

/// Reserves room, so that a full disk is noticed before anything is written
/// and the blocks lie together. Systems that cannot are left to grow the file.
#[cfg(target_os = "linux")]
fn preallocate(file: &File, size: usize) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    if size == 0 {
        return Ok(());
    }
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, size as u64) {
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::FBIG | Errno::DQUOT)) => return Err(error.into()),
            Ok(()) | Err(_) => return Ok(()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn preallocate(_file: &File, _size: usize) -> io::Result<()> {
    Ok(())
}

/// Puts the new name of a file on the disk.
#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory) {
        Ok(directory) => directory.sync_all(),
        // One may be allowed to write to a directory and not to open it. The file is
        // in place, and nothing more can be done.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}
