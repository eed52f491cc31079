//! Arrays on accelerators, or sharded, which are fetched when their bytes are copied.

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::super::hooks::Hooks;
use super::super::memory::{ArrayParts, Borrowed};
use crate::format::shards::{Shard, Sharded};
use crate::format::window::{Fetch, Window};
use crate::{Error, Result, base::grow};

/// The size of arrays in host memory or in transfer at a time.
pub const WINDOW_BYTES: usize = 256 << 20;

pub type Devices = Window<DeviceArray>;

pub struct DeviceArray {
    pub array: Py<PyAny>,
    pub shape: Vec<usize>,
    pub itemsize: usize,
}

/// The index of a shard's first element, and the shard.
type HostShard<'py> = (Vec<usize>, Bound<'py, PyUntypedArray>);

impl Fetch for DeviceArray {
    type Transfer = Py<PyAny>;
    type Here = Sharded<Borrowed>;

    fn start(&self) -> Result<Py<PyAny>> {
        Self::with_python(|py| {
            let transfer = Hooks::get(py)?.transfer.bind(py).call1((&self.array,))?;
            Ok(transfer.call_method0(intern!(py, "start"))?.unbind())
        })
    }

    fn finish(&self, transfer: Py<PyAny>) -> Result<Sharded<Borrowed>> {
        Self::with_python(|py| {
            let ready = transfer.bind(py).call_method0(intern!(py, "finish"))?;
            let shards: Vec<HostShard<'_>> = ready.cast::<PyList>()?.extract()?;
            let mut blocks = grow::with_room(shards.len())?;
            for (start, shard) in shards {
                blocks.push(Shard {
                    memory: self.memory(&shard)?,
                    start,
                    shape: shard.shape().to_vec(),
                });
            }
            Sharded::new(&self.shape, self.itemsize, blocks)
                .ok_or_else(|| broken("shards that do not form the array"))
        })
    }
}

impl DeviceArray {
    fn with_python<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| {
            let done = work(py);
            done.map_err(|error| Error::Payload(Box::new(error)))
        })
    }

    fn memory(&self, host: &Bound<'_, PyUntypedArray>) -> PyResult<Borrowed> {
        let same = numpy::PyArrayDescrMethods::itemsize(&host.dtype()) == self.itemsize;
        if !same || !ArrayParts::of(host).is_contiguous() {
            return Err(broken("another array"));
        }
        Ok(Borrowed::array(host))
    }
}

fn broken(result: &str) -> PyErr {
    PyRuntimeError::new_err(format!("a transfer returned {result}"))
}
