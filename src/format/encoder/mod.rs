//! Encodes a tree into a layout.
//!
//! A walk calls `map(2)`, `key("w")`, `array(…)` and so on. The encoder decides header widths,
//! alignment, chunks, reserved keys and depth, and keeps the record and the index (`recording.rs`).

mod recording;

use std::mem;
use std::ops::Range;

use crate::base::raw::{Lender, RawBytes};
use crate::base::watch::Watch;
use crate::format::array::{self, Array, Framing, KeyPlace, Like, RecentHeaders};
use crate::format::index::{LeafKind, Listing};
use crate::format::layout::{Layout, LayoutBuilder, Payload};
use crate::format::structure::{Kind, NodeType, RECORD_KEY, ROOT_KEY, Record, Recorder, Tie};
use crate::format::wire::{self, Complex, Head, length};
use crate::{Error, Result, base::grow};

/// Encodes a tree value by value, in output order.
///
/// A container begins with its number of values and ends after them. In a map each value follows
/// its key.
pub struct Encoder<P> {
    layout: LayoutBuilder<P>,
    framing: Framing,
    recent: RecentHeaders,
    open: Vec<Open>,
    lists: usize,
    key: Option<KeyPlace>,
    begun: bool,
    /// Whether only the bytes of arrays are written.
    is_raw: bool,
    recorder: Option<Recorder>,
    listing: Option<Listing>,
    sums: LeafSums,
    /// The depth of a container that is recorded as a leaf, without its content.
    paused: Option<usize>,
}

/// The sums that are computed over the bytes of the indexed leaves.
#[derive(Debug, Clone, Copy, Default)]
struct LeafSums {
    has_checksums: bool,
    has_digests: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Mark(usize, u64);

#[derive(Debug, Clone, Copy)]
struct Open {
    /// Remaining values; map keys count.
    left: u64,
    is_list: bool,
}

impl<P: Payload> Encoder<P> {
    pub fn new(framing: Framing) -> Self {
        Self {
            layout: LayoutBuilder::default(),
            framing,
            recent: RecentHeaders::default(),
            open: Vec::new(),
            lists: 0,
            key: None,
            begun: false,
            is_raw: false,
            recorder: None,
            listing: None,
            sums: LeafSums::default(),
            paused: None,
        }
    }

    /// Writes a header of another format, and then only the bytes of arrays, one after another.
    /// Other values are an error.
    pub(crate) fn raw(header: &[u8]) -> Result<Self> {
        let mut encoder = Self {
            begun: true,
            is_raw: true,
            ..Self::new(Framing::default())
        };
        encoder.layout.extend(header)?;
        Ok(encoder)
    }

    /// Also records the structure and writes it after the tree. Values in lists and in maps with
    /// arbitrary keys are recorded without types.
    pub fn described(framing: Framing) -> Self {
        Self {
            recorder: Some(Recorder::default()),
            ..Self::new(framing)
        }
    }

    /// Also records the index of the leaves, with checksums if `summed`.
    pub fn indexed(framing: Framing, summed: bool) -> Self {
        Self {
            listing: Some(Listing::default()),
            sums: LeafSums {
                has_checksums: summed,
                has_digests: false,
            },
            ..Self::described(framing)
        }
    }

    /// Also records the digests of the indexed arrays.
    #[must_use]
    pub fn digested(mut self) -> Self {
        self.sums.has_digests = true;
        self
    }

    #[inline]
    pub(crate) fn is_digested(&self) -> bool {
        self.sums.has_digests
    }

    pub(crate) fn borrow_from(&mut self, lender: Lender) {
        self.layout.headers().borrow_from(lender);
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.len()
    }

    #[inline]
    pub(crate) fn has_payloads(&self) -> bool {
        self.layout.has_payloads()
    }

    pub fn map(&mut self, pairs: usize) -> Result<()> {
        let is_root = self.open.is_empty();
        self.begin(true)?;
        let head = length("map", pairs)?;
        if let Some(listing) = self.listing() {
            listing.head(Head::Map(head))?;
        }
        let more = u32::from(is_root && self.is_described());
        let head = head.checked_add(more).ok_or(Error::TooLarge {
            kind: "map",
            len: pairs,
        })?;
        Head::Map(head).write(self.layout.headers());
        self.enter(2 * pairs as u64, false)
    }

    pub fn map_of_values(&mut self, pairs: usize) -> Result<()> {
        self.untyped(Head::Map(length("map", pairs)?))?;
        self.enter(2 * pairs as u64, false)
    }

    pub fn list(&mut self, len: usize) -> Result<()> {
        self.untyped(Head::Array(length("list", len)?))?;
        self.lists += 1;
        self.enter(len as u64, true)
    }

    fn untyped(&mut self, head: Head) -> Result<()> {
        self.begin(!self.is_described())?;
        self.key = None; // the key of the root, not of the first array in it
        self.pause(Kind::Plain, LeafKind::Container)?;
        head.write(self.layout.headers());
        Ok(())
    }

    fn enter(&mut self, left: u64, is_list: bool) -> Result<()> {
        let limit = wire::MAX_DEPTH;
        if self.open.len() >= limit {
            return Err(Error::TreeTooDeep { limit });
        }
        self.open.push(Open { left, is_list });
        self.recorder().map_or(Ok(()), Recorder::open)
    }

    pub fn end(&mut self, kind: Kind) -> Result<()> {
        match self.open.pop() {
            Some(Open { left: 0, is_list }) => self.lists -= usize::from(is_list),
            Some(_) => return Err(misused("a container ends before all its values")),
            None => return Err(misused("no container is open")),
        }
        if self.resume() {
            return Ok(());
        }
        self.recorder()
            .map_or(Ok(()), |recorder| recorder.close(kind))
    }

    pub fn mark(&self) -> Mark {
        let left = self.open.last().map_or(0, |open| open.left);
        Mark(self.open.len(), left)
    }

    /// Counts the value at `mark` as written, so that a walk can continue after a failure. The
    /// output is then useless.
    pub fn skip(&mut self, mark: Mark) {
        self.open.truncate(mark.0);
        self.lists = self.open.iter().filter(|open| open.is_list).count();
        if let Some(open) = self.open.last_mut() {
            open.left = mark.1.saturating_sub(1);
        }
        self.key = None;
        self.resume();
    }

    /// For [`Kind::Typed`].
    pub fn node_type(&mut self, class: NodeType) -> Result<u32> {
        self.recorder()
            .map_or(Ok(0), |recorder| recorder.node_type(class))
    }

    /// Records nodes that occur twice.
    pub fn tie(&mut self, ties: Vec<Tie>) {
        if let Some(recorder) = self.recorder() {
            recorder.tie(ties);
        }
    }

    #[inline]
    pub fn key(&mut self, text: &str) -> Result<()> {
        if text.starts_with("__") {
            self.check_key(text)?;
        }
        self.begin(true)?;
        self.write_key(text)
    }

    #[inline]
    fn write_key(&mut self, text: &str) -> Result<()> {
        let head = Head::Str(length("string", text.len())?);
        if !self.open.is_empty()
            && let Some(listing) = self.listing()
        {
            listing.key(head, text)?;
        }
        self.key = Some(KeyPlace {
            start: self.layout.len(),
            head: head.width(),
        });
        let room = 2 * Head::MAX_BYTES + text.len();
        let out = self.layout.headers();
        out.try_reserve(room)?;
        head.write(out);
        out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    #[inline(never)]
    fn check_key(&self, text: &str) -> Result<()> {
        let meaning = match text {
            wire::CHUNKED_MARKER => "arrays that are stored in chunks",
            RECORD_KEY | ROOT_KEY | wire::PRNG_MARKER if self.is_described() => {
                "data that treepack adds to a tree"
            }
            _ => return Ok(()),
        };
        Err(Error::ReservedKey {
            key: text.into(),
            meaning,
        })
    }

    /// Writes a header that is a value, or whose content follows.
    #[inline]
    pub fn plain(&mut self, head: Head) -> Result<()> {
        self.leaf(head, Kind::Plain)
    }

    pub fn complex(&mut self, value: Complex) -> Result<()> {
        self.ext(wire::EXT_COMPLEX, &value.to_body())
    }

    pub fn ext(&mut self, code: i8, body: &[u8]) -> Result<()> {
        self.plain(Head::Ext(code, length("extension", body.len())?))?;
        self.layout.extend(body)
    }

    #[inline]
    pub fn str(
        &mut self,
        len: usize,
        content: impl FnOnce(&mut LayoutBuilder<P>) -> Result<()>,
    ) -> Result<()> {
        self.plain(Head::Str(length("string", len)?))?;
        content(&mut self.layout)
    }

    pub fn bin(
        &mut self,
        len: usize,
        kind: Kind,
        content: impl FnOnce(&mut LayoutBuilder<P>) -> Result<()>,
    ) -> Result<()> {
        let head = Head::Bin(length("byte string", len)?);
        self.leaf(head, kind)?;
        content(&mut self.layout)
    }

    /// Writes an array. `content` appends consecutive ranges of its bytes.
    #[inline]
    pub fn array(
        &mut self,
        array: &Array<'_>,
        kind: Kind,
        mut content: impl FnMut(&mut LayoutBuilder<P>, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        if self.is_raw {
            return content(&mut self.layout, 0..array.nbytes());
        }
        let key = self.key;
        self.begin(false)?;
        // `begin` may just have added a key for the root.
        let key = key.or(self.key.take());
        self.record_array(kind, array)?;
        let framing = Framing {
            // flax joins chunks only below maps.
            may_box: self.framing.may_box && self.lists == 0,
            ..self.framing
        };
        let start = array::frame(
            &mut self.layout,
            &mut self.recent,
            key,
            array,
            &framing,
            content,
        )?;
        if let Some((_, pending)) = self.listing().and_then(|listing| listing.pending.as_mut()) {
            *pending = start; // the key's header may have become wider
        }
        Ok(())
    }

    pub(crate) fn last_headers(&self) -> Option<Like> {
        self.recent.last().filter(|_| self.is_unrecorded())
    }

    /// Writes an array with the last one's dtype and shape by copying its headers; false if they
    /// are unknown for this offset.
    #[inline]
    pub(crate) fn array_like(&mut self, headers: &Like, bytes: RawBytes<'_>) -> Result<bool> {
        let may_box = self.framing.may_box && self.lists == 0;
        let (layout, recent) = (&mut self.layout, &self.recent);
        if !array::frame_like(layout, recent, self.key, headers, may_box)? {
            return Ok(false);
        }
        self.begin(false)?;
        self.layout.headers().append(bytes)?;
        Ok(true)
    }

    /// Writes pairs of a key and an array with the last one's dtype and shape, until `next` returns
    /// `None` or another pair; returns their number. Allocates nothing, and drops each pair before
    /// the next call.
    #[inline]
    pub(crate) fn pairs_like<'a>(
        &mut self,
        headers: &Like,
        mut next: impl FnMut() -> Option<(&'a str, RawBytes<'a>)>,
    ) -> usize {
        let is_off = self.is_unrecorded() && self.key.is_none();
        let Some(open) = self.open.last_mut().filter(|open| is_off && !open.is_list) else {
            return 0;
        };
        let may_box = self.framing.may_box && self.lists == 0;
        let payloads = self.layout.len() - self.layout.headers().len();
        let mut out = self.layout.headers().tail();
        let mut count = 0;
        while open.left >= 2
            && let Some((text, bytes)) = next()
            && let Ok(len) = u32::try_from(text.len())
            && let (offset, key) = (payloads + out.len(), Some(text.len()))
            && let Some((width, headers)) = self.recent.like(headers, offset, key, may_box)
            && text.len() + headers.len() + bytes.len() + Head::MAX_BYTES <= out.room()
            && !text.starts_with("__")
        {
            Head::Str(len).write_wide(width, &mut out);
            out.append(text.as_bytes().into());
            out.extend_from_within(headers);
            out.append(bytes);
            open.left -= 2;
            count += 1;
        }
        count
    }

    /// Begins a typed PRNG key: a map whose last value is the next array.
    pub fn prng_key(&mut self, name: &str) -> Result<()> {
        self.begin(false)?;
        let leaf_kind = LeafKind::PrngKey(grow::to_string(name)?, Vec::new());
        self.pause(Kind::Jax, leaf_kind)?;
        Head::Map(2).write(self.layout.headers());
        self.enter(4, false)?;
        self.begin(true)?;
        self.write_key(wire::PRNG_MARKER)?;
        self.str(name.len(), |out| out.extend(name.as_bytes()))?;
        self.key("data")
    }

    /// `metadata` is a typed value.
    pub fn finish(self, metadata: Option<Vec<u8>>) -> Result<Layout<P>> {
        self.finish_with(metadata, None, &())
    }

    /// As `finish`; a `record` replaces the record of the tree, but keeps its leaf index.
    pub fn finish_with(
        mut self,
        metadata: Option<Vec<u8>>,
        record: Option<Record>,
        watch: &dyn Watch,
    ) -> Result<Layout<P>> {
        if !self.begun || !self.open.is_empty() {
            return Err(misused("the tree is incomplete"));
        }
        let Some(recorder) = self.recorder.take() else {
            return Ok(self.layout.finish());
        };
        let mut record = match record {
            Some(record) => record,
            None => recorder.finish(metadata)?,
        };
        let ends = self.finish_index(&mut record, watch)?;
        self.write_key(RECORD_KEY)?;
        let encoded = record.encode(watch)?;
        drop(record);
        self.with_record(&encoded, ends)
    }

    #[inline]
    fn leaf(&mut self, head: Head, kind: Kind) -> Result<()> {
        self.begin(false)?;
        let leaf_kind = || {
            Ok(match head {
                Head::Nil => LeafKind::None,
                Head::Bool(_) => LeafKind::Bool,
                Head::Int(_) | Head::Uint(_) => LeafKind::Int,
                Head::Float(_) => LeafKind::Float,
                Head::Str(_) => LeafKind::Str,
                Head::Bin(_) => LeafKind::Bytes,
                Head::Ext(wire::EXT_COMPLEX, _) => LeafKind::Complex,
                Head::Ext(..) => LeafKind::Ext,
                Head::Array(_) | Head::Map(_) => LeafKind::Container,
            })
        };
        self.record_leaf(kind, leaf_kind)?;
        head.write(self.layout.headers());
        Ok(())
    }

    #[inline]
    fn begin(&mut self, no_leaf: bool) -> Result<()> {
        self.key = None;
        let start = self.layout.len();
        if let Some(listing) = self.listing() {
            listing.end_leaf(start)?;
        }
        self.layout.headers().try_reserve(Head::MAX_BYTES)?;
        if let Some(open) = self.open.last_mut() {
            if open.left == 0 {
                return Err(misused(
                    "a container has more values than it was begun with",
                ));
            }
            open.left -= 1;
            return Ok(());
        }
        self.begin_root(no_leaf)
    }

    #[inline(never)]
    fn begin_root(&mut self, no_leaf: bool) -> Result<()> {
        if mem::replace(&mut self.begun, true) {
            return Err(misused("the tree has ended"));
        }
        if self.is_described() && !no_leaf {
            // A leaf cannot hold the record's key, so a map wraps it.
            Head::Map(2).write(self.layout.headers());
            self.write_key(ROOT_KEY)?;
        }
        Ok(())
    }
}

fn misused(reason: &str) -> Error {
    Error::Option(format!("the encoder was misused: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::structure::{Node, Repeat};

    #[test]
    fn misuse_is_an_error() {
        type Calls = fn(&mut Encoder<Vec<u8>>) -> Result<()>;
        let wrong: [Calls; 6] = [
            |encoder| encoder.end(Kind::Dict),
            |encoder| {
                encoder
                    .plain(Head::Nil)
                    .and_then(|()| encoder.plain(Head::Nil))
            },
            |encoder| encoder.list(1).and_then(|()| encoder.end(Kind::List)),
            |encoder| encoder.list(0).and_then(|()| encoder.plain(Head::Nil)),
            |encoder| {
                encoder
                    .map(1)
                    .and_then(|()| encoder.key("a"))
                    .and_then(|()| encoder.end(Kind::Dict))
            },
            |encoder| {
                encoder
                    .map(1)
                    .and_then(|()| encoder.key(wire::CHUNKED_MARKER))
            },
        ];
        for calls in wrong {
            assert!(calls(&mut Encoder::new(Framing::default())).is_err());
        }
        assert!(
            Encoder::<Vec<u8>>::new(Framing::default())
                .finish(None)
                .is_err()
        );
        let mut unfinished = Encoder::<Vec<u8>>::new(Framing::default());
        unfinished.map(1).unwrap();
        assert!(unfinished.finish(None).is_err());
    }

    #[test]
    fn raw_arrays_follow_a_header() {
        let mut encoder = Encoder::<Vec<u8>>::raw(b"head").unwrap();
        let array = Array {
            code: wire::EXT_NDARRAY,
            shape: &[3],
            dtype: "uint8",
            itemsize: 1,
        };
        for _ in 0..2 {
            let put = |out: &mut LayoutBuilder<Vec<u8>>, range: Range<usize>| {
                out.push([1, 2, 3][range].to_vec())
            };
            encoder.array(&array, Kind::Plain, put).unwrap();
        }
        assert!(encoder.plain(Head::Nil).is_err());
        assert!(encoder.map(1).is_err());
        let layout = encoder.finish(None).unwrap();
        let mut bytes = Vec::new();
        crate::base::source::read_to(&layout, 0..layout.len(), &mut bytes).unwrap();
        assert_eq!(bytes, b"head\x01\x02\x03\x01\x02\x03");
    }

    #[test]
    fn values_in_lists_are_recorded_as_they_will_be_read() {
        let mut encoder = Encoder::<Vec<u8>>::described(Framing::default());
        encoder.map(2).unwrap();
        encoder.key("a").unwrap();
        encoder.list(2).unwrap();
        encoder.prng_key("fry").unwrap();
        encoder.plain(Head::Nil).unwrap();
        encoder.end(Kind::Dict).unwrap();
        encoder.map_of_values(1).unwrap();
        encoder.plain(Head::Int(1)).unwrap();
        encoder.plain(Head::Nil).unwrap();
        encoder.end(Kind::Dict).unwrap();
        encoder.end(Kind::List).unwrap();
        encoder.key("b").unwrap();
        encoder.bin(0, Kind::Jax, |_| Ok(())).unwrap();
        encoder.end(Kind::Tuple).unwrap();
        let recorder = encoder.recorder.take().unwrap();
        let nodes = recorder.finish(None).unwrap().nodes;
        let expected = [Repeat(1, 0), Repeat(1, 1)];
        assert_eq!(nodes.last(), Some(&Node(Kind::Tuple, expected.to_vec())));
    }

    #[test]
    fn after_a_failure_other_values_can_be_tried() {
        let mut encoder = Encoder::<Vec<u8>>::new(Framing::default());
        encoder.list(2).unwrap();
        let mark = encoder.mark();
        encoder.map(3).unwrap();
        encoder.key("a").unwrap();
        encoder.skip(mark);
        encoder.plain(Head::Nil).unwrap();
        encoder.end(Kind::List).unwrap();
    }

    #[test]
    fn trees_of_a_certain_depth_can_be_written() {
        let mut encoder = Encoder::<Vec<u8>>::new(Framing::default());
        for _ in 0..wire::MAX_DEPTH {
            encoder.list(1).unwrap();
        }
        assert!(matches!(encoder.list(1), Err(Error::TreeTooDeep { .. })));
    }
}
