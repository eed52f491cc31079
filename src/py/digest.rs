//! Digests of arrays.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::memory::keep_reserve;
use super::options::{self, Int};
use super::walk::raw_layout_of;
use super::watch::Watcher;
use crate::base::digest::Digest;
use crate::base::parallel;
use crate::format::digests::of_regions;
use crate::format::encoder::Encoder;
use crate::format::footer::Regions;

#[pyfunction]
#[pyo3(signature = (arrays, *, threads))]
pub fn digests<'py>(
    arrays: &Bound<'py, PyList>,
    threads: Option<Int>,
) -> PyResult<Bound<'py, PyBytes>> {
    keep_reserve()?;
    let py = arrays.py();
    let (layout, ends) = raw_layout_of(arrays, Encoder::raw(b"")?)?;
    let threads = options::threads(threads, layout.len(), parallel::BLOCK)?;
    let digests = Watcher::signals().detached(py, |watch| {
        of_regions(&layout, &Regions::new(ends), threads, watch)
    })?;
    PyBytes::new_with(py, Digest::BYTES * digests.len(), |bytes| {
        let (places, _) = bytes.as_chunks_mut();
        for (place, digest) in places.iter_mut().zip(digests) {
            *place = digest.to_bytes();
        }
        Ok(())
    })
}

#[pyfunction]
pub fn join_digests(
    first: [u8; Digest::BYTES],
    second: [u8; Digest::BYTES],
    nbytes: u64,
) -> [u8; Digest::BYTES] {
    let [first, second] = [first, second].map(Digest::from_bytes);
    first.join(second, nbytes).to_bytes()
}
