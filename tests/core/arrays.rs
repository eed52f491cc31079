//! Arrays are framed and parsed back: at every alignment, at every place, in both forms.

// The numbers here are small.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

use proptest::prelude::*;
use treepack::format::array::{
    ALIGN_MIN_BYTES, Alignment, Array, ChunkLimit, Dims, Framing, KeyPlace, RecentHeaders, frame,
    resolve,
};
use treepack::format::encoder::Encoder;
use treepack::format::events::{Event, Events};
use treepack::format::layout::{Caching, Layout, LayoutBuilder};
use treepack::format::structure::Kind;
use treepack::format::wire::{CHUNKED_MARKER, Cursor, EXT_NDARRAY, EXT_NPSCALAR, Head};

/// What one framed array looks like to a reader.
struct Read {
    shape: Vec<usize>,
    dtype: Vec<u8>,
    payload: Vec<u8>,
    /// Where the first payload begins.
    payload_offset: usize,
    chunks: usize,
}

/// Frames an array after `before` bytes and reads it back.
fn round_trip(before: usize, key: Option<&str>, array: &Array<'_>, framing: &Framing) -> Read {
    let bytes: Vec<u8> = (0..array.nbytes()).map(|i| i as u8).collect();
    let mut encoded = encode(before, key, array, framing, &bytes);
    let after = usize::from(key.is_some()) + 1;
    // What stands before becomes a list: of nils, the key and the array. A short one is longer
    // than there is room for.
    let (head, values) = match before.checked_sub(3) {
        Some(nils) => (vec![0xdc, 0, (nils + after) as u8], nils),
        None => (vec![0x90 + after as u8], 0),
    };
    let before = before.min(3);
    let shift = before as isize - head.len() as isize;
    encoded.splice(..before, head);
    let events = Events::read(&encoded).unwrap();
    let at = 1 + values;
    let mut rest = events.as_slice()[at..].iter();
    if let Some(key) = key {
        let Some(&Event::Str(text)) = rest.next() else {
            panic!("no key");
        };
        assert_eq!(events.text(text), key);
    }
    let (Some(&Event::Array(number)), None) = (rest.next(), rest.next()) else {
        panic!("no array");
    };
    let found = events.array(number);
    let payload: Vec<u8> = found
        .spans
        .iter()
        .flat_map(|span| &encoded[span.range()])
        .copied()
        .collect();
    assert_eq!(payload, bytes);
    let shape = resolve(found.dims, payload.len(), array.itemsize, 0).unwrap();
    Read {
        shape: shape.to_vec(),
        dtype: found.dtype.to_vec(),
        payload_offset: found.spans[0].start.wrapping_add_signed(shift),
        chunks: found.spans.len(),
        payload,
    }
}

fn bytes_of(layout: &Layout<Vec<u8>>) -> Vec<u8> {
    let mut out = vec![std::mem::MaybeUninit::new(0); layout.len()];
    layout.copy_to(0, &mut out, Caching::Usual).unwrap();
    let whole = layout.slices(0..layout.len());
    whole
        .flat_map(|slice| {
            let mut bytes = Vec::new();
            slice.memory().unwrap().append_to(&mut bytes).unwrap();
            bytes
        })
        .collect()
}

/// Writes a key at the end of the headers.
fn write_key(builder: &mut LayoutBuilder<Vec<u8>>, key: Option<&str>) -> Option<KeyPlace> {
    let key = key?;
    let start = builder.len();
    let head = Head::Str(key.len() as u32);
    head.write(builder.headers());
    builder.headers().extend_from_slice(key.as_bytes());
    let head = head.width();
    Some(KeyPlace { start, head })
}

fn encode(
    before: usize,
    key: Option<&str>,
    array: &Array<'_>,
    framing: &Framing,
    bytes: &[u8],
) -> Vec<u8> {
    let mut builder = LayoutBuilder::default();
    builder.headers().extend_from_slice(&vec![0xc0; before]);
    let key = write_key(&mut builder, key);
    let mut recent = RecentHeaders::default();
    frame(
        &mut builder,
        &mut recent,
        key,
        array,
        framing,
        |layout, range| layout.push(bytes[range].to_vec()),
    )
    .unwrap();
    bytes_of(&builder.finish())
}

fn framing(align: usize, may_box: bool) -> Framing {
    Framing {
        align: Alignment::new(align as i64).unwrap(),
        chunks: ChunkLimit::DEFAULT,
        may_box,
    }
}

/// The header of an array of bytes.
fn uint8(shape: &[usize]) -> Array<'_> {
    Array {
        code: EXT_NDARRAY,
        shape,
        dtype: "uint8",
        itemsize: 1,
    }
}

proptest! {
    #[test]
    fn headers_that_are_copied_are_those_that_would_be_made(
        arrays in prop::collection::vec(
            (prop::collection::vec(0..4usize, 0..4), 0..3usize, any::<bool>()),
            0..60,
        ),
    ) {
        let mut together: LayoutBuilder<Vec<u8>> = LayoutBuilder::default();
        let mut recent = RecentHeaders::default();
        let mut apart = Vec::new();
        let framing = framing(16, true);
        for (shape, dtype, scalar) in &arrays {
            let (dtype, itemsize) = [("int8", 1), ("float32", 4), ("<f4", 4)][*dtype];
            let code = if *scalar { EXT_NPSCALAR } else { EXT_NDARRAY };
            let array = Array { code, shape, dtype, itemsize };
            let bytes = vec![7; array.nbytes()];
            let out = &mut together;
            let key = write_key(out, Some("key"));
            frame(out, &mut recent, key, &array, &framing, |out, range| {
                out.extend(&bytes[range])
            })
            .unwrap();
            apart.extend(encode(0, Some("key"), &array, &framing, &bytes));
        }
        prop_assert_eq!(&together.headers()[..], &apart[..]);
    }
}

/// What flax writes, built by another library.
fn reference(key: Option<&str>, array: &Array<'_>, bytes: &[u8]) -> Vec<u8> {
    use rmpv::Value;
    let shape = array.shape.iter().map(|&dim| Value::from(dim)).collect();
    let body = Value::Array(vec![
        Value::Array(shape),
        array.dtype.into(),
        Value::from(bytes),
    ]);
    let mut encoded = Vec::new();
    if let Some(key) = key {
        rmpv::encode::write_value(&mut encoded, &Value::from(key)).unwrap();
    }
    let mut inner = Vec::new();
    rmpv::encode::write_value(&mut inner, &body).unwrap();
    rmpv::encode::write_value(&mut encoded, &Value::Ext(array.code, inner)).unwrap();
    encoded
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(
        prop_oneof![4 => 1usize..5, 2 => 5usize..40, 1 => Just(0), 1 => Just(130)],
        0..5,
    )
    .prop_filter("small enough", |shape| {
        shape.iter().product::<usize>() < 80_000
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400 * ProptestConfig::default().cases / 256))]

    #[test]
    fn any_array_comes_back(
        shape in shapes(),
        itemsize in prop_oneof![Just(1usize), Just(2), Just(4), Just(8)],
        before in 0usize..200,
        key in prop::option::of("[a-z]{0,40}"),
        align in prop_oneof![Just(1usize), Just(2), Just(4), Just(8), Just(16), Just(32), Just(64)],
        may_box in any::<bool>(),
        limit in prop_oneof![Just(1e9), Just(100.0), Just(7.5), Just(3000.0)],
    ) {
        let dtype = format!("uint{}", 8 * itemsize);
        let array = Array { code: EXT_NDARRAY, shape: &shape, dtype: &dtype, itemsize };
        let framing = Framing { chunks: ChunkLimit::new(limit), ..framing(align, may_box) };
        let read = round_trip(before, key.as_deref(), &array, &framing);
        prop_assert_eq!(read.dtype, dtype.as_bytes());
        prop_assert_eq!(&read.shape, &shape);
        let nbytes = array.nbytes();
        prop_assert_eq!(read.payload.len(), nbytes);
        if nbytes as f64 > limit && nbytes > 0 {
            let elements = ((limit / itemsize as f64) as usize).max(1);
            prop_assert_eq!(read.chunks, (nbytes / itemsize).div_ceil(elements));
        } else if nbytes >= ALIGN_MIN_BYTES && may_box {
            prop_assert_eq!(read.payload_offset % align, 0);
        }
    }

    #[test]
    fn without_alignment_it_is_what_flax_writes(
        shape in shapes(),
        before in 0usize..5,
        key in prop::option::of("[a-z]{0,40}"),
    ) {
        let array = uint8(&shape);
        let bytes: Vec<u8> = (0..array.nbytes()).map(|i| i as u8).collect();
        let ours = encode(before, key.as_deref(), &array, &framing(1, true), &bytes);
        prop_assert_eq!(&ours[before..], reference(key.as_deref(), &array, &bytes));
    }
}

#[test]
fn every_residue_is_reached_at_every_alignment() {
    let sizes = [ALIGN_MIN_BYTES, 65_000, 65_536 - 40, 65_536, 70_000];
    // PROPTEST_CASES bounds what is not generated, too.
    let step = 256_u32.div_ceil(ProptestConfig::default().cases) as usize;
    for nbytes in sizes {
        for align in [2, 4, 8, 16, 32, 64] {
            for before in (0..64).step_by(step) {
                for key in [
                    None,
                    Some("w"),
                    Some("a key that is longer than thirty-one bytes"),
                ] {
                    let shape = [nbytes];
                    let array = uint8(&shape);
                    let read = round_trip(before, key, &array, &framing(align, true));
                    assert_eq!(
                        read.payload_offset % align,
                        0,
                        "{nbytes} {align} {before} {key:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn sixteen_needs_no_chunked_form_below_a_key() {
    for nbytes in [ALIGN_MIN_BYTES, 65_000, 70_000] {
        for before in 0..16 {
            let shape = [nbytes];
            let array = uint8(&shape);
            let read = round_trip(before, Some("w"), &array, &framing(16, false));
            assert_eq!(read.payload_offset % 16, 0, "{nbytes} {before}");
        }
    }
}

#[test]
fn small_arrays_are_left_alone() {
    let shape = [ALIGN_MIN_BYTES - 1];
    let array = uint8(&shape);
    let bytes = vec![7; array.nbytes()];
    let aligned = encode(3, Some("w"), &array, &framing(64, true), &bytes);
    assert_eq!(
        aligned,
        encode(3, Some("w"), &array, &framing(1, true), &bytes)
    );
}

#[test]
fn small_arrays_are_aligned_for_their_elements_where_all_are_meant() {
    let elements = [
        (1, "bool"),
        (2, "float16"),
        (4, "float32"),
        (8, "int64"),
        (16, "complex128"),
    ];
    let (mut reached, mut of_lines) = (0, 0);
    for (itemsize, dtype) in elements {
        for shape in [
            &[][..],
            &[1],
            &[3],
            &[15],
            &[16],
            &[31],
            &[40],
            &[1, 2, 3, 4],
        ] {
            let array = Array {
                code: EXT_NDARRAY,
                shape,
                dtype,
                itemsize,
            };
            for align in [1, 2, 16, 64] {
                for before in 0..64 {
                    for key in [
                        None,
                        Some("w"),
                        Some("a key that is longer than thirty-one bytes"),
                    ] {
                        for may_box in [false, true] {
                            let align_all = Framing {
                                align: Alignment::new(align).unwrap().of_all(),
                                ..framing(1, may_box)
                            };
                            let read = round_trip(before, key, &array, &align_all);
                            let least = itemsize.min(usize::try_from(align).unwrap());
                            assert_eq!(
                                read.payload_offset % least,
                                0,
                                "{dtype} {shape:?} {before}"
                            );
                            reached += usize::from(align == 64);
                            of_lines +=
                                usize::from(align == 64 && read.payload_offset.is_multiple_of(64));
                        }
                    }
                }
            }
        }
    }
    assert!(of_lines > reached / 3, "{of_lines} of {reached}");
}

#[test]
fn empty_arrays_and_scalars_are_left_alone() {
    for (code, shape) in [(EXT_NDARRAY, &[0][..]), (EXT_NPSCALAR, &[])] {
        let array = Array {
            code,
            shape,
            dtype: "float64",
            itemsize: 8,
        };
        let bytes = vec![7; array.nbytes()];
        let align_all = Framing {
            align: Alignment::new(64).unwrap().of_all(),
            ..framing(1, true)
        };
        let plain = encode(3, Some("w"), &array, &framing(1, true), &bytes);
        assert_eq!(encode(3, Some("w"), &array, &align_all, &bytes), plain);
    }
}

#[test]
fn only_powers_of_two_up_to_64_are_alignments() {
    for align in -2..=130 {
        let allowed = [1, 2, 4, 8, 16, 32, 64].contains(&align);
        assert_eq!(Alignment::new(align).is_ok(), allowed, "{align}");
    }
}

#[test]
fn a_shape_may_have_one_open_dimension_or_be_one_integer() {
    let dims = |shape: &[isize], payload: usize, itemsize: usize| {
        resolve(shape, payload, itemsize, 0)
            .map(|dims| dims.to_vec())
            .ok()
    };
    assert_eq!(dims(&[2, -1], 12, 2), Some(vec![2, 3]));
    assert_eq!(dims(&[-1], 0, 4), Some(vec![0]));
    assert_eq!(dims(&[0, 5], 0, 4), Some(vec![0, 5]));
    assert_eq!(dims(&[], 4, 4), Some(vec![]));
    // Two open dimensions, one that cannot be inferred, sizes that do not fit, an overflow.
    assert_eq!(dims(&[-1, -1], 4, 1), None);
    assert_eq!(dims(&[0, -1], 0, 1), None);
    assert_eq!(dims(&[5, -1], 12, 1), None);
    assert_eq!(dims(&[3], 4, 1), None);
    assert_eq!(dims(&[1], 3, 2), None);
    assert_eq!(dims(&[1], 1, 0), None);
    assert_eq!(dims(&[isize::MAX, isize::MAX], 4, 1), None);
    // Which NumPy cannot have either, though it is empty.
    assert_eq!(dims(&[1 << 32, 1 << 32, 0], 0, 1), None);
    assert_eq!(dims(&[1 << 32, 0], 0, 8), Some(vec![1 << 32, 0]));
    assert_eq!(read_dims(6.into()).unwrap().as_slice(), [6]);
}

fn read_dims(shape: rmpv::Value) -> treepack::Result<Dims> {
    let mut encoded = Vec::new();
    rmpv::encode::write_value(&mut encoded, &shape).unwrap();
    Dims::read(&mut Cursor::new(&encoded))
}

#[test]
fn more_dimensions_than_numpy_has_are_refused() {
    let error = read_dims(rmpv::Value::Array(vec![1.into(); 65])).unwrap_err();
    assert!(error.to_string().contains("64 dimensions"), "{error}");
    assert_eq!(error.offset(), Some(3 + 64));
}

#[test]
fn limits_that_nobody_means_do_no_harm() {
    for limit in [-1.0, 0.0, f64::NAN, f64::INFINITY, 5e9] {
        for len in [0, 1, 5000] {
            let shape = [len];
            let array = uint8(&shape);
            let framing = Framing {
                chunks: ChunkLimit::new(limit),
                ..framing(64, true)
            };
            let read = round_trip(7, Some("w"), &array, &framing);
            assert_eq!(read.shape, [len], "{limit}");
            // A chunk for each element below one, as in flax.
            let chunks = if limit <= 0.0 { len.max(1) } else { 1 };
            assert_eq!(read.chunks, chunks, "{limit} {len}");
        }
    }
}

/// So many bytes, of which there are none.
struct Huge(usize);

impl treepack::format::layout::Payload for Huge {
    fn len(&self) -> usize {
        self.0
    }

    fn copy_to<'t>(
        &self,
        _: usize,
        _: &'t mut [std::mem::MaybeUninit<u8>],
    ) -> treepack::Result<&'t mut [u8]> {
        unreachable!("never called")
    }
}

#[test]
fn arrays_above_four_gigabytes_are_split_whatever_the_limit() {
    for limit in [1e9, 5e9, f64::INFINITY, f64::NAN] {
        let mut encoder = Encoder::new(Framing {
            chunks: ChunkLimit::new(limit),
            ..framing(64, true)
        });
        let shape = [5 << 30];
        let mut largest = 0;
        encoder
            .array(&uint8(&shape), Kind::Plain, |out, range| {
                largest = largest.max(range.len());
                out.push(Huge(range.len()))
            })
            .unwrap();
        assert!(encoder.finish(None).unwrap().len() > 5 << 30);
        assert!(largest <= 1 << 30, "{limit}: {largest}");
    }
}

#[test]
fn a_damaged_chunked_array_is_an_error() {
    use rmpv::Value;
    let chunk = || {
        let shape = vec![1usize];
        let array = uint8(&shape);
        let mut encoded = &reference(None, &array, b"a")[..];
        rmpv::decode::read_value(&mut encoded).unwrap()
    };
    let map = |pairs: Vec<(&str, Value)>| {
        Value::Map(
            pairs
                .into_iter()
                .map(|(key, value)| (key.into(), value))
                .collect(),
        )
    };
    let marker = (CHUNKED_MARKER, Value::Nil);
    let whole = vec![
        marker.clone(),
        ("shape", map(vec![("0", 1.into())])),
        ("chunks", map(vec![("0", chunk())])),
    ];
    let read = |pairs: Vec<(&str, Value)>| {
        let mut encoded = Vec::new();
        rmpv::encode::write_value(&mut encoded, &map(pairs)).unwrap();
        Events::read(&encoded).map(|events| events.array(0).spans.len())
    };
    assert_eq!(read(whole.clone()).unwrap(), 1);
    assert!(read(whole[..2].to_vec()).is_err());
    assert!(read(vec![marker.clone(), whole[2].clone()]).is_err());
    let with = |index: usize, value: Value| {
        let mut pairs = whole.clone();
        pairs[index].1 = value;
        read(pairs)
    };
    assert!(with(1, 1.into()).is_err());
    assert!(with(1, map(vec![("1", 1.into())])).is_err());
    assert!(with(2, map(vec![])).is_err());
    assert!(with(2, map(vec![("0", 3.into())])).is_err());
    assert!(with(2, map(vec![("0", chunk()), ("2", chunk())])).is_err());
}
