//! Differences of floats in the order of their base's exponents.
//!
//! A step of training moves weights by similar amounts, so differences in units of the last
//! place depend on the exponent.

use super::elements::{Element, Elements, for_elements};
use crate::{Result, base::grow};

/// Appends the byte of each element with its exponent, or most of it.
pub fn add_exponents(elements: Elements, base: &[u8], exponents: &mut Vec<u8>) -> Result<()> {
    exponents.try_reserve(base.len() / elements.width)?;
    for_elements!(elements, exponents_of(base, exponents));
    Ok(())
}

fn exponents_of<E: Element, const FLOATS: bool>(base: &[u8], exponents: &mut Vec<u8>) {
    let elements = base.chunks_exact(E::WIDTH);
    exponents.extend(elements.map(|element| E::load(element).exponent()));
}

/// Sorts differences by exponent; equal exponents keep their order.
pub fn sort(
    elements: Elements,
    exponents: &[u8],
    differences: &[u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    grow::resize(out, differences.len(), 0)?;
    for_elements!(elements, sort_of(exponents, differences, out));
    Ok(())
}

fn sort_of<E: Element, const FLOATS: bool>(exponents: &[u8], differences: &[u8], out: &mut [u8]) {
    let mut next = starts(exponents);
    let differences = differences.chunks_exact(E::WIDTH);
    for (exponent, difference) in exponents.iter().zip(differences) {
        E::load(difference).store(place::<E>(&mut next, *exponent, out));
    }
}

/// Undoes [`sort`].
pub fn unsort(
    elements: Elements,
    exponents: &[u8],
    sorted: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<()> {
    grow::resize(out, sorted.len(), 0)?;
    for_elements!(elements, unsort_of(exponents, sorted, out));
    Ok(())
}

fn unsort_of<E: Element, const FLOATS: bool>(exponents: &[u8], sorted: &mut [u8], out: &mut [u8]) {
    let mut next = starts(exponents);
    for (exponent, difference) in exponents.iter().zip(out.chunks_exact_mut(E::WIDTH)) {
        E::load(place::<E>(&mut next, *exponent, sorted)).store(difference);
    }
}

fn place<'o, E: Element>(next: &mut [usize; 256], exponent: u8, all: &'o mut [u8]) -> &'o mut [u8] {
    let number = &mut next[usize::from(exponent)];
    *number += 1;
    &mut all[(*number - 1) * E::WIDTH..][..E::WIDTH]
}

/// For each exponent, the number of elements with lower ones.
fn starts(exponents: &[u8]) -> [usize; 256] {
    let mut counts = [0; 256];
    for exponent in exponents {
        counts[usize::from(*exponent)] += 1;
    }
    let mut before = 0;
    counts.map(|count| {
        before += count;
        before - count
    })
}
