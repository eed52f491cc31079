//! Headers of safetensors, as layouts of files and as manifests of directories.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::content::Content;
use super::gzip;
use super::layout::Layout;
use super::manifest::Manifest;
use super::memory::{keep_reserve, list_of_results, new_dict, new_string, new_tuple, row};
use super::options::Int;
use super::walk::{InSource, LeafPayload};
use crate::base::source::{Pieces, Source as _};
use crate::foreign::safetensors::{DTYPES, Header, Tensor, encode};
use crate::format::array::{Array, Framing};
use crate::format::encoder::Encoder;
use crate::format::structure::Kind;
use crate::sharding::manifest::{self, Grid, ShardFile, Sparse};
use crate::{Error, Result, base::grow, format::wire};

#[pyclass(frozen, module = "treepack._core")]
pub struct Tensors(Header);

#[pymethods]
impl Tensors {
    #[staticmethod]
    #[pyo3(signature = (content, *, salvage=false))]
    fn read(content: &Bound<'_, Content>, salvage: bool) -> PyResult<Self> {
        keep_reserve()?;
        let source = content.get().source();
        Ok(Self(content.py().detach(|| Header::read(source, salvage))?))
    }

    /// Returns the names of NumPy's dtypes with their names in safetensors.
    #[staticmethod]
    fn dtypes() -> Vec<(&'static str, &'static str)> {
        let whole = DTYPES.iter().filter(|(.., bits)| *bits >= 8);
        whole.map(|(theirs, ours, _)| (*ours, *theirs)).collect()
    }

    #[getter]
    fn checksum(&self) -> u32 {
        self.0.checksum
    }

    /// In a salvage, a description of a file that ends too early or too late, or `None`.
    #[getter]
    fn damage<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyString>>> {
        let damage = self.0.damage.as_ref();
        damage.map(|text| new_string(py, text)).transpose()
    }

    /// Returns the texts under `__metadata__`, or `None`.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(metadata) = &self.0.metadata else {
            return Ok(None);
        };
        let dict = new_dict(py)?;
        for (key, text) in metadata {
            let key = new_string(py, key)?;
            dict.set_item(key, new_string(py, text)?)?;
        }
        Ok(Some(dict))
    }

    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = self.0.arrays.iter().map(|array| {
            let shape = new_tuple(py, &array.shape)?;
            row!(py, array.name, array.dtype.as_ref(), shape, array.start)
        });
        list_of_results(py, rows)
    }

    /// Lays out the tree of the arrays, which lie in `content`.
    ///
    /// Names are divided into keys as in a tree that also has the names `beside`.
    #[pyo3(signature = (content, metadata=None, *, beside=Vec::new()))]
    fn layout(
        &self,
        py: Python<'_>,
        content: Py<Content>,
        metadata: Option<Vec<u8>>,
        beside: Vec<String>,
    ) -> PyResult<Layout> {
        keep_reserve()?;
        let arrays = grow::collect(self.0.arrays.iter().map(|array| (array, 0)))?;
        Ok(laid(py, &arrays, &[content], metadata, &beside)?.0)
    }

    /// Makes the manifest of several files, which is never written, and lays out the tree of their arrays.
    ///
    /// `index` has the file of each array, and leaves out others; it is empty if there is none.
    #[staticmethod]
    #[pyo3(signature = (headers, contents, files, index, metadata=None, *, max_size=None))]
    fn manifest<'py>(
        py: Python<'py>,
        headers: Vec<PyRef<'py, Self>>,
        contents: Vec<Py<Content>>,
        files: Vec<(String, u64)>,
        index: &Bound<'py, PyDict>,
        metadata: Option<Vec<u8>>,
        max_size: Option<Int>,
    ) -> PyResult<(Manifest, Layout)> {
        keep_reserve()?;
        let mut arrays: Vec<(&Tensor, u32)> = Vec::new();
        for (number, (header, (file, _))) in headers.iter().zip(&files).enumerate() {
            let number = u32::try_from(number).map_err(|_| Error::OutOfMemory)?;
            for array in &header.0.arrays {
                if index.is_empty() || is_in(index, &array.name, file)? {
                    grow::push(&mut arrays, (array, number))?;
                }
            }
        }
        // Names are unique in a file, and in an index.
        if index.is_empty() && files.len() > 1 {
            check_once(&arrays, &files)?;
        } else if arrays.len() < index.len() {
            return Err(missing(&arrays, index)?);
        }
        let (layout, numbers) = laid(py, &arrays, &contents, metadata, &[])?;
        let grids = arrays.iter().map(|(_, number)| {
            Ok(Grid {
                counts: Vec::new(),
                files: grow::to_vec(&[*number])?.into(),
                host: true,
            })
        });
        let files = files.into_iter().map(|(name, nbytes)| ShardFile {
            name,
            nbytes,
            ..ShardFile::default()
        });
        let (files, grids) = (grow::collect(files)?, grow::try_collect(grids)?);
        let numbers = RefCell::new(numbers.into_iter()); // of the payloads in order
        let encoding = Sparse::of(&layout.output, |_| numbers.borrow_mut().next())?;
        if let Some(max_size) = gzip::limit(max_size)
            && encoding.present(0..encoding.len()) > max_size
        {
            return Err(Error::OutputLimit { max_size }.into());
        }
        let manifest = manifest::Manifest::unwritten(files, grids);
        Ok((Manifest::new(manifest, encoding), layout))
    }
}

/// Lays out arrays of files with a record and an index; returns the number of each payload's array.
fn laid(
    py: Python<'_>,
    arrays: &[(&Tensor, u32)],
    contents: &[Py<Content>],
    metadata: Option<Vec<u8>>,
    beside: &[String],
) -> Result<(Layout, Vec<usize>)> {
    // Longer arrays than its chunks have no form in one piece.
    let mut out = Encoder::indexed(Framing::default(), false);
    let mut numbers = Vec::new();
    let names = arrays.iter().map(|(array, _)| array.name.as_str());
    encode(&mut out, names, beside, |out, number| {
        let (array, file) = arrays[number];
        let place = array.start..array.start + array.nbytes;
        let pieces = Arc::new(Pieces::new(grow::collect([place])?)?);
        out.array(&array.header(), Kind::Plain, |out, range| {
            if range.is_empty() {
                return Ok(());
            }
            grow::push(&mut numbers, number)?;
            out.push(LeafPayload::Source(Box::new(InSource {
                source: contents[file as usize].get().shared(),
                content: contents[file as usize].clone_ref(py).into_any(),
                pieces: pieces.clone(),
                range,
            })))
        })
    })?;
    Ok((Layout::new(out.finish(metadata)?, Vec::new()), numbers))
}

impl Tensor {
    fn header(&self) -> Array<'_> {
        Array {
            code: wire::EXT_NDARRAY,
            shape: &self.shape,
            dtype: &self.dtype,
            itemsize: self.itemsize,
        }
    }
}

/// Returns whether an index has an array in a file.
fn is_in(index: &Bound<'_, PyDict>, name: &str, file: &str) -> PyResult<bool> {
    let place = index.get_item(new_string(index.py(), name)?)?;
    let place = place.map(Bound::cast_into::<PyString>).transpose()?;
    Ok(place.is_some_and(|place| place.to_str().is_ok_and(|place| place == file)))
}

fn check_once(arrays: &[(&Tensor, u32)], files: &[(String, u64)]) -> Result<()> {
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    numbers.try_reserve(arrays.len())?;
    for (array, number) in arrays {
        if let Some(other) = numbers.insert(&array.name, *number) {
            let [other, file] = [other, *number].map(|number| &files[number as usize].0);
            let reason = format!(
                "the array is in two files: {other} and {file}: load one of them by its path"
            );
            return Err(Error::at_key(&array.name, Error::Structure(reason)));
        }
    }
    Ok(())
}

/// Names the first array of an index that is not in its file.
fn missing(arrays: &[(&Tensor, u32)], index: &Bound<'_, PyDict>) -> PyResult<PyErr> {
    let mut names = grow::collect(arrays.iter().map(|(array, _)| array.name.as_str()))?;
    names.sort_unstable();
    for (name, file) in index {
        let name = name.cast::<PyString>()?.to_string_lossy();
        if names.binary_search(&&*name).is_err() {
            let reason = format!("the array is not in {file}, where the index has it");
            return Ok(Error::at_key(&name, Error::Structure(reason)).into());
        }
    }
    Ok(Error::Structure("the index has other arrays".into()).into())
}
