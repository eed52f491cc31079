//! Leaves with a dtype: arrays of NumPy and of jax.

use std::borrow::Cow;

use numpy::{PyArrayDescr, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::super::memory::Borrowed;
use super::scalars::INLINE_MAX_BYTES;
use super::walk::{Dtype, Failure, OnDevice, Place, Walk, Walked};
use crate::array::{self, Array, Framing};
use crate::layout::LayoutBuilder;
use crate::wire;

/// How many dtypes are remembered; a tree has a handful, but objects of one may differ.
const MAX_DTYPES: usize = 64;

impl<'py> Walk<'_, 'py> {
    pub fn array(
        &mut self,
        array: &Bound<'py, PyUntypedArray>,
        code: i8,
        key: Option<&str>,
        place: Place,
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
        frame(
            &mut self.out,
            key,
            &header,
            self.options.framing,
            place,
            |out, range| {
                if range.len() <= INLINE_MAX_BYTES {
                    out.headers().extend_from_slice(&memory.as_ref()[range]);
                } else {
                    let place = out.reserve(range.len());
                    out.fill(place, memory.part(py, range));
                }
            },
        )
    }

    /// Notes a jax array and leaves room for its bytes.
    pub fn jax_array(
        &mut self,
        array: &Bound<'py, PyAny>,
        key: Option<&str>,
        place: Place,
    ) -> Walked {
        let py = self.py;
        let is = |name| array.getattr(name).and_then(|answer| answer.is_truthy());
        if !is(intern!(py, "is_fully_addressable"))? && !is(intern!(py, "is_fully_replicated"))? {
            return Err(Failure::tree(
                "the array has shards on devices of other processes; gather it to this process \
                 first, for example with jax.experimental.multihost_utils.process_allgather",
            ));
        }
        if array.call_method0(intern!(py, "is_deleted"))?.is_truthy()? {
            return Err(Failure::tree("the array has been deleted or donated"));
        }
        let dtype = array.getattr(intern!(py, "dtype"))?;
        let dtype = self.dtype(dtype.cast()?)?;
        let shape: Vec<usize> = array.getattr(intern!(py, "shape"))?.extract()?;
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, &shape);
        let nbytes = header.nbytes();
        let mut parts = Vec::with_capacity(1);
        frame(
            &mut self.out,
            key,
            &header,
            self.options.framing,
            place,
            |out, range| {
                parts.push((out.reserve(range.len()), range));
            },
        )?;
        self.on_device.push(OnDevice {
            array: array.clone(),
            nbytes,
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
        });
        Ok(self.dtypes.len() - 1)
    }

    /// Gets the bytes of all jax arrays, their transfers started together.
    pub fn fetch(&mut self) -> Walked {
        if self.on_device.is_empty() {
            return Ok(());
        }
        let noted = std::mem::take(&mut self.on_device);
        let arrays = PyList::new(self.py, noted.iter().map(|noted| &noted.array))?;
        let fetched = self.hooks.to_host.bind(self.py).call1((arrays,))?;
        let fetched = fetched.cast::<PyList>()?;
        if fetched.len() != noted.len() {
            return Err(
                PyRuntimeError::new_err("to_host returned another number of arrays").into(),
            );
        }
        for (noted, host) in noted.into_iter().zip(fetched.iter()) {
            let host = host.cast::<PyUntypedArray>()?;
            let itemsize = numpy::PyArrayDescrMethods::itemsize(&host.dtype());
            if host.len() * itemsize != noted.nbytes || !host.is_c_contiguous() {
                return Err(PyRuntimeError::new_err("to_host returned another array").into());
            }
            let memory = Borrowed::array(host, noted.nbytes);
            for (place, range) in noted.parts {
                self.out.fill(place, memory.part(self.py, range));
            }
        }
        Ok(())
    }
}

/// Writes the headers of an array at the end of the layout.
fn frame(
    out: &mut LayoutBuilder<Borrowed>,
    key: Option<&str>,
    header: &Array<'_>,
    framing: Framing,
    place: Place,
    payload: impl FnMut(&mut LayoutBuilder<Borrowed>, std::ops::Range<usize>),
) -> Walked {
    let framing = Framing {
        may_box: !place.in_list,
        ..framing
    };
    array::frame(out, key, header, &framing, payload).map_err(Box::from)
}
