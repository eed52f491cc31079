//! Finds the arrays of a base by path.

use crate::Result;
use crate::base::source::Source;
use crate::base::watch::Watch;
use crate::catalog::{ArrayPlace, Catalog};

/// Encoded data that differences refer to.
pub struct Base<'a> {
    pub catalog: Catalog,
    /// Reads headers.
    headers: &'a dyn Source,
    pub bytes: &'a dyn Source,
}

pub struct Array<'a> {
    pub dtype: &'a str,
    shape: &'a [u64],
    pub value: usize,
    pub place: ArrayPlace,
}

impl<'a> Base<'a> {
    /// Finds the leaves; `headers` are the same data as `bytes`, perhaps without the elements of arrays.
    pub fn open(
        headers: &'a dyn Source,
        bytes: &'a dyn Source,
        salvage: bool,
        watch: &dyn Watch,
    ) -> Result<Self> {
        Ok(Self {
            catalog: Catalog::open(headers, salvage, watch)?,
            headers,
            bytes,
        })
    }

    pub fn damage(&self) -> Option<String> {
        let damage = self.catalog.damage.as_ref();
        damage.map(|damage| format!("the base is damaged: {}", damage.reason()))
    }

    /// The array that is one of the partners, if it has the same dtype and shape.
    pub fn partner(&self, of: &Array<'_>, partners: &[Option<usize>]) -> Result<Option<Array<'_>>> {
        let Some(value) = partners[of.value] else {
            return Ok(None);
        };
        let partner = array(&self.catalog, self.headers, value)?;
        Ok(partner.filter(|partner| partner.is_like(of)))
    }
}

/// All arrays of encoded data whose headers a source has.
pub fn arrays<'a>(
    catalog: &'a Catalog,
    headers: &'a dyn Source,
) -> impl Iterator<Item = Result<Array<'a>>> {
    (0..catalog.values()).filter_map(move |value| array(catalog, headers, value).transpose())
}

fn array<'a>(
    catalog: &'a Catalog,
    headers: &dyn Source,
    value: usize,
) -> Result<Option<Array<'a>>> {
    let leaf = catalog.leaf(value);
    let Some((dtype, shape)) = leaf.and_then(|leaf| catalog.dtype_and_shape(leaf)) else {
        return Ok(None);
    };
    let place = catalog.array(headers, value)?;
    Ok(Some(Array {
        dtype,
        shape,
        value,
        place,
    }))
}

impl Array<'_> {
    fn is_like(&self, other: &Array<'_>) -> bool {
        (self.dtype, self.shape) == (other.dtype, other.shape)
            && self.place.nbytes() == other.place.nbytes()
    }
}
