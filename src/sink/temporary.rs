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
    use std::process;
    use std::sync::atomic::{AtomicU32, Ordering};

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
            .prefix(&unique(prefix))
            .suffix(SUFFIX)
            .make_in(directory, |path| {
                let mut options = File::options();
                let file = options.write(true).create_new(true).mode(mode).open(path)?;
                let locked = lock(&file);
                if locked.is_err() {
                    // Nobody else makes a file of this name.
                    let _ = fs::remove_file(path);
                }
                locked.map(|()| file)
            })
    }

    /// Adds to a prefix what no other file of this host gets.
    ///
    /// A fork inherits the state that the random part of a name is drawn from.
    fn unique(mut prefix: OsString) -> OsString {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        prefix.push(format!("{:x}-{count:x}-", process::id()));
        prefix
    }

    /// Locks a file that was just made.
    ///
    /// Returns `AlreadyExists` if somebody takes it for a leftover, or did so before it was locked:
    /// then another one has to be made.
    fn lock(file: &File) -> io::Result<()> {
        let taken = match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => file.metadata()?.nlink() == 0,
            // Without locks nobody removes it.
            Err(error) => error == rustix::io::Errno::WOULDBLOCK,
        };
        if taken {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(())
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
            remove_locked(&file, path)?;
        }
        Ok(())
    }

    /// Removes a file by its name, if the name is still that of this file, which is locked.
    ///
    /// Before it was locked, its writer may have renamed it, or somebody else may have removed it.
    /// From then on nobody does: both need the lock. And no other file gets the name again.
    fn remove_locked(file: &File, path: &Path) -> io::Result<()> {
        let (locked, named) = (file.metadata()?, fs::symlink_metadata(path)?);
        if (locked.dev(), locked.ino()) == (named.dev(), named.ino()) {
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
        fn a_name_that_another_file_has_by_now_stays() {
            let directory = tempfile::tempdir().unwrap();
            let target = OsStr::new("model");
            let dead = create(directory.path(), target, true).unwrap();
            let (dead, path) = dead.keep().unwrap();
            fs::rename(&path, directory.path().join("model")).unwrap();
            fs::write(&path, "of a living writer").unwrap();
            remove_locked(&dead, &path).unwrap();
            assert!(path.exists());
            let living = File::open(&path).unwrap();
            remove_locked(&living, &path).unwrap();
            assert!(!path.exists());
        }

        #[test]
        fn names_do_not_repeat() {
            let names: Vec<_> = (0..3)
                .map(|_| unique(prefix(OsStr::new("model"))))
                .collect();
            assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
            let of_this_process = format!(".model.treepack-{:x}-", process::id());
            for name in names {
                assert!(name.to_str().unwrap().starts_with(&of_this_process));
            }
        }

        #[test]
        fn long_names_are_cut() {
            let directory = tempfile::tempdir().unwrap();
            create(directory.path(), OsStr::new(&"x".repeat(255)), false).unwrap();
        }
    }
}
