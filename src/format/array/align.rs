//! Chooses header widths that align the payload after them.
//!
//! A subset-sum problem: bit `n` of `reach[i]` says that the first `i` headers can take `n` bytes
//! more than the smallest.

use crate::format::wire::Head;

/// Widths for `heads` that add exactly `extra` (below 64) bytes to their smallest forms.
pub fn widen(heads: &[Head], extra: usize) -> Option<Vec<usize>> {
    debug_assert!(extra < 64);
    let mut reach = Vec::with_capacity(heads.len() + 1);
    let mut mask = 1u64;
    reach.push(mask);
    for head in heads {
        mask = extras(*head).fold(0, |sum, more| sum | mask << more);
        reach.push(mask);
    }
    if mask >> extra & 1 == 0 {
        return None;
    }
    let mut left = extra;
    let mut widths = vec![0; heads.len()];
    for (index, head) in heads.iter().enumerate().rev() {
        let more = extras(*head)
            .find(|&more| more <= left && reach[index] >> (left - more) & 1 == 1)
            .expect("a total that is reachable is reachable through its last header");
        widths[index] = head.width() + more;
        left -= more;
    }
    Some(widths)
}

fn extras(head: Head) -> impl Iterator<Item = usize> {
    let least = head.width();
    head.widths().map(move |width| width - least)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(heads: &[Head], extra: usize) -> bool {
        match heads.split_first() {
            None => extra == 0,
            Some((head, rest)) => {
                extras(*head).any(|more| more <= extra && naive(rest, extra - more))
            }
        }
    }

    #[test]
    fn agrees_with_trying_every_combination() {
        let families = [
            vec![],
            vec![Head::Str(3)],
            vec![Head::Str(3), Head::Array(3), Head::Array(1), Head::Uint(5)],
            vec![Head::Bin(100), Head::Ext(1, 120), Head::Str(40)],
            vec![
                Head::Bin(70_000),
                Head::Uint(70_000),
                Head::Map(3),
                Head::Str(7),
                Head::Array(2),
            ],
        ];
        for heads in families {
            for extra in 0..64 {
                let widths = widen(&heads, extra);
                assert_eq!(
                    widths.is_some(),
                    naive(&heads, extra),
                    "{heads:?} + {extra}"
                );
                if let Some(widths) = widths {
                    let least: usize = heads.iter().map(|head| head.width()).sum();
                    assert_eq!(widths.iter().sum::<usize>(), least + extra);
                }
            }
        }
    }
}
