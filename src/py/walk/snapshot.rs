//! Makes a layout independent of later changes to the tree.

use std::sync::Arc;

use pyo3::prelude::*;

use super::super::memory::detached;
use super::super::watch::Watcher;
use super::payload::LeafPayload;
use crate::base::pages::Pages;
use crate::base::parallel;
use crate::base::raw::RawBytes;
use crate::files::sink::pour;
use crate::format::layout::{Caching, Layout, LayoutBuilder};

/// Copies memory that may change, and fetches arrays on devices.
///
/// jax memory is only held: jax does not reuse it, even if donated. Arrays of open files stay there.
pub fn snapshot(py: Python<'_>, layout: &mut Layout<LeafPayload>) -> PyResult<()> {
    let changing = layout.payloads().filter_map(LeafPayload::changing);
    let nbytes = changing.map(RawBytes::len).sum();
    let watcher = Watcher::signals();
    watcher.raise(copied(py, layout, nbytes, &watcher))?;
    let devices = layout.payloads().find_map(|leaf| match leaf {
        LeafPayload::Device(leaf) => Some(leaf.devices.clone()), // all are in one window
        _ => None,
    });
    if let Some(devices) = devices {
        py.detach(|| devices.fetch_all())?;
    }
    Ok(())
}

fn copied(
    py: Python<'_>,
    layout: &mut Layout<LeafPayload>,
    nbytes: usize,
    watcher: &Watcher,
) -> crate::Result<()> {
    if nbytes == 0 {
        return Ok(());
    }
    let mut pages = Pages::with_room(nbytes)?;
    let threads = parallel::threads(None, nbytes, parallel::MIN_COPY_BYTES)?;
    let mut changing = LayoutBuilder::default();
    for memory in layout.payloads().filter_map(LeafPayload::changing) {
        changing.push(memory)?;
    }
    let changing = changing.finish();
    pages.fill(nbytes, |memory| {
        detached(py, nbytes, false, || {
            pour(&changing, memory, Caching::Usual, threads, watcher)
        })
    })?;
    let pages = Arc::new(pages);
    let mut start = 0;
    for leaf in layout.payloads_mut() {
        if let Some(len) = leaf.changing().map(RawBytes::len) {
            *leaf = LeafPayload::Copied(pages.clone(), start..start + len);
            start += len;
        }
    }
    Ok(())
}
