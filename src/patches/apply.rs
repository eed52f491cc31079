//! Replaces a base's encoding by a patch's, in the same memory.
//!
//! A block is decoded before it changes, and compared with its checksum while it changes.
//! Differences can be undone: after an error, changed blocks are restored. Steps that cannot fail
//! come last.

use std::num::NonZero;
use std::sync::Mutex;

use super::base::Base;
use super::join::{Join, Mismatches, Part, malformed};
use super::patch::{Patch, value_len};
use crate::base::raw::RawBytes;
use crate::base::source::Source;
use crate::base::watch::Watch;
use crate::codec::delta::{Block, Decoder};
use crate::format::wire::{Cursor, Head};
use crate::{Error, Result, base::grow, base::parallel};

struct Change<'m, 'p> {
    /// The number of the difference.
    number: usize,
    block: Block<'p>,
    memory: &'m mut [u8],
    /// Of the base, if the block is ordered by them.
    exponents: Vec<u8>,
    is_done: bool,
}

/// Replaces the encoding of the base at the start of `memory`, and returns the length of the new one.
///
/// After an error, the memory has the base, unless the error is [`Error::Torn`].
pub fn apply(
    patch: &Patch<'_>,
    memory: &mut [u8],
    threads: NonZero<usize>,
    watch: &dyn Watch,
) -> Result<usize> {
    let join = {
        let whole = RawBytes::from(&*memory);
        check_tree(patch, &whole)?;
        let source = whole.slice(0..value_len(&whole, watch)?);
        let base = Base::open(&source, &source, false, watch)?;
        Join::new(patch, &base, false, watch)?
    };
    check_places(&join, memory.len())?;
    let (mut copies, mut changes) = (Vec::new(), Vec::new());
    let mut rest = &mut memory[..join.len()];
    for (place, part) in join.parts()? {
        let (now, after) = rest.split_at_mut(place.len());
        rest = after;
        match part {
            Part::Bytes(bytes) => grow::push(&mut copies, (bytes, now))?,
            Part::Lost => unreachable!("the patch is not salvaged"),
            Part::Block(number, block) => {
                let change = Change {
                    number,
                    block: patch.differences[number].blocks[block],
                    memory: now,
                    exponents: Vec::new(),
                    is_done: false,
                };
                grow::push(&mut changes, change)?;
            }
        }
    }
    if let Err(error) = forth(&join, &mut changes, threads, watch) {
        back(&mut changes)?;
        return Err(error);
    }
    for (bytes, memory) in copies {
        memory.copy_from_slice(bytes);
    }
    Ok(join.len())
}

/// Fails if memory cannot have the arrays that a patch changes: it begins with another kind of value.
fn check_tree(patch: &Patch<'_>, memory: &dyn Source) -> Result<()> {
    match Cursor::new(memory).head()? {
        Head::Map(_) | Head::Array(_) | Head::Ext(..) => Ok(()),
        _ if patch.differences.is_empty() => Ok(()),
        _ => {
            let reason = "the buffer does not begin with a tree: write one with pack_into first";
            Err(Error::malformed(0, reason))
        }
    }
}

/// Fails unless all arrays stay where they are.
fn check_places(join: &Join<'_>, room: usize) -> Result<()> {
    if join.len() > room {
        let needed = join.len();
        let reason =
            format!("the buffer is too small: expected at least {needed} bytes, found {room}");
        return Err(Error::Option(reason));
    }
    for (difference, (value, pieces)) in join.patch.differences.iter().zip(&join.partners) {
        if *pieces.as_slice() != [difference.place.clone()] {
            let path = join.catalog.path_of(*value);
            return Err(Error::Option(format!(
                "{path} would move in the new encoding, because the length of a value before it \
                 or the order of keys changed: pack the whole tree"
            )));
        }
    }
    Ok(())
}

fn forth(
    join: &Join<'_>,
    changes: &mut [Change<'_, '_>],
    threads: NonZero<usize>,
    watch: &dyn Watch,
) -> Result<()> {
    let mismatches = Mutex::new(Mismatches::default());
    let work = |decoder: &mut Decoder, change: &mut Change<'_, '_>| {
        let number = change.number;
        let done = decoder.apply(change.block, change.memory, &mut change.exponents)?;
        change.is_done = done.ok_or_else(|| malformed(&join.patch.differences[number]))?;
        if change.is_done {
            return Ok(());
        }
        let mut mismatches = mismatches.lock().expect(parallel::NO_PANIC);
        mismatches.add(join.partners[number].0)
    };
    parallel::for_each_with(grow::collect(changes)?, threads, work, || watch.check())?;
    let mismatches = mismatches.into_inner().expect(parallel::NO_PANIC);
    mismatches.check(&join.catalog)
}

fn back(changes: &mut [Change<'_, '_>]) -> Result<()> {
    let mut decoder = Decoder::default();
    for change in changes.iter_mut().filter(|change| change.is_done) {
        let done = decoder.undo(change.block, change.memory, &change.exponents);
        if !done.is_ok_and(|is_whole| is_whole) {
            return Err(Error::Torn);
        }
    }
    Ok(())
}
