//! A file is replaced whole or not at all, and nothing is left lying about.
#![cfg(unix)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use treepack::sink::{Durability, write_file};
use treepack::{Error, Result};

fn save(path: &Path, content: &[u8]) -> Result<()> {
    write_file(path, Durability::Synced, content.len(), |file| {
        file.write_all(content)?;
        Ok(())
    })
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
    let failed = write_file(&path, Durability::Cached, 10, |file| {
        file.write_all(b"half")?;
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
fn a_missing_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = save(&directory.path().join("none/model"), b"x").unwrap_err();
    assert!(matches!(error, Error::Io(error) if error.kind() == std::io::ErrorKind::NotFound));
}
