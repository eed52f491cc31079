//! Huffman codes of DEFLATE (RFC 1951, section 3.2).

use super::bits::BitWriter;

/// All bytes, and the end.
pub const LITERALS: usize = 257;

pub const END_OF_BLOCK: usize = 256;

/// The order of lengths in the code of code lengths.
pub const LENGTHS_ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Code lengths that minimise the bits of these counts, at most `limit`; 0 for absent symbols. At
/// least two symbols must occur: some readers reject incomplete codes.
pub fn code_lengths<const N: usize>(counts: &[u32; N], limit: usize) -> [u8; N] {
    let mut symbols = [0_u64; N];
    let mut used = 0;
    for (symbol, &count) in counts.iter().enumerate() {
        if count > 0 {
            symbols[used] = u64::from(count) << 16 | symbol as u64;
            used += 1;
        }
    }
    let symbols = &mut symbols[..used];
    assert!(used >= 2, "a code of two symbols at least");
    symbols.sort_unstable();
    let mut per_length = leaf_depths(symbols);
    shorten(&mut per_length, limit);
    let mut lengths = [0; N];
    let mut rarest_first = symbols.iter().map(|&symbol| (symbol & 0xffff) as usize);
    for length in (1..=limit).rev() {
        for symbol in rarest_first.by_ref().take(per_length[length]) {
            lengths[symbol] = u8::try_from(length).expect("at most 15");
        }
    }
    lengths
}

/// Counts below 2^32 cannot make a deeper tree.
const MAX_DEPTH: usize = 64;

/// The number of leaves at each depth of the Huffman tree: Moffat and Katajainen, "In-place
/// calculation of minimum-redundancy codes" (1995).
fn leaf_depths(ascending: &[u64]) -> [usize; MAX_DEPTH] {
    let n = ascending.len();
    let mut a: Vec<usize> = ascending.iter().map(|&s| (s >> 16) as usize).collect();
    // Join the two lightest nodes repeatedly; `a` of a joined node is its parent.
    let (mut root, mut leaf) = (0, 0);
    for next in 0..n - 1 {
        let mut weight = 0;
        for _ in 0..2 {
            if leaf >= n || (root < next && a[root] < a[leaf]) {
                weight += a[root];
                a[root] = next;
                root += 1;
            } else {
                weight += a[leaf];
                leaf += 1;
            }
        }
        a[next] = weight;
    }
    // From parents to the number of inner nodes at each depth.
    let mut inner = [0; MAX_DEPTH];
    a[n - 2] = 0;
    inner[0] = 1;
    for next in (0..n - 2).rev() {
        a[next] = a[a[next]] + 1;
        inner[a[next]] += 1;
    }
    let mut leaves = [0; MAX_DEPTH];
    let mut available = 1;
    for depth in 0..MAX_DEPTH {
        leaves[depth] = available - inner[depth];
        available = 2 * inner[depth];
        if available == 0 {
            break;
        }
    }
    leaves
}

/// Moves leaves deeper than `limit` up, and others down to make room.
fn shorten(per_length: &mut [usize; MAX_DEPTH], limit: usize) {
    let deep: usize = per_length[limit + 1..].iter().sum();
    if deep == 0 {
        return;
    }
    per_length[limit + 1..].fill(0);
    per_length[limit] += deep;
    // A code of length l takes 2^(limit - l) of 2^limit slots.
    let places = 1_usize << limit;
    let mut taken: usize = (1..=limit).map(|l| per_length[l] << (limit - l)).sum();
    while taken > places {
        let longest = (1..limit).rev().find(|&l| per_length[l] > 0);
        let longest = longest.expect("2^limit codes fit, and there are fewer symbols");
        per_length[longest] -= 1;
        per_length[longest + 1] += 1;
        taken -= 1 << (limit - longest - 1);
    }
    while taken < places {
        per_length[limit] -= 1;
        per_length[limit - 1] += 1;
        taken += 1;
    }
}

pub fn bits<const N: usize>(counts: &[u32; N], lengths: &[u8; N]) -> u64 {
    let pairs = counts.iter().zip(lengths);
    pairs
        .map(|(&count, &length)| u64::from(count) * u64::from(length))
        .sum()
}

/// Canonical codes of these lengths, first bit lowest, as DEFLATE writes them.
pub fn codes<const N: usize>(lengths: &[u8; N]) -> [u16; N] {
    let mut per_length = [0_u16; 16];
    for &length in lengths {
        per_length[usize::from(length)] += 1;
    }
    per_length[0] = 0;
    let mut next = [0_u16; 16];
    for length in 1..16 {
        next[length] = (next[length - 1] + per_length[length - 1]) << 1;
    }
    let mut codes = [0; N];
    for (code, &length) in codes.iter_mut().zip(lengths) {
        if length > 0 {
            let place = &mut next[usize::from(length)];
            *code = place.reverse_bits() >> (16 - u16::from(length));
            *place += 1;
        }
    }
    codes
}

/// Writes the header of a non-final block with codes for literals and lengths, and for distances.
pub fn write_header(literals: &[u8], distances: &[u8], out: &mut BitWriter<'_>) {
    let used = literals.iter().rposition(|&length| length > 0);
    let literals = &literals[..used.map_or(LITERALS, |last| LITERALS.max(last + 1))];
    let runs = run_lengths(&[literals, distances].concat());
    let mut counts = [0_u32; 19];
    for (symbol, _) in &runs {
        counts[usize::from(*symbol)] += 1;
    }
    // Readers need a code of two symbols; 0 and 18 are the cheapest to write.
    for symbol in [0, 18] {
        counts[symbol] = counts[symbol].max(1);
    }
    let run_code = code_lengths(&counts, 7);
    let run_codes = codes(&run_code);
    let written = LENGTHS_ORDER
        .iter()
        .rposition(|&symbol| run_code[symbol] > 0)
        .map_or(4, |last| (last + 1).max(4));
    out.put(0b100, 3); // not final, dynamic codes
    out.put((literals.len() - 257) as u64, 5);
    out.put((distances.len() - 1) as u64, 5);
    out.put((written - 4) as u64, 4);
    for &symbol in &LENGTHS_ORDER[..written] {
        out.flush();
        out.put(run_code[symbol].into(), 3);
    }
    for (symbol, extra) in runs {
        let (code, bits) = (
            run_codes[usize::from(symbol)],
            run_code[usize::from(symbol)],
        );
        out.flush();
        out.put(code.into(), bits.into());
        let extra_bits = match symbol {
            16 => 2,
            17 => 3,
            18 => 7,
            _ => 0,
        };
        out.put(extra.into(), extra_bits);
    }
    out.flush();
}

/// The longest header: 316 lengths of 14 bits, and 19 of 3.
pub const MAX_HEADER_BYTES: usize = 600;

/// Symbols of the code of code lengths, a length, or repetitions of the previous length or of 0,
/// and their extra bits.
fn run_lengths(lengths: &[u8]) -> Vec<(u8, u8)> {
    let mut runs = Vec::with_capacity(lengths.len());
    for equal in lengths.chunk_by(|a, b| a == b) {
        let (length, mut left) = (equal[0], equal.len());
        if length > 0 {
            runs.push((length, 0));
            left -= 1;
        }
        while left >= 3 {
            let (symbol, least, most) = match (length, left) {
                (0, 11..) => (18, 11, 138),
                (0, _) => (17, 3, 10),
                _ => (16, 3, 6),
            };
            let now = left.min(most);
            let extra = u8::try_from(now - least).expect("at most 127");
            runs.push((symbol, extra));
            left -= now;
        }
        runs.extend((0..left).map(|_| (length, 0)));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts() -> impl Strategy<Value = [u32; LITERALS]> {
        let count = prop_oneof![Just(0), 1..9_u32, any::<u32>().prop_map(|c| c >> 4)];
        prop::collection::vec(count, LITERALS).prop_map(|mut counts| {
            counts[0] = counts[0].max(1);
            counts[END_OF_BLOCK] = 1;
            counts.try_into().expect("so many")
        })
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn codes_are_complete_and_within_the_limit(counts in counts(), limit in 9..=15_usize) {
            let lengths = code_lengths(&counts, limit);
            let mut taken = 0_usize;
            for (&count, &length) in counts.iter().zip(&lengths) {
                prop_assert_eq!(count > 0, length > 0);
                prop_assert!(usize::from(length) <= limit);
                if length > 0 {
                    taken += 1 << (limit - usize::from(length));
                }
            }
            prop_assert_eq!(taken, 1 << limit);
            prop_assert!(bits(&counts, &code_lengths(&counts, 15)) <= bits(&counts, &lengths));
            for a in 0..LITERALS {
                for b in 0..LITERALS {
                    if counts[b] > 0 && counts[a] > counts[b] {
                        prop_assert!(lengths[a] <= lengths[b]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_known_code_is_optimal() {
        let mut counts = [0; 8];
        counts[..5].copy_from_slice(&[15, 7, 6, 6, 5]);
        assert_eq!(code_lengths(&counts, 15), [1, 3, 3, 3, 3, 0, 0, 0]);
        assert_eq!(codes(&code_lengths(&counts, 15))[..5], [0, 1, 5, 3, 7]);
        assert_eq!(code_lengths(&[1, 1, 2, 4, 8, 16], 15), [5, 5, 4, 3, 2, 1]);
        assert_eq!(code_lengths(&[1, 1, 2, 4, 8, 16], 3), [3, 3, 3, 3, 2, 2]);
    }
}
