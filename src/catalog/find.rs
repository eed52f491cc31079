//! Values by their keys.
//!
//! A small container is gone through. For a large one a table of its keys is made when something
//! is looked up in it for the first time, and kept.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use super::Catalog;
use crate::watch::Watch;
use crate::{Error, Result, grow};

/// Of so many children a table would not be faster.
const FEW: usize = 16;

/// After so many children the caller is asked whether to go on.
const CHECK_CHILDREN: usize = 1 << 12;

/// The tables of large containers. Together they have at most four places for each value.
#[derive(Debug, Default)]
pub(super) struct Tables {
    known: Mutex<HashMap<usize, Arc<Table>>>,
    /// Nobody can choose keys that meet.
    hasher: RandomState,
}

/// The children of a container: each in the first place that is free from that of its hash on.
#[derive(Debug)]
struct Table {
    /// How far behind the container a child is; 0 is a free place. Of equal keys the last is there.
    places: Vec<u32>,
}

impl Catalog {
    /// The child of a container that has this key. Of equal keys the last counts.
    pub(super) fn child(
        &self,
        value: usize,
        key: &str,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        if self.children(value).nth(FEW).is_some() {
            return Ok(self.table(value, watch)?.find(self, value, key).ok());
        }
        let same = |child: &usize| self.has_key(*child, key);
        Ok(self.children(value).filter(same).last())
    }

    fn table(&self, value: usize, watch: &dyn Watch) -> Result<Arc<Table>> {
        // Nothing is held while the table is made: who is asked meanwhile may look up something.
        let known = || {
            self.tables
                .known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some(table) = known().get(&value) {
            return Ok(table.clone());
        }
        let table = Arc::new(Table::new(self, value, watch)?);
        let mut known = known();
        known.try_reserve(1)?;
        known.insert(value, table.clone());
        Ok(table)
    }

    fn has_key(&self, child: usize, key: &str) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        self.key(child) == key
    }
}

impl Table {
    fn new(catalog: &Catalog, value: usize, watch: &dyn Watch) -> Result<Self> {
        let room = 2 * catalog.children(value).count();
        let mut table = Self {
            places: grow::filled(0, room.next_power_of_two())?,
        };
        let mut until_check = CHECK_CHILDREN;
        for child in catalog.children(value) {
            until_check -= 1;
            if until_check == 0 {
                watch.check()?;
                until_check = CHECK_CHILDREN;
            }
            let distance = u32::try_from(child - value).map_err(|_| Error::OutOfMemory)?;
            match table.place(catalog, value, catalog.key(child)) {
                Ok(place) | Err(place) => table.places[place] = distance,
            }
        }
        Ok(table)
    }

    /// The child that has this key; otherwise the place where one would be.
    fn find(
        &self,
        catalog: &Catalog,
        value: usize,
        key: &str,
    ) -> std::result::Result<usize, usize> {
        let place = self.place(catalog, value, key)?;
        Ok(value + self.places[place] as usize)
    }

    /// The place of the child that has this key; otherwise the one where it would be.
    fn place(
        &self,
        catalog: &Catalog,
        value: usize,
        key: &str,
    ) -> std::result::Result<usize, usize> {
        let last = self.places.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // the lowest bits count
        let mut place = catalog.tables.hasher.hash_one(key) as usize & last;
        loop {
            match self.places[place] as usize {
                0 => return Err(place),
                distance if catalog.has_key(value + distance, key) => return Ok(place),
                _ => place = (place + 1) & last,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many keys this thread has compared.
        pub static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    const MANY: usize = if cfg!(miri) { 400 } else { 20_000 }; // Miri takes a thousand times as long

    /// A map of these keys, all of nil.
    fn map(keys: impl ExactSizeIterator<Item = String>) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmp::encode::write_map_len(&mut bytes, u32::try_from(keys.len()).unwrap()).unwrap();
        for key in keys {
            rmp::encode::write_str(&mut bytes, &key).unwrap();
            rmp::encode::write_nil(&mut bytes).unwrap();
        }
        bytes
    }

    #[test]
    fn the_last_of_equal_keys_is_found() {
        for count in [1, FEW, FEW + 1, MANY / 20] {
            let source = map((0..2 * count).map(|at| (at % count).to_string()));
            let catalog = Catalog::open(&source, false, &()).unwrap();
            for at in 0..count {
                let found = catalog.find(0, [at.to_string().as_str()], &()).unwrap();
                assert_eq!(found, Some(1 + count + at));
            }
            assert_eq!(catalog.find(0, ["no"], &()).unwrap(), None);
            assert_eq!(catalog.find(0, ["0", "no"], &()).unwrap(), None);
            assert_eq!(catalog.find(0, [], &()).unwrap(), Some(0));
        }
    }

    #[test]
    fn a_key_is_found_without_comparing_it_with_all() {
        let source = map((0..MANY).map(|at| format!("layer{at}")));
        let catalog = Catalog::open(&source, false, &()).unwrap();
        catalog.find(0, ["layer0"], &()).unwrap();
        COMPARED.set(0);
        for at in 0..MANY {
            let key = format!("layer{at}");
            assert_eq!(catalog.find(0, [key.as_str()], &()).unwrap(), Some(at + 1));
        }
        assert!(COMPARED.get() < 8 * MANY);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn who_is_asked_meanwhile_can_stop_it_and_look_up_something() {
        struct Stop<'a>(&'a Catalog);
        impl Watch for Stop<'_> {
            fn check(&self) -> Result<()> {
                assert_eq!(self.0.find(0, ["5"], &())?, Some(6));
                Err(Error::Stopped)
            }

            fn done(&self, _: usize) -> Result<()> {
                self.check()
            }
        }
        let source = map((0..CHECK_CHILDREN).map(|at| at.to_string()));
        let catalog = Catalog::open(&source, false, &()).unwrap();
        let found = catalog.find(0, ["7"], &Stop(&catalog));
        assert!(matches!(found, Err(Error::Stopped)));
        assert_eq!(catalog.find(0, ["7"], &Stop(&catalog)).unwrap(), Some(8));
    }
}
