//! Finds the arrays of a base by path.

use std::ops::Range;

use crate::Result;
use crate::base::source::{Pieces, Source};
use crate::base::watch::Watch;
use crate::catalog::{ArrayPlace, Catalog};

/// Encoded data that differences refer to.
pub struct Base<'a> {
    catalog: Catalog,
    /// Reads headers.
    headers: &'a dyn Source,
    pub bytes: &'a dyn Source,
}

pub struct Array<'a> {
    catalog: &'a Catalog,
    pub value: usize,
    place: ArrayPlace,
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

    /// For each value of a catalog, the value of the base at the same path.
    pub fn partners(&self, of: &Catalog, watch: &dyn Watch) -> Result<Vec<Option<usize>>> {
        of.partners(&self.catalog, watch)
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
    let is_array = catalog
        .leaf(value)
        .and_then(|leaf| catalog.dtype_and_shape(leaf));
    if is_array.is_none() {
        return Ok(None);
    }
    let place = catalog.array(headers, value)?;
    Ok(Some(Array {
        catalog,
        value,
        place,
    }))
}

impl Array<'_> {
    fn kind(&self) -> (&str, &[u64]) {
        let leaf = self.catalog.leaf(self.value);
        let kind = leaf.and_then(|leaf| self.catalog.dtype_and_shape(leaf));
        kind.expect("the leaf is an array")
    }

    fn is_like(&self, other: &Array<'_>) -> bool {
        self.kind() == other.kind() && self.place.nbytes() == other.place.nbytes()
    }

    pub fn dtype(&self) -> &str {
        self.kind().0
    }

    pub fn itemsize(&self) -> usize {
        let count = self.place.shape().iter().product::<usize>().max(1);
        self.place.nbytes() / count
    }

    /// Ranges of its elements, in order: one, or one for each chunk.
    pub fn parts(&self) -> &[Range<usize>] {
        self.place.parts()
    }

    /// Locates a range of its elements.
    pub fn pieces(&self, range: Range<usize>) -> Result<Pieces> {
        self.place.pieces(range)
    }
}
