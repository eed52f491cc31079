//! Leaves with a dtype: arrays of NumPy and of jax.

use std::borrow::Cow;
use std::sync::Arc;

use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::super::memory::{Borrowed, append};
use super::scalars::INLINE_MAX_BYTES;
use super::source::Source;
use super::walk::{Dtype, Failure, OnDevice, Place, Walk, Walked};
use crate::array::{self, Array, Framing, RecentHeaders, Shard, Sharded};
use crate::layout::LayoutBuilder;
use crate::wire;

/// How many dtypes are remembered; a tree has a handful, but objects of one may differ.
const MAX_DTYPES: usize = 64;

/// Arrays of jax of up to so many bytes are copied among the headers: to hold on to
/// objects of jax costs more than the copy. Such arrays are never aligned.
const LENT_MAX_BYTES: usize = array::ALIGN_MIN_BYTES - 1;

/// How often jax may refuse to lend the memory of an array of a dtype before it is no
/// longer asked.
const MAX_FAILURES: u8 = 8;

impl<'py> Walk<'_, 'py> {
    pub fn array(
        &mut self,
        array: &Bound<'py, PyUntypedArray>,
        code: i8,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        self.host_array(array, code, key, place, INLINE_MAX_BYTES)
    }

    /// An array of NumPy. One of up to `inline_max` bytes is copied among the headers.
    fn host_array(
        &mut self,
        array: &Bound<'py, PyUntypedArray>,
        code: i8,
        key: Option<&str>,
        place: Place,
        inline_max: usize,
    ) -> Walked {
        let dtype = self.dtype(&array.dtype())?;
        let mut array = Cow::Borrowed(array);
        if !(array.is_c_contiguous() && self.dtypes[dtype].native) {
            let copy = self.hooks.to_contiguous.bind(self.py).call1((&*array,))?;
            array = Cow::Owned(copy.cast_into().map_err(PyErr::from)?);
        }
        let header = self.dtypes[dtype].header(code, array.shape());
        let nbytes = header.nbytes();
        let memory = Borrowed::array(&array, nbytes);
        let py = self.py;
        let framing = self.options.framing;
        frame(
            &mut self.out,
            &mut self.recent,
            key,
            &header,
            framing,
            place,
            |out, range| {
                if range.len() <= inline_max {
                    out.headers().extend_from_slice(&memory.as_ref()[range]);
                } else {
                    out.push(Source::part(py, &memory, range));
                }
            },
        )
    }

    /// An array of jax: copied or borrowed at once if it is in host memory.
    pub fn jax_array(
        &mut self,
        array: &Bound<'py, PyAny>,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        let dtype = array.getattr(intern!(self.py, "dtype"))?;
        let dtype = self.dtype(dtype.cast()?)?;
        if self.dtypes[dtype].lent > 0
            && array.getattr(intern!(self.py, "ndim"))?.is_truthy()?
            && self.lent_array(array, dtype, key, place)?
        {
            return Ok(());
        }
        match self.hooks.host_view.bind(self.py).call1((array,)) {
            Ok(host) => {
                if let Ok(host) = host.cast::<PyUntypedArray>() {
                    return self.host_array(host, wire::EXT_NDARRAY, key, place, LENT_MAX_BYTES);
                }
            }
            Err(error) => {
                self.check_alive(array)?; // which may be the reason
                return Err(error.into());
            }
        }
        self.device_array(array, dtype, key, place)
    }

    fn check_alive(&self, array: &Bound<'py, PyAny>) -> Walked {
        let deleted = array.call_method0(intern!(self.py, "is_deleted"))?;
        if deleted.is_truthy()? {
            return Err(Failure::tree("the array has been deleted or donated"));
        }
        Ok(())
    }

    /// Writes a small array of jax in host memory and returns true, or returns false.
    ///
    /// jax lends its memory through the buffer protocol, which costs a fraction of
    /// asking it for a NumPy array; it waits for the content and keeps it alive meanwhile.
    fn lent_array(
        &mut self,
        array: &Bound<'py, PyAny>,
        dtype: usize,
        key: Option<&str>,
        place: Place,
    ) -> Walked<bool> {
        let buffer = match PyUntypedBuffer::get(array) {
            Ok(buffer) => buffer,
            // It lends neither arrays on accelerators, nor sharded ones, nor
            // some dtypes. A failure is slow, so there are a few for each.
            Err(error) if error.is_instance_of::<PyBufferError>(self.py) => {
                self.dtypes[dtype].lent -= 1;
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, buffer.shape());
        let nbytes = header.nbytes();
        let whole = nbytes == buffer.len_bytes() && buffer.is_c_contiguous();
        if !whole || nbytes > LENT_MAX_BYTES {
            return Ok(false);
        }
        let framing = self.options.framing;
        frame(
            &mut self.out,
            &mut self.recent,
            key,
            &header,
            framing,
            place,
            |out, range| {
                append(&buffer, range, out.headers());
            },
        )?;
        buffer.release(self.py);
        Ok(true)
    }

    /// Notes an array and leaves room for its bytes.
    fn device_array(
        &mut self,
        array: &Bound<'py, PyAny>,
        dtype: usize,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        let py = self.py;
        let is = |name| array.getattr(name).and_then(|answer| answer.is_truthy());
        let has_shards_here = || {
            let sharding = array.getattr(intern!(py, "sharding"))?;
            let devices = sharding.getattr(intern!(py, "addressable_devices"))?;
            devices.is_truthy()
        };
        let is_whole_here = is(intern!(py, "is_fully_addressable"))?
            || is(intern!(py, "is_fully_replicated"))? && has_shards_here()?;
        if !is_whole_here {
            return Err(Failure::tree(
                "the array has shards on devices of other processes; gather it to this process \
                 first, for example with jax.experimental.multihost_utils.process_allgather",
            ));
        }
        self.check_alive(array)?;
        let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, &shape);
        let mut parts = Vec::with_capacity(1);
        let framing = self.options.framing;
        frame(
            &mut self.out,
            &mut self.recent,
            key,
            &header,
            framing,
            place,
            |out, range| {
                parts.push((out.reserve(range.len()), range));
            },
        )?;
        self.on_device.push(OnDevice {
            array: array.clone(),
            itemsize: header.itemsize,
            shape,
            parts,
        });
        Ok(())
    }

    /// The index of the dtype in `self.dtypes`; asked about once a walk.
    fn dtype(&mut self, dtype: &Bound<'py, PyArrayDescr>) -> Walked<usize> {
        if let Some(known) = self.dtypes.iter().position(|known| known.object.is(dtype)) {
            return Ok(known);
        }
        if self.dtypes.len() == MAX_DTYPES {
            self.dtypes.clear();
        }
        let answer = self.hooks.describe_dtype.bind(self.py).call1((dtype,))?;
        let (name, native): (Option<String>, bool) = answer.extract()?;
        let Some(name) = name else {
            return Err(Failure::leaf(format!(
                "cannot serialize an array of dtype {}: only numeric, boolean and date dtypes \
                 can be stored",
                dtype.repr()?
            )));
        };
        self.dtypes.push(Dtype {
            itemsize: numpy::PyArrayDescrMethods::itemsize(dtype),
            object: dtype.clone(),
            name,
            native,
            lent: MAX_FAILURES,
        });
        Ok(self.dtypes.len() - 1)
    }

    /// Gets the bytes of all noted arrays, their transfers started together.
    pub fn fetch(&mut self) -> Walked {
        if self.on_device.is_empty() {
            return Ok(());
        }
        let noted = std::mem::take(&mut self.on_device);
        let arrays = PyList::new(self.py, noted.iter().map(|noted| &noted.array))?;
        let fetched = self.hooks.to_host.bind(self.py).call1((arrays,))?;
        let fetched = fetched.cast::<PyList>()?;
        if fetched.len() != noted.len() {
            return Err(broken("another number of arrays").into());
        }
        for (noted, host) in noted.into_iter().zip(fetched.iter()) {
            if let Ok(host) = host.cast::<PyUntypedArray>() {
                let memory = host_memory(host, &noted.shape, noted.itemsize)?;
                for (place, range) in noted.parts {
                    self.out.fill(place, Source::part(self.py, &memory, range));
                }
            } else {
                let shards: Vec<HostShard<'_>> = host.extract()?;
                let mut blocks = Vec::with_capacity(shards.len());
                for (start, host) in shards {
                    let shape = host.shape().to_vec();
                    blocks.push(Shard {
                        memory: host_memory(&host, &shape, noted.itemsize)?,
                        start,
                        shape,
                    });
                }
                let array = Sharded::new(noted.shape, noted.itemsize, blocks)
                    .ok_or_else(|| broken("shards that do not form the array"))?;
                let array = Arc::new(array);
                for (place, range) in noted.parts {
                    self.out.fill(place, Source::shards(&array, range));
                }
            }
        }
        Ok(())
    }
}

/// The index of the first element of a shard, and its elements.
type HostShard<'py> = (Vec<usize>, Bound<'py, PyUntypedArray>);

/// The bytes of an array that `to_host` has returned.
fn host_memory(
    host: &Bound<'_, PyUntypedArray>,
    shape: &[usize],
    itemsize: usize,
) -> Walked<Borrowed> {
    let same = numpy::PyArrayDescrMethods::itemsize(&host.dtype()) == itemsize;
    if !same || host.shape() != shape || !host.is_c_contiguous() {
        return Err(broken("another array").into());
    }
    Ok(Borrowed::array(host, host.len() * itemsize))
}

fn broken(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("to_host returned {what}"))
}

/// Writes the headers of an array at the end of the layout.
fn frame(
    out: &mut LayoutBuilder<Source>,
    recent: &mut RecentHeaders,
    key: Option<&str>,
    header: &Array<'_>,
    framing: Framing,
    place: Place,
    payload: impl FnMut(&mut LayoutBuilder<Source>, std::ops::Range<usize>),
) -> Walked {
    let framing = Framing {
        may_box: !place.in_list,
        ..framing
    };
    array::frame(out, recent, key, header, &framing, payload).map_err(Box::from)
}
