//! The temporary file that will replace another one.
//!
//! Its writer holds a lock on it, which ends with the process. So whoever saves to the same path
//! next can tell the files of dead writers, and removes them.

use std::thread;

use tempfile::NamedTempFile;

#[cfg(unix)]
pub use unix::create;

/// Removes a temporary file that has not been completed.
///
/// Who closes a file last waits until the system has written what it began to write of it, so
/// that is done in another thread.
pub fn discard(temporary: NamedTempFile) {
    let (file, path) = temporary.into_parts();
    drop(path); // this removes it
    // Where there is no other thread to be had, the file is closed here.
    drop(thread::Builder::new().spawn(move || drop(file)));
}

/// Where files cannot be locked or private like that: one that goes when it is dropped.
#[cfg(not(unix))]
pub fn create(
    directory: &std::path::Path,
    _: &std::ffi::OsStr,
    _: bool,
) -> std::io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".treepack-")
        .suffix(".tmp")
        .make_in(directory, |path| {
            std::fs::File::options()
                .write(true)
                .create_new(true)
                .open(path)
        })
}

#[cfg(unix)]
mod unix {
    use std::ffi::{OsStr, OsString};
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::Path;

    use rustix::fs::{FlockOperation, OFlags, flock};
    use tempfile::NamedTempFile;

    /// Names of files have 255 bytes on most systems; so many are left of that of the target.
    const MAX_NAME: usize = 200;

    const SUFFIX: &str = ".tmp";

    /// What the names of temporary files for `target` begin with.
    fn prefix(target: &OsStr) -> OsString {
        let name = target.as_bytes();
        let mut prefix = OsString::from(".");
        prefix.push(OsStr::from_bytes(&name[..name.len().min(MAX_NAME)]));
        prefix.push(".treepack-");
        prefix
    }

    /// Makes a temporary file beside the file `target` of `directory`, which goes when it is dropped.
    ///
    /// With `private`, nobody else can open it; otherwise its permissions are those of any new file.
    pub fn create(directory: &Path, target: &OsStr, private: bool) -> io::Result<NamedTempFile> {
        let prefix = prefix(target);
        remove_leftovers(directory, &prefix);
        let mode = if private { 0o600 } else { 0o666 };
        tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(SUFFIX)
            .make_in(directory, |path| {
                let mut options = File::options();
                let file = options.write(true).create_new(true).mode(mode).open(path)?;
                match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    // Somebody takes it for a leftover, or has done so before it was locked.
                    Err(rustix::io::Errno::WOULDBLOCK) => {
                        Err(io::Error::from(io::ErrorKind::AlreadyExists))
                    }
                    Ok(()) if file.metadata()?.nlink() == 0 => {
                        Err(io::Error::from(io::ErrorKind::AlreadyExists))
                    }
                    // Without locks nobody removes it.
                    Ok(()) | Err(_) => Ok(file),
                }
            })
    }

    /// Removes the temporary files of writers that do not live any more. Nothing depends on it.
    fn remove_leftovers(directory: &Path, prefix: &OsStr) {
        let Ok(entries) = fs::read_dir(directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.as_bytes();
            if name.starts_with(prefix.as_bytes()) && name.ends_with(SUFFIX.as_bytes()) {
                let _ = remove_if_dead(&entry.path());
            }
        }
    }

    fn remove_if_dead(path: &Path) -> io::Result<()> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = File::options();
        #[allow(clippy::cast_possible_wrap)] // flags are bits
        let file = options
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path)?;
        if file.metadata()?.is_file() {
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            fs::remove_file(path)?;
        }
        Ok(())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn names(directory: &Path) -> usize {
            fs::read_dir(directory).unwrap().count()
        }

        #[test]
        fn files_of_the_dead_are_removed_and_those_of_the_living_stay() {
            let directory = tempfile::tempdir().unwrap();
            let target = OsStr::new("model");
            let dead = create(directory.path(), target, true).unwrap();
            let (file, path) = dead.keep().unwrap();
            let alive = create(directory.path(), target, false).unwrap();
            assert!(path.exists());
            drop(file); // as the end of a process does
            let other = create(directory.path(), OsStr::new("model2"), false).unwrap();
            assert!(path.exists(), "it belongs to another file");
            let next = create(directory.path(), target, false).unwrap();
            assert!(!path.exists());
            assert_eq!(names(directory.path()), 3);
            drop((alive, other, next));
            assert_eq!(names(directory.path()), 0);
        }

        #[test]
        fn long_names_are_cut() {
            let directory = tempfile::tempdir().unwrap();
            create(directory.path(), OsStr::new(&"x".repeat(255)), false).unwrap();
        }
    }
}
