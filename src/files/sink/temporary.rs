//! Creates the temporary file that will replace another one.
//!
//! Its writer locks it until the process ends, so the next save to the same path can remove files
//! of dead writers.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
#[cfg(target_os = "linux")]
use std::mem::MaybeUninit;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::{NamedTempFile, PersistError};

use crate::base::system::repeated;
use crate::base::watch::Watch;
use crate::files::handle::Id;
use crate::{Result, base::parallel};

/// The target's part of a file name, which has at most 255 bytes on most systems.
const MAX_NAME: usize = 200;

const SUFFIX: &str = ".tmp";

fn prefix(target: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(cut(target));
    prefix.push(".treepack-");
    prefix
}

#[cfg(unix)]
fn cut(name: &OsStr) -> &OsStr {
    use std::os::unix::ffi::OsStrExt;
    let name = name.as_bytes();
    OsStr::from_bytes(&name[..name.len().min(MAX_NAME)])
}

#[cfg(not(unix))]
fn cut(name: &OsStr) -> String {
    let mut name = name.to_string_lossy().into_owned();
    name.truncate(name.floor_char_boundary(MAX_NAME));
    name
}

/// Creates a temporary file beside `target` in `directory`; removed on drop.
///
/// With `private`, only its owner can open it; otherwise it has the permissions of any new file.
pub fn create(directory: &Path, target: &OsStr, private: bool) -> io::Result<NamedTempFile> {
    let prefix = prefix(target);
    remove_leftovers(directory, &prefix);
    tempfile::Builder::new()
        .prefix(&unique(prefix))
        .suffix(SUFFIX)
        .make_in(directory, |path| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            #[cfg(unix)]
            {
                use std::os::unix::fs::OpenOptionsExt;
                options.mode(if private { 0o600 } else { 0o666 });
            }
            #[cfg(not(unix))]
            let _ = private; // the directory's permissions decide
            let file = options.open(path)?;
            let locked = lock(&file, path);
            if locked.is_err() {
                let _ = fs::remove_file(path);
            }
            locked.map(|()| file)
        })
}

/// Removes an incomplete temporary file.
///
/// Closing waits until the system has written the file, so another thread closes it. With `watch`
/// this call waits, too: then the disk space is free.
pub fn discard(temporary: NamedTempFile, watch: Option<&dyn Watch>) -> Result<()> {
    let (file, path) = temporary.into_parts();
    remove(&path);
    drop(path);
    let close = move || drop(file);
    match watch {
        Some(watch) => parallel::elsewhere(close, watch)?,
        None => {
            parallel::spawn(close);
        }
    }
    Ok(())
}

/// Removes a temporary file by its name, as its drop does unless a signal interrupts that.
pub fn remove(path: &Path) {
    let _ = repeated(|| fs::remove_file(path));
}

/// Adds a suffix that is unique on this host.
///
/// A fork inherits the state of the random part of names.
fn unique(mut prefix: OsString) -> OsString {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    prefix.push(format!("{:x}-{count:x}-", process::id()));
    prefix
}

fn is_of(name: &OsStr, prefix: &OsStr, suffix: &str) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(prefix.as_encoded_bytes()) && name.ends_with(suffix.as_bytes())
}

/// Renames a complete temporary file over its target.
///
/// Windows does not replace a mapped file: it is renamed first, and removed once unmapped.
pub fn persist(temporary: NamedTempFile, path: &Path) -> io::Result<()> {
    let file = match renamed(temporary, path) {
        Ok(file) => file,
        Err(refused) if cfg!(windows) && path.is_file() => persist_beside(refused.file, path)?,
        Err(refused) => return Err(refused.error),
    };
    // Mandatory locks would otherwise block readers until the system ends this one.
    let _ = file.unlock();
    drop(file);
    if cfg!(windows) {
        remove_old(path);
    }
    Ok(())
}

/// Renames a temporary file over its target, again if a signal interrupts it.
fn renamed(mut temporary: NamedTempFile, path: &Path) -> std::result::Result<File, PersistError> {
    loop {
        match temporary.persist(path) {
            Err(refused) if refused.error.kind() == io::ErrorKind::Interrupted => {
                temporary = refused.file;
            }
            done => return done,
        }
    }
}

/// The suffix of old files that are still mapped. They stay until the new one is there.
const OLD: &str = ".old";

fn persist_beside(temporary: NamedTempFile, path: &Path) -> io::Result<File> {
    let mut name = unique(prefix(path.file_name().unwrap_or_default()));
    name.push(OLD);
    let old = path.with_file_name(name);
    fs::rename(path, &old)?;
    temporary.persist(path).map_err(|refused| {
        // Unless another writer has taken the name: a hard link never replaces a file.
        if fs::hard_link(&old, path).is_err() {
            if !path.exists() {
                let _ = fs::rename(&old, path);
            }
        } else {
            let _ = fs::remove_file(&old);
        }
        refused.error
    })
}

pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn remove_old(path: &Path) {
    let Some(name) = path.file_name() else {
        return;
    };
    let (directory, prefix) = (directory_of(path), prefix(name));
    each_name(directory, |name| {
        if is_of(name, &prefix, OLD) {
            let _ = fs::remove_file(directory.join(name));
        }
    });
}

/// Locks a new file.
///
/// Returns `AlreadyExists` if another process removed it as a leftover first; the caller then
/// creates another file.
fn lock(file: &File, path: &Path) -> io::Result<()> {
    let taken = match try_lock(file) {
        Ok(()) => match Id::at(path) {
            Ok(named) => named != Id::of(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(error),
        },
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(_)) => false,
    };
    if taken {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(())
}

fn try_lock(file: &File) -> std::result::Result<(), TryLockError> {
    loop {
        match file.try_lock() {
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            taken => return taken,
        }
    }
}

fn remove_leftovers(directory: &Path, prefix: &OsStr) {
    each_name(directory, |name| {
        if is_of(name, prefix, SUFFIX) {
            let _ = remove_if_dead(&directory.join(name));
        }
    });
}

/// Calls `visit` with the readable names in a directory. (`read_dir` panics if closing the
/// directory fails, rustix's when out of memory.)
#[cfg(target_os = "linux")]
fn each_name(directory: &Path, mut visit: impl FnMut(&OsStr)) {
    use rustix::fs::{Mode, OFlags, RawDir, open};
    use rustix::io::{Errno, retry_on_intr};
    use std::os::unix::ffi::OsStrExt;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = retry_on_intr(|| open(directory, flags, Mode::empty())) else {
        return;
    };
    let mut room = [const { MaybeUninit::uninit() }; 8 << 10];
    let mut entries = RawDir::new(opened, &mut room);
    loop {
        match entries.next() {
            Some(Ok(entry)) => visit(OsStr::from_bytes(entry.file_name().to_bytes())),
            Some(Err(Errno::INTR)) => {}
            _ => return,
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn each_name(directory: &Path, mut visit: impl FnMut(&OsStr)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        visit(&entry.file_name());
    }
}

/// Removes a temporary file, unless its writer is alive and locks it.
pub fn remove_if_dead(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    options.write(true); // NFS locks only files that are open for writing
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    if repeated(|| file.metadata())?.is_file() {
        try_lock(&file)?;
        remove_locked(&file, path)?;
    }
    Ok(())
}

/// Removes a locked file by its name, unless it was renamed or removed before the lock, which
/// prevents both and another file of the name.
fn remove_locked(file: &File, path: &Path) -> io::Result<()> {
    if Id::of(file)? == Id::at(path)? {
        repeated(|| fs::remove_file(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
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
        assert_eq!(count(directory.path()), 3);
        drop((alive, other, next));
        assert_eq!(count(directory.path()), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
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
        drop(living); // until then Windows keeps its name
        assert!(!path.exists());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn an_old_file_that_cannot_be_replaced_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        fs::write(&path, "old").unwrap();
        let old = crate::files::mapping::Mapping::open(&path).unwrap();
        let new = create(directory.path(), OsStr::new("model"), true).unwrap();
        io::Write::write_all(&mut new.as_file(), b"new").unwrap();
        drop(persist_beside(new, &path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let mut room = [std::mem::MaybeUninit::uninit(); 3];
        assert_eq!(
            crate::base::source::Source::read_at(&old, 0, &mut room).unwrap(),
            b"old"
        );
        assert_eq!(count(directory.path()), 2);
        drop(old);
        let next = create(directory.path(), OsStr::new("model"), true).unwrap();
        assert_eq!(
            count(directory.path()),
            3,
            "it stays until there is a new one"
        );
        drop(next);
        remove_old(&path);
        assert_eq!(count(directory.path()), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn a_mapped_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        fs::write(&path, "old").unwrap();
        let old = crate::files::mapping::Mapping::open(&path).unwrap();
        for _ in 0..2 {
            let new = create(directory.path(), OsStr::new("model"), true).unwrap();
            io::Write::write_all(&mut new.as_file(), b"new").unwrap();
            persist(new, &path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        drop(old);
        let new = create(directory.path(), OsStr::new("model"), true).unwrap();
        persist(new, &path).unwrap();
        assert_eq!(count(directory.path()), 1);
    }

    #[cfg(unix)] // elsewhere an open file keeps its name
    #[test]
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn an_old_file_gets_its_name_back_if_the_new_one_cannot_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model");
        fs::write(&path, "old").unwrap();
        let new = create(directory.path(), OsStr::new("model"), true).unwrap();
        fs::remove_file(new.path()).unwrap();
        assert!(persist_beside(new, &path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(count(directory.path()), 1);
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
    #[cfg_attr(miri, ignore = "Miri lacks the system calls")]
    fn long_names_are_cut() {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), OsStr::new(&"x".repeat(255)), false).unwrap();
    }
}
