//! Writes NumPy and jax arrays.

use std::ops::Range;
use std::sync::Arc;

use numpy::{PyArrayDescr, PyUntypedArray};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;

use super::super::content::Content;
use super::super::dtypes::Dtype;
use super::super::failure::{Failure, Walked};
use super::super::memory::{Alike, ArrayParts, Borrowed, exported};
use super::devices::DeviceArray;
use super::payload::{InSource, LeafPayload, OnDevice};
use super::state::{KnownDtype, LastSmall, Walk};
use crate::base::grow;
use crate::base::source::{Pieces, Source};
use crate::format::array::ALIGN_MIN_BYTES;
use crate::format::layout::LayoutBuilder;
use crate::format::mesh::{Axes, Axis, Sharding};
use crate::format::structure::Kind;
use crate::format::wire;

/// A tree has few dtypes, but may have many objects of one.
const MAX_DTYPES: usize = 64;

const MAX_SHARDINGS: usize = 64;

/// Smaller arrays are copied among the headers, because borrowing costs more.
const INLINE_MAX_BYTES: usize = ALIGN_MIN_BYTES - 1;

/// The limit if `joined`, until the first payload is borrowed: this copy is the only one.
const JOINED_INLINE_MAX_BYTES: usize = 4 << 10;

/// Smaller NumPy arrays are written even where gaps are left.
const GAP_MIN_BYTES: usize = 64;

/// Refusals of jax to lend arrays of a dtype until the walk stops trying.
const MAX_FAILURES: u8 = 8;

impl<'py> Walk<'py> {
    pub fn array(&mut self, array: &Bound<'py, PyUntypedArray>, code: i8) -> Walked {
        if let Some(last) = &mut self.last_small
            && last.code == code
            && let Some(memory) = last.alike.memory(array)
            && self.out.array_like(&last.headers, memory)?
        {
            last.is_repeated = true;
            return Ok(());
        }
        self.host_array(array, code, Kind::Plain)
    }

    fn host_array(&mut self, array: &Bound<'py, PyUntypedArray>, code: i8, kind: Kind) -> Walked {
        let dtype = self.dtype_of(array)?;
        // From here on no code of Python runs, which could change the array.
        let parts = ArrayParts::of(array);
        if self.has_dtype(dtype, &parts) {
            if parts.is_contiguous() && self.dtypes[dtype].dtype.native {
                return self.contiguous_array(array, &parts, dtype, code, kind);
            }
            let copy = self.in_order(array)?;
            let copy = copy.cast::<PyUntypedArray>()?;
            let dtype = self.dtype_of(copy)?;
            let parts = ArrayParts::of(copy);
            if self.has_dtype(dtype, &parts) && parts.is_contiguous() {
                return self.contiguous_array(copy, &parts, dtype, code, kind);
            }
        }
        Err(Failure::leaf(
            "the dtype of the array was changed while it was saved",
        ))
    }

    /// Copies an array to C order and native byte order.
    #[inline(never)]
    pub(super) fn in_order(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = array.getattr(intern!(self.py, "dtype"))?;
        let native = dtype.call_method1("newbyteorder", ("=",))?;
        let order = [("order", "C")].into_py_dict(self.py)?;
        let numpy = self.py.import(intern!(self.py, "numpy"))?;
        numpy.call_method("array", (array, native), Some(&order))
    }

    /// Whether an array is written among the headers. Only payloads have digests.
    #[inline]
    fn is_inline(&self, nbytes: usize) -> bool {
        nbytes <= INLINE_MAX_BYTES && !self.out.is_digested()
    }

    /// Returns the index in `self.dtypes`. May run Python.
    #[inline]
    fn dtype_of(&mut self, array: &Bound<'py, PyUntypedArray>) -> Walked<usize> {
        let dtype = ArrayParts::dtype_of(array);
        let mut known = self.dtypes.iter();
        match known.position(|known| known.dtype.object.as_ptr() == dtype) {
            Some(found) => Ok(found),
            None => self.dtype(&numpy::PyUntypedArrayMethods::dtype(array)),
        }
    }

    #[inline]
    fn has_dtype(&self, dtype: usize, parts: &ArrayParts<'_>) -> bool {
        self.dtypes[dtype].dtype.object.as_ptr() == parts.dtype()
    }

    #[inline]
    fn contiguous_array(
        &mut self,
        array: &Bound<'py, PyUntypedArray>,
        parts: &ArrayParts<'_>,
        dtype: usize,
        code: i8,
        kind: Kind,
    ) -> Walked {
        let py = self.py;
        let header = self.dtypes[dtype].header(code, parts.shape());
        let memory = parts.memory();
        if self.is_gap(memory.len()) {
            return self.gap(array.as_any(), dtype, code, parts.shape(), kind);
        }
        if self.is_inline(memory.len()) || self.is_copied_once(memory.len()) {
            let put = |out: &mut LayoutBuilder<LeafPayload>, range| {
                out.headers().append(memory.slice(range))
            };
            self.out.array(&header, kind, put)?;
            self.last_small = self.out.last_headers().map(|headers| LastSmall {
                code,
                alike: Alike {
                    dtype: self.dtypes[dtype].dtype.object.clone_ref(py),
                    shape: parts.shape().into(),
                    nbytes: memory.len(),
                },
                is_repeated: false,
                headers,
            });
            return Ok(());
        }
        let memory = Borrowed::array(array);
        let leaf = if matches!(kind, Kind::Jax | Kind::WeakJax) {
            LeafPayload::Held
        } else {
            LeafPayload::Memory
        };
        Ok(self.out.array(&header, kind, |out, range| {
            out.push(leaf(memory.part(py, range)))
        })?)
    }

    /// Returns whether copying an array now puts it in its final place.
    fn is_copied_once(&self, nbytes: usize) -> bool {
        self.options.joined && nbytes <= JOINED_INLINE_MAX_BYTES && !self.out.has_payloads()
    }

    /// Returns whether to leave a gap: never inside a leaf, where readers would not find it.
    fn is_gap(&self, nbytes: usize) -> bool {
        self.options.gaps && nbytes > GAP_MIN_BYTES && !self.out.is_inside_leaf()
    }

    fn gap(
        &mut self,
        array: &Bound<'py, PyAny>,
        dtype: usize,
        code: i8,
        shape: &[usize],
        kind: Kind,
    ) -> Walked {
        let header = self.dtypes[dtype].header(code, shape);
        let number = self.gaps.len();
        grow::push(&mut self.gaps, array.clone().unbind())?;
        Ok(self.out.array(&header, kind, |out, range| {
            let len = range.len();
            out.push(LeafPayload::Gap { number, len })
        })?)
    }

    /// Copies or borrows an array in host memory at once.
    pub fn jax_array(&mut self, array: &Bound<'py, PyAny>) -> Walked {
        let kind = self.jax_kind(array)?;
        if self.options.gaps && !self.out.is_inside_leaf() {
            self.split(array)?;
            // Of any size: all processes must decide alike.
            return self.gap_of_jax_array(array, kind);
        }
        if self.all_lent {
            if self.lent_array(array, &kind)? {
                return Ok(());
            }
            self.all_lent = false;
        }
        let dtype = array.getattr(intern!(self.py, "dtype"))?;
        let dtype = self.dtype(dtype.cast()?)?;
        if self.dtypes[dtype].lent > 0 && array.getattr(intern!(self.py, "ndim"))?.is_truthy()? {
            if self.lent_array(array, &kind)? {
                return Ok(());
            }
            self.dtypes[dtype].lent -= 1;
        }
        self.split(array)?; // sharded arrays have not lent memory above
        let transfer = self.hooks.transfer.bind(self.py);
        match transfer.call_method1(intern!(self.py, "view"), (array,)) {
            Ok(host) => {
                if let Ok(host) = host.cast::<PyUntypedArray>() {
                    return self.host_array(host, wire::EXT_NDARRAY, kind);
                }
            }
            Err(error) => {
                self.check_alive(array)?; // the likely cause
                return Err(error.into());
            }
        }
        self.device_array(array, kind)
    }

    /// Whether the dtype is weak. Most arrays share their `aval`.
    fn jax_kind(&mut self, array: &Bound<'py, PyAny>) -> Walked<Kind> {
        let py = self.py;
        if !self.out.is_described() {
            return Ok(Kind::Jax);
        }
        let Some(aval) = array.getattr_opt(intern!(py, "aval"))? else {
            return Ok(Kind::Jax);
        };
        if let Some((known, kind)) = &self.aval
            && known.is(&aval)
        {
            return Ok(kind.clone());
        }
        let kind = match aval.getattr_opt(intern!(py, "weak_type"))? {
            Some(weak) if weak.is_truthy()? => Kind::WeakJax,
            _ => Kind::Jax,
        };
        self.aval = Some((aval, kind.clone()));
        Ok(kind)
    }

    #[inline(never)]
    pub fn split(&mut self, array: &Bound<'py, PyAny>) -> Walked {
        let py = self.py;
        let (Some(recorder), Some(saved)) = (self.out.recorder(), &self.options.left_out) else {
            return Ok(());
        };
        let Some(sharding) = array.getattr_opt(intern!(py, "sharding"))? else {
            return Ok(());
        };
        let known = self.shardings.iter().find(|(known, _)| known.is(&sharding));
        let number = if let Some((_, number)) = known {
            *number
        } else {
            type Fields = (Vec<(String, u64, bool)>, Vec<Vec<String>>, Vec<String>);
            let fields = saved.call_method1(intern!(py, "describe_sharding"), (&sharding,))?;
            let number = match fields.extract::<Option<Fields>>()? {
                None => None,
                Some((mesh, spec, memory)) => recorder.sharding(Sharding {
                    mesh: grow::collect(mesh.into_iter().map(|axis| Axis(axis.0, axis.1, axis.2)))?,
                    spec: grow::collect(spec.into_iter().map(Axes))?,
                    memory,
                })?,
            };
            if self.shardings.len() == MAX_SHARDINGS {
                self.shardings.clear();
            }
            self.shardings.push((sharding, number));
            number
        };
        recorder.split(number);
        Ok(())
    }

    fn gap_of_jax_array(&mut self, array: &Bound<'py, PyAny>, kind: Kind) -> Walked {
        self.check_alive(array)?;
        let (dtype, shape) = self.dtype_and_shape(array)?;
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, &shape);
        if header.nbytes() == 0 {
            return Ok(self.out.array(&header, kind, |_, _| Ok(()))?); // nothing to leave out
        }
        self.gap(array, dtype, wire::EXT_NDARRAY, &shape, kind)
    }

    fn dtype_and_shape(&mut self, array: &Bound<'py, PyAny>) -> Walked<(usize, Vec<usize>)> {
        let dtype = array.getattr(intern!(self.py, "dtype"))?;
        let shape = array.getattr(intern!(self.py, "shape"))?;
        Ok((self.dtype(dtype.cast()?)?, shape.extract()?))
    }

    fn check_alive(&self, array: &Bound<'py, PyAny>) -> Walked {
        let deleted = array.call_method0(intern!(self.py, "is_deleted"))?;
        if deleted.is_truthy()? {
            return Err(Failure::tree(
                "the array has been deleted or donated: save it before, or save what the call that \
                 took it returned",
            ));
        }
        Ok(())
    }

    /// Writes a jax array in host memory; returns false for others.
    ///
    /// jax lends memory by the buffer protocol at a fraction of the cost of a NumPy array, but not
    /// of all arrays.
    fn lent_array(&mut self, array: &Bound<'py, PyAny>, kind: &Kind) -> Walked<bool> {
        let buffer = match PyUntypedBuffer::get(array) {
            Ok(buffer) => buffer,
            Err(error) if error.is_instance_of::<PyBufferError>(self.py) => return Ok(false),
            Err(error) => {
                self.check_alive(array)?; // the likely cause
                return Err(error.into());
            }
        };
        let format = buffer.format().to_bytes();
        let known = self.formats.iter().find(|(known, _)| *known == format);
        let dtype = if let Some((_, dtype)) = known {
            *dtype
        } else {
            let dtype = array.getattr(intern!(self.py, "dtype"))?;
            let dtype = self.dtype(dtype.cast()?)?;
            self.formats.push((format.to_vec(), dtype));
            dtype
        };
        let shape = buffer.shape().to_vec();
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, &shape);
        if header.nbytes() != buffer.len_bytes() || !buffer.is_c_contiguous() {
            return Ok(false);
        }
        let py = self.py;
        if self.is_inline(header.nbytes()) {
            let memory = exported(&buffer);
            let put = |out: &mut LayoutBuilder<LeafPayload>, range| {
                out.headers().append(memory.slice(range))
            };
            self.out.array(&header, kind.clone(), put)?;
            buffer.release(py);
            return Ok(true);
        }
        let memory = Borrowed::export(py, buffer)?;
        self.out.array(&header, kind.clone(), |out, range| {
            out.push(LeafPayload::Held(memory.part(py, range)))
        })?;
        Ok(true)
    }

    fn device_array(&mut self, array: &Bound<'py, PyAny>, kind: Kind) -> Walked {
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
                 first, for example with jax.experimental.multihost_utils.process_allgather(array, \
                 tiled=True)",
            ));
        }
        self.check_alive(array)?;
        let (dtype, shape) = self.dtype_and_shape(array)?;
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, &shape);
        let device_array = DeviceArray {
            array: array.clone().unbind(),
            itemsize: header.itemsize,
            shape: shape.clone(),
        };
        let devices = &self.devices;
        let number = devices.add(device_array, header.nbytes())?;
        Ok(self.out.array(&header, kind, |out, range| {
            out.push(LeafPayload::Device(Box::new(OnDevice {
                devices: devices.clone(),
                number,
                range,
            })))
        })?)
    }

    pub fn deferred_array(&mut self, array: &Bound<'py, PyAny>) -> Walked {
        let parts = array.call_method0(intern!(self.py, "_deferred"))?;
        let (content, pieces): (Bound<'py, Content>, Vec<(usize, usize)>) = parts.extract()?;
        let (dtype, shape) = self.dtype_and_shape(array)?;
        let header = self.dtypes[dtype].header(wire::EXT_NDARRAY, &shape);
        if self.is_gap(header.nbytes()) {
            return self.gap(array, dtype, wire::EXT_NDARRAY, &shape, Kind::Plain);
        }
        let source = content.get().shared();
        let content = content.into_any().unbind();
        let pieces = grow::collect(pieces.into_iter().map(|(start, end)| start..end))?;
        let pieces = Arc::new(Pieces::new(pieces)?);
        let outside = |piece: &Range<usize>| piece.end > source.len();
        if pieces.len() != header.nbytes() || pieces.as_slice().iter().any(outside) {
            return Err(Failure::leaf(
                "the pieces of the array do not match its size or its file",
            ));
        }
        let py = self.py;
        Ok(self.out.array(&header, Kind::Plain, |out, range| {
            out.push(LeafPayload::Source(Box::new(InSource {
                source: source.clone(),
                content: content.clone_ref(py),
                pieces: pieces.clone(),
                range,
            })))
        })?)
    }

    #[inline(never)]
    fn dtype(&mut self, dtype: &Bound<'py, PyArrayDescr>) -> Walked<usize> {
        if let Some(known) = self
            .dtypes
            .iter()
            .position(|known| known.dtype.object.is(dtype))
        {
            return Ok(known);
        }
        if self.dtypes.len() == MAX_DTYPES {
            self.dtypes.clear();
            self.formats.clear();
        }
        self.dtypes.push(KnownDtype {
            dtype: Dtype::of(dtype)?,
            lent: MAX_FAILURES,
        });
        Ok(self.dtypes.len() - 1)
    }
}
