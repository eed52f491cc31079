//! Any bytes are the header of a safetensors file, whose arrays fill it, or an error.

use treepack::base::raw::RawBytes;
use treepack::foreign::safetensors::{Header, encode};
use treepack::format::array::{Alignment, ChunkLimit, Framing};
use treepack::format::encoder::Encoder;
use treepack::format::wire::Head;

/// Checks a file whose header has these bytes, with as many bytes of arrays as it needs.
pub fn safetensors(text: &[u8]) {
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text);
    let needed = match Header::read(&RawBytes::from(&file[..]), false) {
        Ok(header) => {
            check(&header, &file);
            return;
        }
        Err(error) => claimed_end(&error.to_string()),
    };
    let Some(end) = needed.filter(|end| (file.len()..1 << 20).contains(end)) else {
        return;
    };
    let part = Header::read(&RawBytes::from(&file[..]), true).expect("it has some of the arrays");
    assert!(part.damage.is_some());
    let ends = part.arrays.iter().map(|it| it.start + it.nbytes);
    assert!(ends.max().unwrap_or(0) <= file.len());
    file.resize(end, 0);
    check(
        &Header::read(&RawBytes::from(&file[..]), false).expect("it has the size"),
        &file,
    );
}

/// Returns the end of the arrays that the error names.
fn claimed_end(error: &str) -> Option<usize> {
    let (_, rest) = error.split_once("the arrays end at byte ")?;
    rest.split(',').next()?.parse().ok()
}

fn check(header: &Header, file: &[u8]) {
    let mut end = file.len() - header.arrays.iter().map(|it| it.nbytes).sum::<usize>();
    for array in &header.arrays {
        assert_eq!(array.start, end);
        assert_eq!(
            array.shape.iter().product::<usize>() * array.itemsize,
            array.nbytes
        );
        end += array.nbytes;
    }
    assert_eq!(end, file.len());
    let framing = Framing {
        align: Alignment::new(1).unwrap(),
        chunks: ChunkLimit::DEFAULT,
        may_box: true,
    };
    let mut writer = Encoder::<Vec<u8>>::indexed(framing, false);
    let mut found = vec![false; header.arrays.len()];
    let names = header.arrays.iter().map(|it| it.name.as_str());
    let encoded = encode(&mut writer, names, &[], |out, number| {
        assert!(!std::mem::replace(&mut found[number], true));
        out.plain(Head::Nil)
    });
    if encoded.is_ok() {
        assert!(found.iter().all(|found| *found));
        writer.finish(None).expect("all its values are there");
    }
}
