//! Plans which process writes which shard, so that all write as much.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::sharding::manifest::Grid;
use crate::{Error, Result, base::grow};

/// The processes that hold each shard of an array, ascending.
#[derive(Debug)]
pub struct Holders {
    processes: Vec<u32>,
    /// The ends of each shard's processes.
    ends: Vec<usize>,
}

impl Holders {
    pub fn new<I: IntoIterator<Item = u32>>(shards: impl IntoIterator<Item = I>) -> Result<Self> {
        let (mut processes, mut ends) = (Vec::new(), Vec::new());
        for shard in shards {
            let before = processes.len();
            for process in shard {
                grow::push(&mut processes, process)?;
            }
            processes[before..].sort_unstable();
            grow::push(&mut ends, processes.len())?;
        }
        Ok(Self { processes, ends })
    }

    fn shards(&self) -> impl Iterator<Item = &[u32]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.processes[start..*end])
    }
}

#[derive(Debug)]
pub struct Split {
    pub counts: Vec<u32>,
    /// The index of its holders, of which each shard has one.
    pub holders: usize,
    pub nbytes: u64,
    pub host: bool,
}

/// The plan, equal in all processes with equal splits.
#[derive(Debug)]
pub struct ShardPlan {
    /// The file of a shard is the index of its writer in `processes`.
    pub arrays: Vec<Grid>,
    pub processes: Vec<u32>,
}

impl ShardPlan {
    /// Balances the bytes. A process writes shards that only it holds; each other shard, largest
    /// first, goes to its holder with the fewest bytes so far.
    pub fn new(splits: Vec<Split>, holders: &[Holders]) -> Result<Self> {
        let most = holders.iter().flat_map(|holders| &holders.processes).max();
        let count = most.map_or(0, |most| *most as usize + 1);
        let mut loads = grow::filled(0_u64, count)?;
        let add = |load: &mut u64, nbytes| *load = load.saturating_add(nbytes);
        // Arrays that are split alike share the answer.
        let single = holders.iter().map(|holders| {
            let are_single = holders.shards().all(|shard| shard.len() == 1);
            let processes = are_single.then(|| grow::to_vec(&holders.processes));
            Ok(processes.transpose()?.map(Arc::new))
        });
        let single = grow::try_collect(single)?;
        let (mut arrays, mut shared) = (grow::with_room(splits.len())?, Vec::new());
        for split in splits {
            for shard in holders[split.holders].shards() {
                if let [only] = shard {
                    add(&mut loads[*only as usize], split.nbytes);
                }
            }
            let writers = single[split.holders].clone();
            if writers.is_none() {
                grow::push(&mut shared, (split.nbytes, arrays.len(), split.holders))?;
            }
            arrays.push(Grid {
                counts: split.counts,
                files: writers.unwrap_or_default(),
                host: split.host,
            });
        }
        shared.sort_by_key(|(nbytes, ..)| Reverse(*nbytes));
        for (nbytes, array, number) in shared {
            let mut writers = Vec::new();
            for shard in holders[number].shards() {
                let least = shard.iter().min_by_key(|holder| loads[**holder as usize]);
                let writer = *least.expect("each shard has a holder");
                if shard.len() > 1 {
                    add(&mut loads[writer as usize], nbytes);
                }
                grow::push(&mut writers, writer)?;
            }
            arrays[array].files = Arc::new(writers);
        }
        Self::numbered(arrays, count)
    }

    /// Replaces process numbers by file numbers.
    fn numbered(mut arrays: Vec<Grid>, count: usize) -> Result<Self> {
        let mut writes = grow::filled(false, count)?;
        for writer in arrays.iter().flat_map(|grid| grid.files.iter()) {
            writes[*writer as usize] = true;
        }
        let mut numbers = grow::filled(u32::MAX, count)?;
        let mut processes = Vec::new();
        for process in (0..count).filter(|process| writes[*process]) {
            let number = |number: usize| u32::try_from(number).map_err(|_| Error::OutOfMemory);
            numbers[process] = number(processes.len())?;
            grow::push(&mut processes, number(process)?)?;
        }
        if processes.len() < count {
            for grid in &mut arrays {
                let number = |process: &u32| numbers[*process as usize];
                grid.files = Arc::new(grow::collect(grid.files.iter().map(number))?);
            }
        }
        Ok(Self { arrays, processes })
    }

    pub fn shards_of(&self, array: usize, process: u32) -> impl Iterator<Item = usize> + '_ {
        let file = self.processes.binary_search(&process).ok();
        let files = file.map_or(&[][..], |_| self.arrays[array].files.as_slice());
        let is_mine = move |(_, number): &(usize, &u32)| Some(**number as usize) == file;
        files.iter().enumerate().filter(is_mine).map(|(at, _)| at)
    }

    pub fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        let mut add = |numbers: &[u32]| {
            hasher.update(&(numbers.len() as u64).to_le_bytes());
            for part in numbers.chunks(1 << 12) {
                let bytes: Vec<u8> = part
                    .iter()
                    .flat_map(|number| number.to_le_bytes())
                    .collect();
                hasher.update(&bytes);
            }
        };
        add(&self.processes);
        for grid in &self.arrays {
            add(&grid.counts);
            add(&[u32::from(grid.host)]);
            add(&grid.files);
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arrays: &[(u64, &[&[u32]])]) -> ShardPlan {
        let mut distinct: Vec<&[&[u32]]> = arrays.iter().map(|(_, holders)| *holders).collect();
        distinct.dedup();
        let splits = arrays.iter().map(|(nbytes, holders)| Split {
            counts: vec![u32::try_from(holders.len()).unwrap()],
            holders: distinct.iter().position(|other| other == holders).unwrap(),
            nbytes: *nbytes,
            host: false,
        });
        let holders = distinct.iter().map(|shards| {
            let shards = shards.iter().map(|holders| holders.iter().copied());
            Holders::new(shards).unwrap()
        });
        ShardPlan::new(splits.collect(), &holders.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn shards_of_several_processes_are_balanced() {
        const SHARED: &[&[u32]] = &[&[9, 2, 5]];
        let mut arrays: Vec<(u64, &[&[u32]])> = vec![(100, &[&[2], &[5]])];
        arrays.extend((1..=20).map(|at| (10 * at, SHARED)));
        let plan = plan(&arrays);
        assert_eq!(plan.processes, [2, 5, 9]);
        assert_eq!(*plan.arrays[0].files, [0, 1]);
        let mut loads = [0; 3];
        for ((nbytes, _), grid) in arrays.iter().zip(&plan.arrays) {
            for file in grid.files.iter() {
                loads[*file as usize] += nbytes;
            }
        }
        assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 10);
        assert_eq!(plan.shards_of(0, 5).collect::<Vec<_>>(), [1]);
        assert_eq!(
            plan.shards_of(0, 9).count() + plan.shards_of(0, 3).count(),
            0
        );
    }

    #[test]
    fn arrays_that_are_split_alike_share_the_answer() {
        let first: (u64, &[&[u32]]) = (7, &[&[0], &[1], &[1]]);
        let alike = plan(&[first; 3]);
        assert!(Arc::ptr_eq(&alike.arrays[0].files, &alike.arrays[2].files));
        let other = plan(&[(7, &[&[0], &[1], &[0]])]);
        assert_ne!(plan(&[first]).checksum(), other.checksum());
    }
}
