//! What the encoder writes is what the events tell, and the arrays are found by their paths.

use std::mem::MaybeUninit;
use std::num::NonZero;

use proptest::prelude::*;
use treepack::Result;
use treepack::files::sink::append_blocks;
use treepack::format::array::{Alignment, Array, ChunkLimit, Framing};
use treepack::format::encoder::Encoder;
use treepack::format::events::{Event, Events};
use treepack::format::index::LeafKind;
use treepack::format::layout::{Caching, Layout};
use treepack::format::structure::{Kind, Record};
use treepack::format::wire::{Complex, EXT_NDARRAY, Head};

use crate::opened::Opened;

#[derive(Debug, Clone, PartialEq)]
pub enum Tree {
    Nil,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Complex(f64, f64),
    Str(String),
    Bin(Vec<u8>),
    Array(Vec<f32>),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Nil),
        any::<bool>().prop_map(Tree::Bool),
        (i64::MIN..0).prop_map(Tree::Int),
        any::<u64>().prop_map(Tree::Uint),
        (-1e9..1e9).prop_map(Tree::Float),
        (-1e9..1e9, -1e9..1e9).prop_map(|(re, im)| Tree::Complex(re, im)),
        "\\PC{0,40}".prop_map(Tree::Str),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Tree::Bin),
        // Of those of a few kilobytes some are aligned.
        prop::collection::vec(-1e9_f32..1e9, 0..900).prop_map(Tree::Array),
    ];
    leaf.prop_recursive(4, 30, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Tree::List),
            prop::collection::vec(("[a-z/]{0,9}", inner), 0..6).prop_map(Tree::Map),
        ]
    })
}

fn write(tree: &Tree, out: &mut Encoder<Vec<u8>>) -> Result<()> {
    match tree {
        Tree::Nil => out.plain(Head::Nil),
        Tree::Bool(value) => out.plain(Head::Bool(*value)),
        Tree::Int(value) => out.plain(Head::Int(*value)),
        Tree::Uint(value) => out.plain(Head::Uint(*value)),
        Tree::Float(value) => out.plain(Head::Float(*value)),
        Tree::Complex(re, im) => out.complex(Complex(*re, *im)),
        Tree::Str(text) => out.str(text.len(), |out| out.extend(text.as_bytes())),
        Tree::Bin(bytes) => out.bin(bytes.len(), Kind::Plain, |out| out.push(bytes.clone())),
        Tree::Array(values) => {
            let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
            let array = Array {
                code: EXT_NDARRAY,
                shape: &[values.len()],
                dtype: "float32",
                itemsize: 4,
            };
            out.array(&array, Kind::Plain, |out, range| {
                out.push(bytes[range].to_vec())
            })
        }
        Tree::List(items) => {
            out.list(items.len())?;
            items.iter().try_for_each(|item| write(item, out))?;
            out.end(Kind::List)
        }
        Tree::Map(pairs) => {
            out.map(pairs.len())?;
            for (key, value) in pairs {
                out.key(key)?;
                write(value, out)?;
            }
            out.end(Kind::Dict)
        }
    }
}

/// Returns what is written of a tree.
pub fn encoded(tree: &Tree, mut encoder: Encoder<Vec<u8>>) -> Vec<u8> {
    write(tree, &mut encoder).unwrap();
    let layout = encoder.finish(None).unwrap();
    if layout.seal().is_none() {
        return bytes(&layout);
    }
    let mut out = Vec::new();
    append_blocks(&layout, NonZero::<usize>::MIN, &mut out, &()).unwrap();
    out
}

fn bytes(layout: &Layout<Vec<u8>>) -> Vec<u8> {
    let mut memory = vec![MaybeUninit::new(0); layout.len()];
    layout.copy_to(0, &mut memory, Caching::Usual).unwrap();
    let mut out = Vec::new();
    for slice in layout.slices(0..layout.len()) {
        slice.memory().unwrap().append_to(&mut out).unwrap();
    }
    out
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (floats, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    floats.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

fn read(events: &Events, source: &[u8], next: &mut usize) -> Tree {
    let event = events.as_slice()[*next];
    *next += 1;
    match event {
        Event::Nil => Tree::Nil,
        Event::Bool(value) => Tree::Bool(value),
        Event::Int(value) => Tree::Int(value),
        Event::Uint(value) => Tree::Uint(value),
        Event::Float(value) => Tree::Float(value),
        Event::Complex(number) => {
            let (re, im) = events.complex(number);
            Tree::Complex(re, im)
        }
        Event::Str(text) => Tree::Str(events.text(text).into()),
        Event::Bin(span) => Tree::Bin(source[span.range()].to_vec()),
        Event::Array(number) => {
            let array = events.array(number);
            assert_eq!(array.dtype, b"float32");
            let parts = array.spans.iter().map(|span| &source[span.range()]);
            Tree::Array(floats(&parts.collect::<Vec<_>>().concat()))
        }
        Event::List(list) => {
            Tree::List((0..list.len).map(|_| read(events, source, next)).collect())
        }
        Event::Map(map) => {
            let pairs = (0..map.len).map(|_| match read(events, source, next) {
                Tree::Str(key) => (key, read(events, source, next)),
                other => panic!("{other:?} for a key"),
            });
            Tree::Map(pairs.collect())
        }
        other => panic!("{other:?}"),
    }
}

/// The paths of all arrays, or of those outside of lists, and what they contain.
fn arrays(tree: &Tree, path: Option<&str>, in_lists: bool, found: &mut Vec<(String, Vec<f32>)>) {
    let below = |key: &str| {
        let key = key.replace('~', "~0").replace('/', "~1");
        path.map_or_else(|| key.clone(), |path| format!("{path}/{key}"))
    };
    match tree {
        Tree::Array(values) => found.push((path.unwrap_or(".").into(), values.clone())),
        Tree::List(items) if in_lists => {
            for (index, item) in items.iter().enumerate() {
                arrays(item, Some(&below(&index.to_string())), in_lists, found);
            }
        }
        Tree::Map(pairs) => {
            for (key, value) in pairs {
                arrays(value, Some(&below(key)), in_lists, found);
            }
        }
        _ => {}
    }
}

pub fn framing(align: i64, limit: f64) -> Framing {
    Framing {
        align: Alignment::new(align).unwrap(),
        chunks: ChunkLimit::new(limit),
        may_box: true,
    }
}

#[test]
fn a_list_of_aligned_arrays_may_be_the_root() {
    let tree = Tree::List(vec![Tree::Array(vec![1.0; 900])]);
    let source = encoded(&tree, Encoder::indexed(framing(16, 1e9), false));
    let file = Opened::new(source).unwrap();
    assert_eq!(file.leaves().count(), 1);
    assert_eq!(file.damage(), None);
}

proptest! {
    #[test]
    fn trees_come_back(
        tree in trees(),
        align in prop_oneof![Just(1), Just(16), Just(64)],
        limit in prop_oneof![Just(1e9), Just(1000.0), Just(90.0)],
        is_summed in any::<bool>(),
    ) {
        let framing = framing(align, limit);
        let source = encoded(&tree, Encoder::new(framing));
        let events = Events::read(&source).unwrap();
        let mut next = 0;
        prop_assert_eq!(&read(&events, &source, &mut next), &tree);
        prop_assert_eq!(next, events.as_slice().len());
        // By the headers, and by an index, in which a list is one leaf.
        let indexed = encoded(&tree, Encoder::indexed(framing, is_summed));
        for (source, in_lists) in [(source, true), (indexed, false)] {
            let file = Opened::new(source).unwrap();
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            arrays(&tree, None, in_lists, &mut expected);
            for value in file.leaves() {
                if let LeafKind::Array(_, shape) = file.kind(value) {
                    let array = floats(&file.bytes(value).unwrap());
                    prop_assert_eq!(shape, &[array.len() as u64]);
                    found.push((file.path(value), array));
                }
            }
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(file.damage(), None);
        }
    }
}

#[test]
fn a_described_tree_ends_with_its_record() {
    for is_leaf in [false, true] {
        let mut encoder = Encoder::<Vec<u8>>::described(framing(1, 1e9));
        if is_leaf {
            encoder.plain(Head::Uint(7)).unwrap();
        } else {
            encoder.map(1).unwrap();
            encoder.key("a").unwrap();
            encoder.plain(Head::Uint(7)).unwrap();
            encoder.end(Kind::Tuple).unwrap();
        }
        let source = bytes(&encoder.finish(Some(vec![0xc0])).unwrap());
        let events = Events::read(&source).unwrap();
        let [
            Event::Map(map),
            Event::Str(key),
            Event::Uint(7),
            Event::Str(last),
            Event::Bin(span),
        ] = *events.as_slice()
        else {
            panic!("{events:?}");
        };
        assert_eq!((map.len, map.end), (2, 5));
        let expected = if is_leaf { "__treepack_root__" } else { "a" };
        assert_eq!(events.text(key), expected);
        assert_eq!(events.text(last), "__treepack__");
        let record = Record::read(&source[span.range()]).unwrap();
        assert_eq!(record.nodes.last().unwrap().0 == Kind::Tuple, !is_leaf);
        assert_eq!(record.metadata.unwrap().into_vec(), [0xc0]);
    }
}
