//! Plans which process writes which shard, so that all write as much.

use std::sync::Arc;

use crate::{Error, Result, grow};

/// The processes that hold each shard of an array, ascending; shared by arrays that are split
/// alike.
#[derive(Debug, PartialEq, Eq)]
pub struct Holders {
    processes: Vec<u32>,
    /// The ends of each shard's processes.
    ends: Vec<usize>,
}

impl Holders {
    /// `None` without shards, or if a shard has no holder.
    pub fn new<I: IntoIterator<Item = u32>>(
        shards: impl IntoIterator<Item = I>,
    ) -> Result<Option<Self>> {
        let (mut processes, mut ends) = (Vec::new(), Vec::new());
        for shard in shards {
            let before = processes.len();
            for process in shard {
                grow::push(&mut processes, process)?;
            }
            if processes.len() == before {
                return Ok(None);
            }
            processes[before..].sort_unstable();
            grow::push(&mut ends, processes.len())?;
        }
        Ok((!ends.is_empty()).then_some(Self { processes, ends }))
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    fn of(&self, shard: usize) -> &[u32] {
        let start = shard.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.processes[start..self.ends[shard]]
    }

    fn are_single(&self) -> bool {
        self.processes.len() == self.ends.len()
    }
}

#[derive(Debug, Clone)]
pub struct Split {
    pub counts: Vec<u32>,
    pub holders: Arc<Holders>,
    pub nbytes: u64,
    pub host: bool,
}

/// The plan, equal in all processes with equal splits.
#[derive(Debug)]
pub struct ShardPlan {
    pub splits: Vec<Split>,
    /// Per array, the file of each shard: the index of its writer in `processes`.
    pub files: Vec<Arc<Vec<u32>>>,
    pub processes: Vec<u32>,
}

impl ShardPlan {
    /// Balances the bytes. A process writes shards that only it holds; each other shard, largest
    /// first, goes to its holder with the fewest bytes so far.
    pub fn new(splits: Vec<Split>) -> Result<Self> {
        let most = splits.iter().flat_map(|split| &split.holders.processes);
        let count = most.max().map_or(0, |most| *most as usize + 1);
        let mut loads = grow::filled(0_u64, count)?;
        let mut files: Vec<Option<Arc<Vec<u32>>>> = grow::filled(None, splits.len())?;
        let mut alike: Option<(&Arc<Holders>, Arc<Vec<u32>>)> = None;
        let mut shared = Vec::new();
        for (array, split) in splits.iter().enumerate() {
            for shard in 0..split.holders.count() {
                if let [only] = split.holders.of(shard) {
                    loads[*only as usize] = loads[*only as usize].saturating_add(split.nbytes);
                }
            }
            if !split.holders.are_single() {
                grow::push(&mut shared, array)?;
                continue;
            }
            // Arrays that are split alike are mostly neighbours.
            let known = match &alike {
                Some((holders, known)) if Arc::ptr_eq(holders, &split.holders) => known.clone(),
                _ => Arc::new(grow::to_vec(&split.holders.processes)?),
            };
            files[array] = Some(known.clone());
            alike = Some((&split.holders, known));
        }
        shared.sort_by_key(|array| std::cmp::Reverse(splits[*array].nbytes));
        for array in shared {
            let split = &splits[array];
            let writers = (0..split.holders.count()).map(|shard| {
                let holders = split.holders.of(shard);
                let least = holders.iter().min_by_key(|holder| loads[**holder as usize]);
                let writer = *least.expect("each shard has a holder");
                if holders.len() > 1 {
                    loads[writer as usize] = loads[writer as usize].saturating_add(split.nbytes);
                }
                writer
            });
            files[array] = Some(Arc::new(grow::collect(writers)?));
        }
        let files = grow::collect(files.into_iter().flatten())?;
        Self::numbered(splits, files, count)
    }

    /// Replaces process numbers by file numbers.
    fn numbered(splits: Vec<Split>, mut files: Vec<Arc<Vec<u32>>>, count: usize) -> Result<Self> {
        let mut writes = grow::filled(false, count)?;
        for writer in files.iter().flat_map(|files| files.iter()) {
            writes[*writer as usize] = true;
        }
        let mut numbers = grow::filled(u32::MAX, count)?;
        let mut processes = Vec::new();
        for process in (0..count).filter(|process| writes[*process]) {
            let number = u32::try_from(processes.len()).map_err(|_| Error::OutOfMemory)?;
            numbers[process] = number;
            grow::push(
                &mut processes,
                u32::try_from(process).map_err(|_| Error::OutOfMemory)?,
            )?;
        }
        if processes.len() < count {
            for files in &mut files {
                let number = |process: &u32| numbers[*process as usize];
                *files = Arc::new(grow::collect(files.iter().map(number))?);
            }
        }
        Ok(Self {
            splits,
            files,
            processes,
        })
    }

    pub fn shards_of(&self, array: usize, process: u32) -> impl Iterator<Item = usize> + '_ {
        let file = self.processes.binary_search(&process).ok();
        let files = file.map_or(&[][..], |_| self.files[array].as_slice());
        let is_mine = move |(_, found): &(usize, &u32)| Some(**found as usize) == file;
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
        for (split, files) in self.splits.iter().zip(&self.files) {
            add(&split.counts);
            add(&[u32::from(split.host)]);
            add(files);
        }
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(nbytes: u64, holders: &[&[u32]]) -> Split {
        let shards = holders.iter().map(|holders| holders.iter().copied());
        Split {
            counts: vec![u32::try_from(holders.len()).unwrap()],
            holders: Arc::new(Holders::new(shards).unwrap().unwrap()),
            nbytes,
            host: false,
        }
    }

    #[test]
    fn shards_of_several_processes_are_balanced() {
        let mut splits = vec![split(100, &[&[2], &[5]])];
        splits.extend((1..=20).map(|at| split(10 * at, &[&[9, 2, 5]])));
        let plan = ShardPlan::new(splits).unwrap();
        assert_eq!(plan.processes, [2, 5, 9]);
        assert_eq!(*plan.files[0], [0, 1]);
        let mut loads = [0; 3];
        for (split, files) in plan.splits.iter().zip(&plan.files) {
            for file in files.iter() {
                loads[*file as usize] += split.nbytes;
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
        let first = split(7, &[&[0], &[1], &[1]]);
        let plan = ShardPlan::new(vec![first.clone(), first.clone(), first]).unwrap();
        assert!(Arc::ptr_eq(&plan.files[0], &plan.files[2]));
        let other = ShardPlan::new(vec![split(7, &[&[0], &[1], &[0]])]).unwrap();
        assert_ne!(plan.checksum(), other.checksum());
    }

    #[test]
    fn a_shard_without_holder_is_rejected() {
        assert!(Holders::new([vec![1], vec![]]).unwrap().is_none());
        assert!(Holders::new(Vec::<Vec<u32>>::new()).unwrap().is_none());
    }
}
