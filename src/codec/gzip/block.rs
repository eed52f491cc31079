//! Chooses the coding of a block by its content.

use flate2::{Compress, Compression, FlushCompress, Status};

use super::literal::{self, Code};
use super::runs::{Distance, RunBlock};
use crate::{Error, Result, base::grow, codec::zlib};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Stored, literals, runs or matches, whichever suits.
    Adaptive,
    /// Matches where they reduce the size, at gzip's level 1 to 9; 0 is stored.
    Level(u32),
    /// As numbers; such a stream is not gzip (see `numbers`).
    Numbers,
}

impl Method {
    pub fn of_level(level: Option<i64>) -> Result<Self> {
        match level.map(u32::try_from) {
            None => Ok(Self::Adaptive),
            Some(Ok(level @ 0..=9)) => Ok(Self::Level(level)),
            Some(_) => Err(Error::Option(format!(
                "level must be from 0 to 9, got {}",
                level.unwrap_or_default()
            ))),
        }
    }
}

const MATCHING_LEVEL: u32 = 2;

/// The part of another coding's size that a coding must save to be preferred.
mod gains {
    /// Matches instead of runs, in samples: searching is slow.
    pub const MATCHES: usize = 16;
    /// Several codes instead of one, which decodes faster.
    pub const PARTS: usize = 128;
}

/// Samples smaller than this part, coded as runs, leave no matches to find.
const HARDLY_ANYTHING: usize = 32;

/// A block larger than this part, coded as runs, contradicts such samples.
const NOT_AS_SAMPLED: usize = 16;

fn gains(size: usize, than: usize, part: usize) -> bool {
    size < than - than / part
}

pub struct Encoded {
    pub len: usize,
    pub literal: bool,
}

impl Encoded {
    pub fn other(len: usize) -> Self {
        Self {
            len,
            literal: false,
        }
    }
}

#[derive(Default)]
pub struct Coder {
    zlib: Option<(u32, Compress)>,
    runs: Vec<RunBlock>,
    part: Vec<u8>,
}

impl Coder {
    /// Writes `data` over the start of `out` as non-final DEFLATE blocks that end at a byte
    /// boundary.
    pub fn encode(&mut self, data: &[u8], method: Method, out: &mut Vec<u8>) -> Result<Encoded> {
        match method {
            _ if data.is_empty() => store(data, out),
            Method::Level(0) => store(data, out),
            Method::Level(level) => {
                let code = Code::new(&literal::count(data));
                self.matches(data, level, out)?;
                if out.len() <= code.size().min(data.len()) {
                    return Ok(Encoded::other(out.len()));
                }
                literals(&code, data, out)
            }
            _ if has_repeats(data) => self.repeats(data, out),
            Method::Adaptive | Method::Numbers => {
                let counts = literal::estimate(data).unwrap_or_else(|| literal::count(data));
                literals(&Code::new(&counts), data, out)
            }
        }
    }

    fn repeats(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Encoded> {
        let (distance, part_bytes, matches_pay) = self.look_at_samples(data, out)?;
        let parts = data.chunks(part_bytes);
        let parts = parts.map(|data| BlockPart::new(data, distance, self.runs.pop()));
        let parts = grow::try_collect(parts)?;
        let in_parts = parts.iter().map(BlockPart::size).sum();
        let not_as_sampled = part_bytes == data.len() && in_parts > data.len() / NOT_AS_SAMPLED;
        let matches_pay = matches_pay || not_as_sampled;
        let mut counts = [0; 256];
        for part in &parts {
            let sums = counts.iter_mut().zip(part.runs.counts);
            sums.for_each(|(sum, count)| *sum += count);
        }
        let whole = Code::new(&counts);
        let encoded = self.smallest(data, &parts, in_parts, &whole, matches_pay, out)?;
        self.runs.try_reserve(parts.len())?;
        self.runs.extend(parts.into_iter().map(|part| part.runs));
        Ok(encoded)
    }

    /// Takes the first coding that is small enough: with matches, in parts, as literals, stored.
    fn smallest(
        &mut self,
        data: &[u8],
        parts: &[BlockPart<'_>],
        in_parts: usize,
        whole: &Code,
        matches_pay: bool,
        out: &mut Vec<u8>,
    ) -> Result<Encoded> {
        if matches_pay {
            self.matches(data, MATCHING_LEVEL, out)?;
            if out.len() <= whole.size().min(in_parts).min(data.len()) {
                return Ok(Encoded::other(out.len()));
            }
        }
        if gains(in_parts, whole.size(), gains::PARTS) {
            out.clear();
            for part in parts {
                let len = part.encode(&mut self.part)?;
                grow::extend(out, &self.part[..len])?;
            }
            if out.len() < data.len() {
                return Ok(Encoded::other(out.len()));
            }
        }
        literals(whole, data, out)
    }

    /// The distance of runs, the bytes of each part, and whether matches pay.
    fn look_at_samples(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(Distance, usize, bool)> {
        let mut sample = Vec::new();
        for part in samples(data, 2 << 10) {
            grow::extend(&mut sample, part)?;
        }
        let mut best = (usize::MAX, Distance::Byte);
        for distance in [Distance::Byte, Distance::Four, Distance::Eight] {
            let runs = RunBlock::find(&sample, distance, self.runs.pop())?;
            best = best.min((runs.size(), distance));
            grow::push(&mut self.runs, runs)?;
        }
        let (size, distance) = best;
        if size < sample.len() / HARDLY_ANYTHING {
            return Ok((distance, data.len(), false));
        }
        self.matches(&sample, MATCHING_LEVEL, out)?;
        let matches_pay = gains(out.len(), size, gains::MATCHES);
        Ok((distance, PART_BYTES, matches_pay))
    }

    fn matches(&mut self, data: &[u8], level: u32, out: &mut Vec<u8>) -> Result<()> {
        let zlib = match &mut self.zlib {
            Some((kept_level, zlib)) if *kept_level == level => {
                zlib.reset();
                zlib
            }
            other => {
                let zlib = zlib::state(|| Compress::new(Compression::new(level), false))?;
                &mut other.insert((level, zlib)).1
            }
        };
        out.clear();
        // Room for the worst case: the output must not depend on the old capacity.
        out.try_reserve(data.len() + data.len() / 8 + 1024)?;
        loop {
            let consumed = usize::try_from(zlib.total_in()).expect("a block fits in memory");
            out.try_reserve(1024)?;
            let status = zlib
                .compress_vec(&data[consumed..], out, FlushCompress::Sync)
                .map_err(|error| Error::Gzip(error.to_string()))?;
            // Room left over means that zlib has written everything.
            let all = zlib.total_in() == data.len() as u64 && out.len() < out.capacity();
            if all || status == Status::StreamEnd {
                return Ok(());
            }
        }
    }
}

const STORED_BYTES: usize = u16::MAX as usize;
const STORED_HEADER_BYTES: usize = 5;

pub fn bound(bytes: usize) -> usize {
    bytes + bytes.div_ceil(STORED_BYTES) * STORED_HEADER_BYTES
}

/// Parts have their own codes if there are runs: neighbouring small arrays differ.
const PART_BYTES: usize = 32 << 10;

struct BlockPart<'a> {
    data: &'a [u8],
    runs: RunBlock,
    code: Code,
}

impl<'a> BlockPart<'a> {
    fn new(data: &'a [u8], distance: Distance, before: Option<RunBlock>) -> Result<Self> {
        let runs = RunBlock::find(data, distance, before)?;
        let code = Code::new(&runs.counts);
        Ok(Self { data, runs, code })
    }

    fn size(&self) -> usize {
        let coded = self.runs.size().min(self.code.size());
        coded.min(bound(self.data.len()))
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<usize> {
        if self.runs.size() < self.code.size().min(self.data.len()) {
            return self.runs.encode(self.data, out);
        }
        Ok(literals(&self.code, self.data, out)?.len)
    }
}

fn literals(code: &Code, data: &[u8], out: &mut Vec<u8>) -> Result<Encoded> {
    if code.size() < data.len() {
        let len = code.encode(data, out)?;
        if len < data.len() {
            return Ok(Encoded { len, literal: true });
        }
    }
    store(data, out)
}

fn store(data: &[u8], out: &mut Vec<u8>) -> Result<Encoded> {
    out.clear();
    out.try_reserve(bound(data.len()))?;
    for chunk in data.chunks(STORED_BYTES) {
        let len = u16::try_from(chunk.len()).expect("a chunk is that short");
        out.push(0); // stored, not final
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(chunk);
    }
    Ok(Encoded::other(out.len()))
}

/// Four samples of `count` items, unequally spaced because data may be in rows.
pub fn samples<T>(data: &[T], count: usize) -> impl Iterator<Item = &[T]> {
    const SAMPLES: usize = 4;
    let quarters = data.chunks(data.len().div_ceil(SAMPLES).max(1));
    quarters.enumerate().map(move |(index, quarter)| {
        let begin = quarter.len().saturating_sub(count) * index / SAMPLES;
        &quarter[begin..quarter.len().min(begin + count)]
    })
}

/// Returns whether samples repeat, or any row holds a single byte.
///
/// Trained floats hardly ever repeat; masks, indices and quantised weights do.
pub fn has_repeats(data: &[u8]) -> bool {
    const TABLE_BITS: u32 = 12;
    const SAMPLE_BYTES: usize = 1 << 10;
    // Samples may miss rows of one byte, as in optimizer states.
    const ROW_BYTES: usize = 256;
    let is_constant = |row: &&[u8]| row.len() > 16 && row[..16] == [row[0]; 16];
    let constant = data.chunks(ROW_BYTES).filter(is_constant).count();
    if constant * ROW_BYTES * 100 > data.len() {
        return true;
    }
    let mut repeats = 0;
    let mut looked_at = 0;
    let mut seen = [0_u32; 1 << TABLE_BITS];
    for sample in samples(data, SAMPLE_BYTES) {
        // Three bytes each, with the next one above except at the end.
        let mut words = [0; SAMPLE_BYTES];
        for (word, bytes) in words.iter_mut().zip(sample.windows(3)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
        }
        let words = &mut words[..sample.len().saturating_sub(2)];
        for (word, next) in words.iter_mut().zip(sample.iter().skip(3)) {
            *word |= u32::from(*next) << 24;
        }
        for &word in &words[..words.len().saturating_sub(1)] {
            let place = &mut seen[(word.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize];
            repeats += usize::from(*place == word);
            *place = word;
            looked_at += 1;
        }
        // Integers of one size repeat except in their lowest byte.
        for size in [4, 8] {
            let pairs = words.iter().zip(words.iter().skip(size));
            repeats += pairs.filter(|(a, b)| (**a ^ **b) << 8 == 0).count();
        }
    }
    repeats * 32 > looked_at
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use crate::codec::gzip::oracle;

    fn encode(data: &[u8], method: Method) -> (Vec<u8>, bool) {
        let mut out = b"from before".to_vec();
        let encoded = Coder::default().encode(data, method, &mut out).unwrap();
        out.truncate(encoded.len);
        let inflated = oracle::inflate(&out).unwrap();
        assert_eq!(inflated, data);
        (out, encoded.literal)
    }

    fn noise(len: usize) -> impl Iterator<Item = u32> {
        let mut state = 1_u64;
        (0..len).map(move |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 32) as u32
        })
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn the_method_follows_the_content() {
        let random: Vec<u8> = noise(100_000).map(|word| word as u8).collect();
        let (stored, literal) = encode(&random, Method::Adaptive);
        assert!(!literal && stored.len() < random.len() + 20);

        let skewed: Vec<u8> = noise(100_000)
            .map(|word| (word % 16 * (word >> 8) % 16) as u8)
            .collect();
        let (coded, literal) = encode(&skewed, Method::Adaptive);
        assert!(literal && coded.len() < skewed.len() / 2, "{}", coded.len());

        let text: Vec<u8> = (0..20_000_u64).flat_map(u64::to_le_bytes).collect();
        let (matched, literal) = encode(&text, Method::Adaptive);
        assert!(
            !literal && matched.len() < text.len() / 2,
            "{}",
            matched.len()
        );

        let numbers: Vec<u8> = (0..25_000_u32).flat_map(u32::to_le_bytes).collect();
        let (matched, literal) = encode(&numbers, Method::Adaptive);
        assert!(
            !literal && matched.len() < numbers.len() * 2 / 5,
            "{}",
            matched.len()
        );

        let mut rows: Vec<u8> = noise(100_000).map(|word| word as u8).collect();
        for row in rows.chunks_mut(1000).skip(7).step_by(20) {
            row.fill(0);
        }
        let (matched, literal) = encode(&rows, Method::Adaptive);
        assert!(
            !literal && matched.len() < rows.len() * 97 / 100,
            "{}",
            matched.len()
        );

        let (zeros, literal) = encode(&vec![0; 100_000], Method::Adaptive);
        assert!(!literal && zeros.len() < 1000);

        // The entropy of a mask; matches do not come near.
        let mask: Vec<u8> = noise(100_000)
            .map(|word| u8::from(word < 1 << 28))
            .collect();
        let (runs, literal) = encode(&mask, Method::Adaptive);
        let (matched, _) = encode(&mask, Method::Level(MATCHING_LEVEL));
        assert!(
            !literal && runs.len() < matched.len() * 4 / 5,
            "{}",
            runs.len()
        );

        // Samples must not only see the zeros at the start of rows.
        let words: Vec<u8> = noise(4000)
            .flat_map(|word| format!("{} ", word % 97).into_bytes())
            .collect();
        let mut rows: Vec<u8> = words.iter().copied().cycle().take(256 << 10).collect();
        for row in rows.chunks_mut(64 << 10) {
            row[..2 << 10].fill(0);
        }
        let (padded, _) = encode(&rows, Method::Adaptive);
        let (matched, _) = encode(&rows, Method::Level(MATCHING_LEVEL));
        assert!(padded.len() <= matched.len() * 17 / 16, "{}", padded.len());

        let mut arrays = skewed;
        arrays[..32 << 10].fill(200);
        for (byte, word) in arrays[32 << 10..64 << 10].iter_mut().zip(noise(32 << 10)) {
            *byte = 100 + (word % 4) as u8;
        }
        let (parts, literal) = encode(&arrays, Method::Adaptive);
        let whole = Code::new(&literal::count(&arrays)).size();
        assert!(!literal && parts.len() < whole * 2 / 3, "{}", parts.len());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_wrong_estimate_costs_nothing() {
        let noise: Vec<u8> = noise(256 << 10).map(|word| word as u8).collect();
        let mut data = noise;
        for group in 300..1024 {
            let part = 4 * group + (group + group / 4) % 4;
            data[64 * part..][..64].fill(7);
        }
        let (coded, _) = encode(&data, Method::Adaptive);
        assert!(coded.len() <= data.len() + 50, "{}", coded.len());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn every_level_is_read_back_one_coder_after_the_other() {
        let mut coder = Coder::default();
        let data: Vec<u8> = noise(70_000).map(|word| (word & word >> 8) as u8).collect();
        let mut out = Vec::new();
        for level in 0..=9 {
            for len in [0, 1, 1000, data.len()] {
                let encoded = coder
                    .encode(&data[..len], Method::Level(level), &mut out)
                    .unwrap();
                assert_eq!(
                    out[..encoded.len],
                    encode(&data[..len], Method::Level(level)).0
                );
            }
        }
    }
}
