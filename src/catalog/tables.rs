//! Hash tables of the keys of large containers.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Error, Result, base::grow};

/// One table per large container, with at most four slots per value in all.
#[derive(Debug, Default)]
pub(super) struct Tables {
    known: Mutex<HashMap<usize, Arc<Table>>>,
    /// Randomly seeded, so that no file can choose colliding keys.
    hasher: RandomState,
}

impl Tables {
    pub(super) fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(super) fn get(&self, container: usize) -> Option<Arc<Table>> {
        self.known().get(&container).cloned()
    }

    pub(super) fn keep(&self, container: usize, table: Table) -> Result<Arc<Table>> {
        let table = Arc::new(table);
        let mut known = self.known();
        known.try_reserve(1)?;
        known.insert(container, table.clone());
        Ok(table)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<usize, Arc<Table>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Open addressing.
#[derive(Debug)]
pub(super) struct Table {
    /// Distances of children from the container; 0 marks a free slot.
    slots: Vec<u32>,
}

impl Table {
    pub(super) fn with_room(children: usize) -> Result<Self> {
        let slots = grow::filled(0, (2 * children).next_power_of_two())?;
        Ok(Self { slots })
    }

    pub(super) fn insert(
        &mut self,
        hash: u64,
        distance: usize,
        has_key: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let distance = u32::try_from(distance).map_err(|_| Error::OutOfMemory)?;
        let slot = self.slot(hash, has_key);
        self.slots[slot] = distance;
        Ok(())
    }

    pub(super) fn find(&self, hash: u64, has_key: impl Fn(usize) -> bool) -> Option<usize> {
        match self.slots[self.slot(hash, has_key)] {
            0 => None,
            distance => Some(distance as usize),
        }
    }

    fn slot(&self, hash: u64, has_key: impl Fn(usize) -> bool) -> usize {
        let last = self.slots.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // the lowest bits count
        let mut slot = hash as usize & last;
        loop {
            match self.slots[slot] as usize {
                0 => return slot,
                distance if has_key(distance) => return slot,
                _ => slot = (slot + 1) & last,
            }
        }
    }
}
