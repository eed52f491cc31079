//! Replaces a base's encoding by a patch's, in the same memory.
//!
//! A block is decoded before it changes, and compared with its checksum while it changes.
//! Differences can be undone: after an error, changed blocks are restored. Steps that cannot fail
//! come last.

use std::num::NonZero;
use std::sync::Mutex;

use crc32fast::Hasher;

use super::base::Base;
use super::block::{Block, Decoder, Kind, PART_BYTES};
use super::elements::{Direction, Elements};
use super::join::{Decoders, Join, Mismatches, NO_PANIC, Part, malformed};
use super::order::add_exponents;
use super::patch::{Patch, value_len};
use crate::raw::RawBytes;
use crate::watch::Watch;
use crate::{Error, Result, grow, parallel};

struct Change<'m, 'p> {
    elements: Elements,
    block: Block<'p>,
    memory: &'m mut [u8],
    /// The exponents of the base, if a block is ordered by them.
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
        let source = whole.slice(0..value_len(&whole, watch)?);
        let base = Base::open(&source, &source, watch)?;
        Join::new(patch, &base, watch)?
    };
    check_places(&join, memory.len())?;
    let (mut copies, mut changes, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = &mut memory[..join.len()];
    for (place, part) in join.parts()? {
        let (now, after) = rest.split_at_mut(place.len());
        rest = after;
        let (number, block) = match part {
            Part::Skeleton(bytes) => {
                grow::push(&mut copies, (bytes, now))?;
                continue;
            }
            Part::Block(number, block) => (number, patch.differences[number].blocks[block]),
        };
        if block.kind == Kind::Stored {
            grow::push(&mut copies, (block.bytes, now))?;
            continue;
        }
        let change = Change {
            elements: patch.differences[number].elements,
            block,
            memory: now,
            exponents: Vec::new(),
            is_done: false,
        };
        grow::push(&mut changes, change)?;
        grow::push(&mut numbers, number)?;
    }
    if let Err(error) = forth(&join, &mut changes, &numbers, threads, watch) {
        back(&mut changes)?;
        return Err(error);
    }
    for (bytes, memory) in copies {
        memory.copy_from_slice(bytes);
    }
    Ok(join.len())
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
    numbers: &[usize],
    threads: NonZero<usize>,
    watch: &dyn Watch,
) -> Result<()> {
    let (mismatches, decoders) = (Mutex::new(Mismatches::default()), Decoders::default());
    let work = |(change, number): (&mut Change<'_, '_>, usize)| {
        let (elements, block) = (change.elements, change.block);
        let (memory, exponents) = (&mut *change.memory, &mut change.exponents);
        let is_same = decoders.with(|decoder| {
            if !decoder.read(elements, block, memory.len())? {
                return Err(malformed(&join.patch.differences[number]));
            }
            if block.kind == Kind::Ordered {
                add_exponents(elements, memory, exponents)?;
                decoder.unsort(elements, exponents)?;
            }
            let mut sum = Hasher::new();
            for (number, part) in memory.chunks_mut(PART_BYTES).enumerate() {
                sum.update(part);
                decoder.change(elements, number * PART_BYTES, part, Direction::Forth);
            }
            let is_same = sum.finalize() == block.crc;
            if !is_same {
                decoder.change_all(elements, memory, Direction::Back);
            }
            Ok(is_same)
        })?;
        change.is_done = is_same;
        if is_same {
            return Ok(());
        }
        let mut mismatches = mismatches.lock().expect(NO_PANIC);
        mismatches.add(join.partners[number].0)
    };
    let items = changes.iter_mut().zip(numbers.iter().copied());
    parallel::for_each(grow::collect(items)?, threads, work, || watch.check())?;
    join.check(mismatches)
}

fn back(changes: &mut [Change<'_, '_>]) -> Result<()> {
    let mut decoder = Decoder::default();
    for change in changes.iter_mut().filter(|change| change.is_done) {
        if restore(&mut decoder, change).is_err() {
            return Err(Error::Torn);
        }
    }
    Ok(())
}

fn restore(decoder: &mut Decoder, change: &mut Change<'_, '_>) -> Result<()> {
    let (elements, block) = (change.elements, change.block);
    if !decoder.read(elements, block, change.memory.len())? {
        return Err(Error::Torn);
    }
    if block.kind == Kind::Ordered {
        decoder.unsort(elements, &change.exponents)?;
    }
    decoder.change_all(elements, change.memory, Direction::Back);
    Ok(())
}
