//! A file is replaced whole or not at all, and nothing is left lying about.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use treepack::base::append::Append;
use treepack::base::watch::Watch;
use treepack::files::sink::replace_file;
use treepack::{Error, Result};

fn save(path: &Path, content: &[u8]) -> Result<()> {
    let written = replace_file(path, true, content.len(), &(), |file| file.append(content))?;
    assert_eq!(written, content.len() as u64);
    Ok(())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_is_written_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    save(&path, b"one, which is longer").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one, which is longer");
    save(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(names(directory.path()), ["model"]);
}

#[test]
fn a_failure_leaves_the_old_file_and_no_litter() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    save(&path, b"old").unwrap();
    let failed = replace_file(&path, false, 10, &(), |file| {
        file.append(b"half")?;
        Err(Error::Option("stop".into()))
    });
    assert!(failed.is_err());
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names(directory.path()), ["model"]);
}

#[test]
fn the_mode_is_kept_when_a_file_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    save(&path, b"old").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    save(&path, b"new").unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn a_link_is_followed_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let real = directory.path().join("real");
    let link = directory.path().join("link");
    symlink("real", &link).unwrap();
    save(&link, b"through a dangling link").unwrap();
    save(&link, b"through a link").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&real).unwrap(), b"through a link");
    assert_eq!(names(directory.path()), ["link", "real"]);
}

#[test]
fn a_loop_of_links_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    symlink("link", &link).unwrap();
    assert!(matches!(save(&link, b"x"), Err(Error::Io(_))));
}

#[test]
fn a_device_is_written_to_directly() {
    save(Path::new("/dev/null"), b"gone").unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

#[test]
fn missing_directories_are_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("some/new/directories/model");
    save(&path, b"x").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"x");
    // Not so where a link leads.
    let link = directory.path().join("link");
    symlink("none/model", &link).unwrap();
    let error = save(&link, b"x").unwrap_err();
    assert!(matches!(error, Error::Io(error) if error.kind() == std::io::ErrorKind::NotFound));
}

#[test]
fn nobody_else_can_open_what_replaces_a_private_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model");
    save(&path, b"old").unwrap();
    for mode in [0o600, 0o640, 0o644] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        replace_file(&path, false, 3, &(), |file| {
            file.append(b"new")?;
            file.flush()?;
            for entry in fs::read_dir(directory.path())? {
                let entry = entry?;
                if entry.path() != path {
                    assert_eq!(entry.metadata()?.permissions().mode() & 0o777, 0o600);
                }
            }
            Ok(())
        })
        .unwrap();
        let found = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode);
    }
}

/// Stops what it watches after so many checks.
struct StopAfter(AtomicUsize);

impl Watch for StopAfter {
    fn check(&self) -> Result<()> {
        match self.0.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(Error::Stopped),
            _ => Ok(()),
        }
    }

    fn done(&self, _: usize) -> Result<()> {
        self.check()
    }
}

#[test]
fn writing_to_a_pipe_can_be_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    // Nobody reads it.
    let watch = StopAfter(AtomicUsize::new(3));
    let stopped = replace_file(&path, false, 0, &watch, |file| file.append(b"x"));
    assert!(matches!(stopped, Err(Error::Stopped)));
    // Somebody has opened it, and reads nothing.
    let reader = treepack::files::mapping::open(&path).unwrap();
    let watch = StopAfter(AtomicUsize::new(3));
    let much = vec![0; 1 << 20];
    let stopped = replace_file(&path, false, 0, &watch, |file| file.append(&much));
    assert!(matches!(stopped, Err(Error::Stopped)));
    drop(reader);
}
