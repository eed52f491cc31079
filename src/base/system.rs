//! System calls that std and rustix lack (for memory that may change, or at all), and waits that a
//! watch can stop.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use crate::Result;
use crate::base::raw::RawBytes;
use crate::base::watch::Watch;

/// Makes a call until no signal interrupts it.
///
/// std repeats `open`, `read_exact` and `fsync`, but not calls that only some file systems interrupt,
/// such as FUSE and CIFS: `stat`, `rename`, `mkdir`.
pub fn repeated<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Like `write(2)`, returns the number of bytes written.
#[cfg(unix)]
pub fn write(file: &File, bytes: RawBytes<'_>) -> io::Result<usize> {
    use std::os::fd::AsRawFd;
    // SAFETY: `bytes` refers to `len` readable bytes.
    let written = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Returns the number of bytes written.
#[cfg(not(unix))]
pub fn write(mut file: &File, bytes: RawBytes<'_>) -> io::Result<usize> {
    let mut copy = Vec::new();
    let part = bytes.slice(0..bytes.len().min(1 << 20));
    part.append_to(&mut copy)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    io::Write::write(&mut file, &copy)
}

/// Lets the disk start on a written range, without waiting. Only a hint: fsync reports errors.
pub fn write_back(file: &File, start: u64, len: u64) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let (start, len) = (start.cast_signed(), len.cast_signed());
        let flags = libc::SYNC_FILE_RANGE_WRITE;
        // SAFETY: the file is open, and no memory is involved.
        unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, start, len);
}

/// Waits until a file is on the disk; on macOS, past the disk's own cache.
pub fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        // Network file systems may not support it.
        #[cfg(target_vendor = "apple")]
        Err(error)
            if [libc::ENOTSUP, libc::EINVAL, libc::ENOTTY]
                .map(Some)
                .contains(&error.raw_os_error()) =>
        {
            Ok(rustix::fs::fsync(file)?)
        }
        synced => synced,
    }
}

#[cfg(unix)]
pub fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: this call owns the descriptor and does not use it afterwards.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // The descriptor is closed regardless.
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}

/// Windows reports failed writes only at fsync.
#[cfg(not(unix))]
#[allow(clippy::unnecessary_wraps)] // as where there are errors
pub fn close(_: File) -> io::Result<()> {
    Ok(())
}

pub enum Ready {
    Input,
    Output,
}

/// Waits until a pipe has input, or accepts output.
#[cfg(unix)]
pub fn wait(file: &File, until: &Ready, watch: &dyn Watch) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    const OFTEN: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    let events = match until {
        Ready::Input => PollFlags::IN,
        Ready::Output => PollFlags::OUT,
    };
    loop {
        match poll(&mut [PollFd::new(file, events)], Some(&OFTEN)) {
            Ok(1..) => return Ok(()),
            Ok(0) | Err(rustix::io::Errno::INTR) => watch.check()?,
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}

#[cfg(not(unix))]
pub fn wait(_: &File, _: &Ready, watch: &dyn Watch) -> Result<()> {
    watch.check()
}
