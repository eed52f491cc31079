//! Patches: what they give with their base, and what they refuse.

use std::num::NonZero;

use proptest::prelude::*;
use treepack::Error;
use treepack::codec::delta::BLOCK_BYTES;
use treepack::format::array::{Alignment, Array, ChunkLimit, Framing};
use treepack::format::encoder::Encoder;
use treepack::format::layout::{Layout, LayoutBuilder, Payload};
use treepack::format::structure::Kind;
use treepack::format::wire::{EXT_NDARRAY, Head};
use treepack::patches::{Base, Headers, Join, Patch, apply, is_patch, make};

const ONE: NonZero<usize> = NonZero::<usize>::MIN;

/// A tree of arrays: names, dtypes with their sizes, and bytes; also texts and byte strings.
type Tree = Vec<(String, &'static str, usize, Vec<u8>)>;

fn layout(tree: &Tree, align: i64, chunk: f64) -> Layout<Vec<u8>> {
    let framing = Framing {
        align: Alignment::new(align).unwrap(),
        chunks: ChunkLimit::new(chunk),
        may_box: true,
    };
    let mut encoder = Encoder::<Vec<u8>>::described(framing);
    encoder.map(tree.len() + 1).unwrap();
    for (name, dtype, itemsize, bytes) in tree {
        let (dtype, itemsize) = (*dtype, *itemsize);
        encoder.key(name).unwrap();
        let whole = |out: &mut LayoutBuilder<Vec<u8>>| out.push(bytes.clone());
        if dtype == "text" {
            encoder.str(bytes.len(), whole).unwrap();
            continue;
        }
        if dtype == "bytes" {
            encoder.bin(bytes.len(), Kind::Plain, whole).unwrap();
            continue;
        }
        let shape = &[bytes.len() / itemsize][..];
        let array = Array {
            code: EXT_NDARRAY,
            shape,
            dtype,
            itemsize,
        };
        let content = |out: &mut LayoutBuilder<Vec<u8>>, range: std::ops::Range<usize>| {
            out.push(bytes[range].to_vec())
        };
        encoder.array(&array, Kind::Plain, content).unwrap();
    }
    encoder.key("step").unwrap();
    encoder.plain(Head::Int(7)).unwrap();
    encoder.end(Kind::Dict).unwrap();
    encoder.finish(None).unwrap()
}

fn bytes_of<P: Payload>(layout: &Layout<P>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for slice in layout.slices(0..layout.len()) {
        let mut part = vec![std::mem::MaybeUninit::uninit(); slice.len()];
        bytes.extend_from_slice(slice.copy_to(0, &mut part).unwrap());
    }
    bytes
}

fn patch_of(new: &Tree, base: &[u8], align: i64, chunk: f64, threads: NonZero<usize>) -> Vec<u8> {
    let base = base.to_vec();
    let base = Base::open(&base, &base, false, &()).unwrap();
    bytes_of(&make(layout(new, align, chunk), &base, "", threads, &()).unwrap())
}

fn joined(patch: &[u8], base: &[u8]) -> Result<Vec<u8>, Error> {
    let base = base.to_vec();
    let patch = Patch::read(patch, &())?;
    let join = Join::new(&patch, &Base::open(&base, &base, false, &())?, false, &())?;
    let mut memory = vec![std::mem::MaybeUninit::uninit(); join.len()];
    Ok(join
        .fill(&base, &mut memory, NonZero::new(2).unwrap(), &())?
        .to_vec())
}

/// Two trees that are alike.
fn trees() -> impl Strategy<Value = (Tree, Tree)> {
    let dtype = prop::sample::select(vec![
        ("float32", 4),
        ("bfloat16", 2),
        ("int8", 1),
        ("complex128", 16),
        ("uint64", 8),
        ("text", 1),
        ("bytes", 1),
    ]);
    let content = prop::collection::vec(any::<u8>(), 0..600);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..60);
    let leaf = (dtype, content, changes, 0..8_u8);
    prop::collection::vec(leaf, 0..5).prop_map(|leaves| {
        let (mut new, mut base) = (Tree::new(), Tree::new());
        for (number, ((dtype, size), mut bytes, changes, other)) in leaves.into_iter().enumerate() {
            bytes.truncate(bytes.len() / size * size);
            if dtype == "text" {
                bytes.fill(b'x');
            }
            let name = format!("leaf {number}");
            if other > 0 {
                base.push((name.clone(), dtype, size, bytes.clone()));
            }
            if other == 1 {
                bytes.clear(); // another shape
            }
            for (at, value) in changes {
                if !bytes.is_empty() && dtype != "text" {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
            }
            new.push((name, dtype, size, bytes));
        }
        (new, base)
    })
}

proptest! {
    #[test]
    fn patch_and_base_are_the_encoding(
        (new, base) in trees(),
        align in prop::sample::select(vec![1_i64, 16, 64]),
        chunk in prop::sample::select(vec![100.0, 1e9]),
    ) {
        // The base may be aligned and divided otherwise.
        let base = bytes_of(&layout(&base, 16, 250.0));
        let expected = bytes_of(&layout(&new, align, chunk));
        let patch = patch_of(&new, &base, align, chunk, ONE);
        prop_assert!(is_patch(&patch).unwrap() && !is_patch(&expected).unwrap());
        prop_assert_eq!(&patch, &patch_of(&new, &base, align, chunk, NonZero::new(3).unwrap()));
        prop_assert_eq!(joined(&patch, &base).unwrap(), expected);
        // A base of a tree in memory.
        let held = layout(&new, 16, 250.0);
        let headers = Headers::of(&held).unwrap();
        let same = Base::open(&headers, &held, false, &()).unwrap();
        let patch = bytes_of(&make(layout(&new, align, chunk), &same, "", ONE, &()).unwrap());
        prop_assert!(is_patch(&patch).unwrap());
    }

    #[test]
    fn damaged_patches_are_errors((new, base) in trees(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let base = bytes_of(&layout(&base, 16, 1e9));
        let mut patch = patch_of(&new, &base, 16, 1e9, ONE);
        let at = at.index(patch.len());
        prop_assert!(joined(&patch[..at], &base).is_err());
        patch[at] ^= flip;
        prop_assert!(joined(&patch, &base).is_err());
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state.to_le_bytes()[5]
    };
    std::iter::repeat_with(&mut next).take(len).collect()
}

/// Blocks of every kind, and a leaf that stays.
fn every_kind() -> (Tree, Tree) {
    let w = noise(5 * BLOCK_BYTES / 2);
    let leaf = |name: &str, bytes: Vec<u8>| (name.to_owned(), "float32", 4, bytes);
    let mut changed = w.clone();
    changed[BLOCK_BYTES + 40] ^= 3; // the second block is sparse
    for at in (2 * BLOCK_BYTES..w.len()).step_by(4) {
        changed[at] = changed[at].wrapping_add(1); // the third is ordered, and dense of integers
    }
    let mut stored = w.clone();
    stored[..BLOCK_BYTES].copy_from_slice(&noise(BLOCK_BYTES + 7)[7..]);
    let integers = |bytes: &[u8]| ("integers".to_owned(), "int32", 4, bytes.to_vec());
    let base = vec![
        leaf("a", w.clone()),
        leaf("b", w.clone()),
        integers(&w),
        leaf("c", w.clone()),
    ];
    (
        vec![
            leaf("a", changed.clone()),
            leaf("b", stored),
            integers(&changed),
            leaf("c", w),
        ],
        base,
    )
}

#[test]
fn memory_of_the_base_becomes_the_result() {
    let (new, base) = every_kind();
    let expected = bytes_of(&layout(&new, 64, 1e9));
    let before = bytes_of(&layout(&base, 64, 1e9));
    let patch = patch_of(&new, &before, 64, 1e9, ONE);
    assert!(patch.len() < 2 * BLOCK_BYTES + BLOCK_BYTES / 2);
    assert_eq!(joined(&patch, &before).unwrap(), expected);
    let read = Patch::read(&patch, &()).unwrap();
    for threads in 1..4 {
        let mut memory = [&before[..], b"after"].concat();
        let len = apply(&read, &mut memory, NonZero::new(threads).unwrap(), &()).unwrap();
        assert_eq!(
            (&memory[..len], &memory[len..]),
            (&expected[..], &b"after"[..])
        );
        // Once more is another base.
        let error = apply(&read, &mut memory, NonZero::new(threads).unwrap(), &()).unwrap_err();
        assert!(
            error.to_string().ends_with("differ: a, integers"),
            "{error}"
        );
        assert_eq!(memory[..len], expected);
    }
}

#[test]
fn after_an_error_the_base_is_there() {
    let (new, base) = every_kind();
    let before = bytes_of(&layout(&base, 64, 1e9));
    let patch = patch_of(&new, &before, 64, 1e9, ONE);
    let read = Patch::read(&patch, &()).unwrap();
    // A bit of the last leaf is another one.
    let mut memory = before.clone();
    let at = memory.len() - 1000;
    memory[at] ^= 1;
    let other = memory.clone();
    let error = apply(&read, &mut memory, ONE, &()).unwrap_err();
    let Error::BaseMismatch { paths, more: 0, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        paths.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["c"]
    );
    assert!(memory == other);
    assert!(matches!(
        joined(&patch, &other),
        Err(Error::BaseMismatch { .. })
    ));
    // Too little room.
    let mut memory = before[..before.len() - 1].to_vec();
    assert!(apply(&read, &mut memory, ONE, &()).is_err());
}

#[test]
fn a_base_without_the_leaf_is_another_one() {
    let (new, base) = every_kind();
    let patch = patch_of(&new, &bytes_of(&layout(&base, 64, 1e9)), 64, 1e9, ONE);
    let mut other = base.clone();
    other[0].1 = "int32";
    other[1].3.truncate(8);
    other.truncate(2);
    let error = joined(&patch, &bytes_of(&layout(&other, 64, 1e9))).unwrap_err();
    assert!(
        error.to_string().ends_with("differ: a, b, integers, c"),
        "{error}"
    );
}

#[test]
fn a_buffer_without_a_tree_is_said() {
    let (new, base) = every_kind();
    let patch = patch_of(&new, &bytes_of(&layout(&base, 64, 1e9)), 64, 1e9, ONE);
    let patch = Patch::read(&patch, &()).unwrap();
    let error = apply(&patch, &mut [0; 100], ONE, &()).unwrap_err();
    assert!(
        error.to_string().contains("does not begin with a tree"),
        "{error}"
    );
}

#[test]
fn payloads_of_the_layout_are_not_read_for_headers() {
    let (new, _) = every_kind();
    let new = layout(&new, 64, 1e9);
    let headers = Headers::of(&new).unwrap();
    let payload = new.len() / 3;
    assert_eq!(
        treepack::base::source::Source::at_hand(&headers, payload),
        0
    );
    assert!(treepack::base::source::Source::at_hand(&headers, 0) > 20);
}
