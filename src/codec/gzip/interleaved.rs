//! Decodes several literals-only blocks at once: lookups in other blocks fill the wait for a symbol.

use multiversion::multiversion;

use super::bits::BitReader;
use super::huffman::{END_OF_BLOCK, LENGTHS_ORDER, LITERALS, codes};
use super::literal::{MAX_BITS, STEP};
use crate::{Result, base::grow};

pub const LANES: usize = 8;

/// Staged steps of `STEP` literals.
const STEPS: usize = 128;

/// Indexed by the next `MAX_BITS` bits: the literal times 256, plus its number of bits; `END` for
/// no literal.
pub type Table = [u16; 1 << MAX_BITS];

/// Takes no bits, so that decoding stays there.
pub const END: u16 = 0x80;

type Stage = [[u8; STEP]; STEPS];

pub struct Interleaved {
    tables: Vec<Table>,
    stages: Vec<Stage>,
}

impl Interleaved {
    pub fn new() -> Result<Self> {
        Ok(Self {
            tables: grow::filled([0; 1 << MAX_BITS], LANES)?,
            stages: grow::filled([[0; STEP]; STEPS], LANES)?,
        })
    }

    /// Decodes up to `LANES` blocks of `len` bytes each, and passes each piece of output with its
    /// block's number to `take`. Returns false if a block is not as
    /// [`Code::encode`](super::literal::Code::encode) writes it.
    ///
    /// # Panics
    /// If the number of blocks is 0, or above `LANES`.
    pub fn decode(
        &mut self,
        blocks: &[&[u8]],
        len: usize,
        mut take: impl FnMut(usize, &[u8]),
    ) -> bool {
        // Filling the lanes with the last block is still faster than decoding in sequence.
        let block = |lane: usize| blocks[lane.min(blocks.len() - 1)];
        let mut take = |lane: usize, piece: &[u8]| {
            if lane < blocks.len() {
                take(lane, piece);
            }
        };
        match blocks.len() {
            1 => self.decode_all([blocks[0]], len, &mut take),
            2..=4 => self.decode_all::<4>(std::array::from_fn(block), len, &mut take),
            5..=LANES => self.decode_all::<LANES>(std::array::from_fn(block), len, &mut take),
            count => panic!("{count} blocks"),
        }
    }

    fn decode_all<const N: usize>(
        &mut self,
        blocks: [&[u8]; N],
        len: usize,
        take: &mut impl FnMut(usize, &[u8]),
    ) -> bool {
        let tables = self.tables.first_chunk_mut::<N>().expect("N <= LANES");
        let staged = self.stages.first_chunk_mut::<N>().expect("N <= LANES");
        let mut readers = blocks.map(BitReader::new);
        let mut end_bits = [0; N];
        for lane in 0..N {
            match read_header(&mut readers[lane], &mut tables[lane]) {
                Some(bits) => end_bits[lane] = bits,
                None => return false,
            }
        }
        // The last literal is left for the end, where `END` is detected.
        let mut left = len;
        while left > STEP {
            let steps = STEPS.min((left - 1) / STEP);
            let done = stage(tables, &mut readers, staged, steps);
            for (lane, stage) in staged.iter().enumerate() {
                take(lane, stage[..done].as_flattened());
            }
            left -= done * STEP;
            if done < steps {
                break;
            }
        }
        for (lane, reader) in readers.iter_mut().enumerate() {
            let places = staged[lane].as_flattened_mut();
            let mut left = left;
            while left > 0 {
                let part = left.min(places.len());
                if !literals(reader, &tables[lane], &mut places[..part]) {
                    return false;
                }
                take(lane, &places[..part]);
                left -= part;
            }
            if !ends(reader, &tables[lane], end_bits[lane]) {
                return false;
            }
        }
        true
    }
}

/// Takes the next symbol, whose bits must be ready.
#[inline(always)]
pub fn next_entry(reader: &mut BitReader<'_>, table: &Table) -> u16 {
    #[allow(clippy::cast_possible_truncation)] // only the lowest bits count
    let entry = table[reader.peek() as usize & ((1 << MAX_BITS) - 1)];
    reader.skip(entry);
    entry
}

/// Decodes literals one by one; returns false if the block ends before.
pub fn literals(reader: &mut BitReader<'_>, table: &Table, out: &mut [u8]) -> bool {
    out.iter_mut().all(|byte| {
        reader.refill();
        let entry = next_entry(reader, table);
        *byte = literal(entry);
        entry != END
    })
}

fn literal(entry: u16) -> u8 {
    entry.to_le_bytes()[1]
}

/// Decodes up to `steps` steps of `N` blocks, until one is near its end; returns their number.
// With BMI, variable shifts and masks are one instruction.
#[multiversion(targets("x86_64+bmi1+bmi2+lzcnt"))]
#[allow(clippy::needless_range_loop)] // the lanes of one place together
fn stage<const N: usize>(
    tables: &[Table; N],
    readers: &mut [BitReader<'_>; N],
    staged: &mut [Stage; N],
    steps: usize,
) -> usize {
    let mut now = *readers; // in registers
    let mut done = steps.min(STEPS);
    'steps: for step in 0..done {
        for reader in &mut now {
            if !reader.refill_inside() {
                done = step;
                break 'steps;
            }
        }
        for place in 0..STEP {
            for lane in 0..N {
                let entry = next_entry(&mut now[lane], &tables[lane]);
                staged[lane][step][place] = literal(entry);
            }
        }
    }
    *readers = now;
    done
}

/// Reads a block's header and sets the table. Returns the bits of the end symbol, or `None` for any
/// other form of block.
pub fn read_header(reader: &mut BitReader<'_>, table: &mut Table) -> Option<u16> {
    if reader.take(3) != 0b100 || reader.take(5) != LITERALS - 257 {
        return None;
    }
    let all = LITERALS + reader.take(5) + 1;
    let written = reader.take(4) + 4;
    let mut run_code = [0_u8; 19];
    for &symbol in &LENGTHS_ORDER[..written] {
        run_code[symbol] = u8::try_from(reader.take(3)).ok()?;
    }
    let mut run_table = [0; 1 << 7];
    fill_table(&run_code, &mut run_table, |symbol, bits| {
        symbol << 8 | u16::from(bits)
    })?;
    let mut lengths = Vec::with_capacity(all);
    while lengths.len() < all {
        reader.refill();
        let entry = run_table[(reader.peek() & 0x7f) as usize];
        reader.skip(entry);
        let (length, times) = match literal(entry) {
            16 => (*lengths.last()?, 3 + reader.take(2)),
            17 => (0, 3 + reader.take(3)),
            18 => (0, 11 + reader.take(7)),
            length => (length, 1),
        };
        lengths.extend(std::iter::repeat_n(length, times));
    }
    let (lengths, [1, 1]) = lengths.split_first_chunk::<LITERALS>()? else {
        return None;
    };
    fill_table(lengths, table, |symbol, bits| match u8::try_from(symbol) {
        Ok(literal) => u16::from(literal) << 8 | u16::from(bits),
        Err(_) => END,
    })?;
    Some(lengths[END_OF_BLOCK].into())
}

/// Returns `None` if the code is incomplete, or longer than the table.
pub fn fill_table<const N: usize, T: Copy>(
    lengths: &[u8; N],
    table: &mut [T],
    entry: impl Fn(u16, u8) -> T,
) -> Option<()> {
    let used = || lengths.iter().filter(|&&length| length > 0);
    if used().any(|&length| 1 << length > table.len())
        || used().map(|&length| table.len() >> length).sum::<usize>() != table.len()
    {
        return None;
    }
    for (symbol, (&code, &length)) in (0..).zip(codes(lengths).iter().zip(lengths)) {
        if length > 0 {
            for place in table.iter_mut().skip(code.into()).step_by(1 << length) {
                *place = entry(symbol, length);
            }
        }
    }
    Some(())
}

fn ends(reader: &mut BitReader<'_>, table: &Table, end_bits: u16) -> bool {
    reader.refill();
    if next_entry(reader, table) != END {
        return false;
    }
    reader.skip(end_bits);
    reader.take(3) == 0 && reader.rest() == Some(&[0, 0, 0xff, 0xff])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::gzip::literal::{Code, count};
    use crate::codec::gzip::oracle;

    fn encode(data: &[u8]) -> Vec<u8> {
        let mut out = b"from before".to_vec();
        let len = Code::new(&count(data)).encode(data, &mut out).unwrap();
        out.truncate(len);
        out
    }

    fn decode_all(blocks: &[&[u8]], len: usize) -> Option<Vec<Vec<u8>>> {
        let mut lanes = vec![Vec::new(); blocks.len()];
        let mut take = |lane: usize, piece: &[u8]| lanes[lane].extend_from_slice(piece);
        let well = Interleaved::new().unwrap().decode(blocks, len, &mut take);
        well.then_some(lanes)
    }

    fn decode(block: &[u8], len: usize) -> Option<Vec<u8>> {
        decode_all(&[block], len)?.pop()
    }

    fn data() -> impl Strategy<Value = Vec<u8>> {
        (1..=256_usize, 1..3000_usize, any::<u64>()).prop_map(|(symbols, len, seed)| {
            let mut state = seed | 1;
            (0..len)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let high = (state >> 33) as usize;
                    let byte = high % symbols * (high / 256 % symbols) / symbols;
                    u8::try_from(byte).expect("less than 256 symbols")
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn blocks_are_read_back_by_others_and_here(data in data()) {
            let block = encode(&data);
            prop_assert_eq!(oracle::inflate(&block).unwrap(), &data[..]);
            prop_assert_eq!(decode(&block, data.len()), Some(data.clone()));
            let size = Code::new(&count(&data)).size();
            prop_assert!(block.len().abs_diff(size) < 120, "{} {}", block.len(), size);
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn several_blocks_are_decoded_in_lanes(data in data(), count in 1..=LANES) {
            let mut parts = vec![data.clone(); count];
            for (lane, part) in parts.iter_mut().enumerate() {
                match lane % 4 {
                    0 => (),
                    1 => part.reverse(),
                    2 => part.sort_unstable(),
                    _ => part.fill(7), // one bit each, so that this block ends long before
                }
            }
            let blocks: Vec<_> = parts.iter().map(|part| encode(part)).collect();
            let mut blocks: Vec<_> = blocks.iter().map(|block| &block[..]).collect();
            prop_assert_eq!(decode_all(&blocks, data.len()), Some(parts));
            let last = blocks.len() - 1;
            blocks[last] = &blocks[last][1..];
            prop_assert_eq!(decode_all(&blocks, data.len()), None);
        }

        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn damaged_blocks_do_no_harm(data in data(), at in any::<usize>(), flip in 1..=255_u8) {
            let mut block = encode(&data);
            prop_assert_eq!(decode(&block, data.len() + 1), None);
            prop_assert_eq!(decode(&block, data.len() + 3 * STEP), None);
            prop_assert_eq!(decode(&block, data.len() - 1), None);
            prop_assert_eq!(decode(&block[..at % block.len()], data.len()), None);
            let at = at % block.len();
            block[at] ^= flip;
            if let Some(decoded) = decode(&block, data.len()) {
                // The checksum detects another literal.
                prop_assert_eq!(decoded.len(), data.len());
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn rejects_blocks_that_zlib_rejects() {
        let data = b"hello hello, hello hello!".repeat(40);
        let block = encode(&data);
        for bit in 0..8 * block.len() {
            let mut block = block.clone();
            block[bit / 8] ^= 1 << (bit % 8);
            let theirs = oracle::inflate(&block).ok();
            if let Some(ours) = decode(&block, data.len()) {
                assert_eq!(Some(ours), theirs, "bit {bit}");
            }
        }
    }
}
