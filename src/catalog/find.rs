//! Finds values by key: by comparison in small containers, by a hash table built on first use in
//! large ones.

use std::sync::Arc;

use super::Catalog;
use super::tables::Table;
use crate::base::watch::{Steps, Watch};
use crate::{Result, base::grow};

/// Up to this number of children a table is not faster.
const FEW: usize = 16;

impl Catalog {
    /// For each value, the value of another catalog at the same path; of equal paths the last.
    ///
    /// Compares each key once: all paths together may be much longer than the data.
    pub fn partners(&self, other: &Self, watch: &dyn Watch) -> Result<Vec<Option<usize>>> {
        let mut partners = grow::with_room(self.values())?;
        let mut steps = Steps::new(watch);
        for (value, entry) in self.entries.iter().enumerate() {
            steps.count()?;
            let partner = match value {
                0 => Some(0),
                _ => match partners[entry.parent] {
                    Some(parent) => other.child(parent, self.key(value), watch)?,
                    None => None,
                },
            };
            partners.push(partner);
        }
        Ok(partners)
    }

    pub(super) fn child(
        &self,
        value: usize,
        key: &str,
        watch: &dyn Watch,
    ) -> Result<Option<usize>> {
        if self.children(value).nth(FEW).is_some() {
            let table = self.table(value, watch)?;
            let hash = self.tables.hash(key);
            let distance = table.find(hash, |distance| self.has_key(value + distance, key));
            return Ok(distance.map(|distance| value + distance));
        }
        let same = |child: &usize| self.has_key(*child, key);
        Ok(self.children(value).filter(same).last())
    }

    fn table(&self, value: usize, watch: &dyn Watch) -> Result<Arc<Table>> {
        // Builds the table without a lock: the watch may look up a value.
        if let Some(table) = self.tables.get(value) {
            return Ok(table);
        }
        let mut table = Table::with_room(self.children(value).count())?;
        let mut steps = Steps::new(watch);
        for child in self.children(value) {
            steps.count()?;
            let key = self.key(child);
            table.insert(self.tables.hash(key), child - value, |distance| {
                self.has_key(value + distance, key)
            })?;
        }
        self.tables.keep(value, table)
    }

    fn has_key(&self, child: usize, key: &str) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        self.key(child) == key
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Error;

    thread_local! {
        pub static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    const MANY: usize = if cfg!(miri) { 400 } else { 20_000 }; // Miri takes a thousand times as long

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
                let value = catalog.find(0, [at.to_string().as_str()], &()).unwrap();
                assert_eq!(value, Some(1 + count + at));
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
    fn keys_above_many_leaves_are_compared_once_to_find_partners() {
        let mut source = vec![0x81, 0xa1, b'a'];
        source.extend(map((0..MANY).map(|at| at.to_string())));
        let mut other = vec![0x82, 0xa1, b'b', 1, 0xa1, b'a'];
        other.extend(map((1..MANY).map(|at| at.to_string())));
        let catalogs = [&source, &other].map(|data| Catalog::open(data, false, &()).unwrap());
        COMPARED.set(0);
        let partners = catalogs[0].partners(&catalogs[1], &()).unwrap();
        // In the table, a lookup compares 1.3 keys on average.
        assert!(COMPARED.get() < MANY * 8 / 5, "{}", COMPARED.get());
        assert_eq!(partners[..3], [Some(0), Some(2), None]);
        assert!((3..MANY + 2).all(|value| partners[value] == Some(value)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn the_watch_can_stop_a_lookup_and_do_another() {
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
        let source = map((0..Steps::EVERY).map(|at| at.to_string()));
        let catalog = Catalog::open(&source, false, &()).unwrap();
        let result = catalog.find(0, ["7"], &Stop(&catalog));
        assert!(matches!(result, Err(Error::Stopped)));
        assert_eq!(catalog.find(0, ["7"], &Stop(&catalog)).unwrap(), Some(8));
    }
}
