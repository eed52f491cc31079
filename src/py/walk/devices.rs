//! Arrays on accelerators, or sharded, which are fetched when their bytes are copied.

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::super::hooks::Hooks;
use super::super::memory::{ArrayParts, Borrowed};
use crate::array::{Shard, Sharded};
use crate::layout::Payload;
use crate::raw::Uninit;
use crate::window::{Fetch, Window};
use crate::{Error, Result, grow};

/// The size of arrays in host memory or in transfer at a time.
pub const WINDOW_BYTES: usize = 256 << 20;

pub type Devices = Window<DeviceArray>;

pub struct DeviceArray {
    pub array: Py<PyAny>,
    pub shape: Vec<usize>,
    pub itemsize: usize,
}

pub enum OnHost {
    Whole(Borrowed),
    Sharded(Sharded<Borrowed>),
}

/// The index of a shard's first element, and the shard.
type HostShard<'py> = (Vec<usize>, Bound<'py, PyUntypedArray>);

impl Fetch for DeviceArray {
    type Transfer = Py<PyAny>;
    type Here = OnHost;

    fn start(&self) -> Result<Py<PyAny>> {
        Self::with_python(|py| {
            let start = Hooks::get(py)?.start_transfer.bind(py);
            Ok(start.call1((&self.array,))?.unbind())
        })
    }

    fn finish(&self, transfer: Py<PyAny>) -> Result<OnHost> {
        Self::with_python(|py| {
            let finish = Hooks::get(py)?.finish_transfer.bind(py);
            let found = finish.call1((transfer,))?;
            let shards: Vec<HostShard<'_>> = found.cast::<PyList>()?.extract()?;
            if let [(_, whole)] = &shards[..] {
                return Ok(OnHost::Whole(self.memory(whole, &self.shape)?));
            }
            let mut blocks = grow::with_room(shards.len())?;
            for (start, shard) in shards {
                let shape = shard.shape().to_vec();
                blocks.push(Shard {
                    memory: self.memory(&shard, &shape)?,
                    start,
                    shape,
                });
            }
            Sharded::new(self.shape.clone(), self.itemsize, blocks)
                .map(OnHost::Sharded)
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

    fn memory(&self, host: &Bound<'_, PyUntypedArray>, shape: &[usize]) -> PyResult<Borrowed> {
        let same = numpy::PyArrayDescrMethods::itemsize(&host.dtype()) == self.itemsize;
        if !same || host.shape() != shape || !ArrayParts::of(host).is_contiguous() {
            return Err(broken("another array"));
        }
        Ok(Borrowed::array(host))
    }
}

impl Payload for OnHost {
    fn len(&self) -> usize {
        match self {
            Self::Whole(memory) => Payload::len(memory),
            Self::Sharded(array) => array.len(),
        }
    }

    fn copy_to<'t>(&self, start: usize, target: &'t mut Uninit) -> Result<&'t mut [u8]> {
        match self {
            Self::Whole(memory) => memory.copy_to(start, target),
            Self::Sharded(array) => array.copy_to(start, target),
        }
    }
}

fn broken(result: &str) -> PyErr {
    PyRuntimeError::new_err(format!("finish_transfer returned {result}"))
}
