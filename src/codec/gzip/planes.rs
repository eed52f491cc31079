//! Splits elements into planes of bytes, and joins them.
//!
//! docs/format.md, "Numbers", has the rotation of elements and the order of planes.

// Casts keep the lowest byte of an element.
#![allow(clippy::cast_possible_truncation)]

use multiversion::multiversion;

pub const TILE: usize = 64;

/// Elements that stay in the L1 cache while each plane reads them.
const PART: usize = 1024;

pub const MAX_WIDTH: usize = 8;

macro_rules! width {
    ($split:ident, $join:ident, $element:ty) => {
        #[multiversion(targets("x86_64+avx2"))]
        fn $split(data: &[u8], planes: &mut [u8]) {
            const WIDTH: usize = size_of::<$element>();
            let (elements, []) = data.as_chunks::<WIDTH>() else {
                panic!("whole elements");
            };
            let count = elements.len();
            assert_eq!(planes.len(), data.len());
            for (number, part) in elements.chunks(PART).enumerate() {
                for plane in 0..WIDTH {
                    let bytes = &mut planes[plane * count + number * PART..][..part.len()];
                    for (byte, element) in bytes.iter_mut().zip(part) {
                        let element = <$element>::from_le_bytes(*element).rotate_left(1);
                        *byte = (element >> (8 * plane)) as u8;
                    }
                }
            }
        }

        #[multiversion(targets("x86_64+avx2"))]
        fn $join(planes: &[&[u8]; MAX_WIDTH], out: &mut [u8]) {
            const WIDTH: usize = size_of::<$element>();
            let (elements, []) = out.as_chunks_mut::<WIDTH>() else {
                panic!("whole elements");
            };
            let planes: [&[u8]; WIDTH] = std::array::from_fn(|plane| planes[plane]);
            let (tiles, rest) = elements.as_chunks_mut::<TILE>();
            for (number, tile) in tiles.iter_mut().enumerate() {
                let mut all = [0; TILE];
                for (plane, bytes) in planes.iter().enumerate() {
                    let bytes = bytes[number * TILE..].first_chunk::<TILE>();
                    let bytes = bytes.expect("as long as the elements");
                    for (element, &byte) in all.iter_mut().zip(bytes) {
                        *element |= <$element>::from(byte) << (8 * plane);
                    }
                }
                for (bytes, element) in tile.iter_mut().zip(&all) {
                    *bytes = element.rotate_right(1).to_le_bytes();
                }
            }
            for (number, element) in rest.iter_mut().enumerate() {
                let bytes = planes.map(|plane| plane[tiles.len() * TILE + number]);
                *element = <$element>::from_le_bytes(bytes)
                    .rotate_right(1)
                    .to_le_bytes();
            }
        }
    };
}
width!(split_two, join_two, u16);
width!(split_four, join_four, u32);
width!(split_eight, join_eight, u64);

/// # Panics
/// If the width is unsupported, or the lengths differ.
pub fn split(data: &[u8], width: usize, planes: &mut [u8]) {
    match width {
        1 => planes.copy_from_slice(data),
        2 => split_two(data, planes),
        4 => split_four(data, planes),
        8 => split_eight(data, planes),
        _ => panic!("a width of {width}"),
    }
}

/// # Panics
/// If the width is unsupported, or a plane is too short.
pub fn join(planes: &[&[u8]; MAX_WIDTH], width: usize, out: &mut [u8]) {
    match width {
        1 => out.copy_from_slice(&planes[0][..out.len()]),
        2 => join_two(planes, out),
        4 => join_four(planes, out),
        8 => join_eight(planes, out),
        _ => panic!("a width of {width}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn elements_come_together_again(data in prop::collection::vec(any::<u8>(), 0..3000)) {
            for width in [1, 2, 4, 8] {
                let data = &data[..data.len() / width * width];
                let mut planes = vec![0; data.len()];
                split(data, width, &mut planes);
                let count = data.len() / width;
                let plane = |plane: usize| planes.get(plane * count..).unwrap_or_default();
                let mut out = vec![0; data.len()];
                join(&std::array::from_fn(plane), width, &mut out);
                prop_assert_eq!(&out, data);
            }
        }
    }

    #[test]
    fn exponents_are_bytes_of_their_own() {
        let data: Vec<u8> = [1.0_f32, -1.5, 0.25]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let mut planes = [0; 12];
        split(&data, 4, &mut planes);
        assert_eq!(planes[9..], [127, 127, 125]);
        assert_eq!(planes[..3], [0, 1, 0]); // signs
    }
}
