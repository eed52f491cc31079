//! Mapping a file into memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::Result;

/// Maps all of the file at `path`, read-only.
///
/// The mapping must not outlive the content: a file that is replaced by rename
/// (as this crate saves) keeps its old content for existing mappings, but a
/// process that *truncates* the file in place takes the pages away, and the
/// next access to them ends the program with SIGBUS. That is the nature of
/// `mmap` and of every library that offers it.
pub fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the pages are only read. Another process may write to the file
    // while they are mapped; what is read from them then is checked like any
    // other untrusted input, and payload bytes are only ever copied.
    Ok(unsafe { Mmap::map(&file)? })
}
