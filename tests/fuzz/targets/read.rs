//! Any bytes are read token by token, and never beyond their end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use treepack::array::{ArrayBody, ChunkedArray};
use treepack::wire::{Cursor, Token};

fuzz_target!(|data: &[u8]| {
    let mut cursor = Cursor::new(data);
    loop {
        let before = cursor.clone();
        let offset = cursor.offset();
        match cursor.token() {
            Ok(Token::Map(pairs)) => {
                let _ = ChunkedArray::parse(&mut cursor.clone(), pairs, offset);
            }
            Ok(Token::Ext(_, body)) => {
                if let Ok(array) = ArrayBody::parse(body, offset) {
                    let _ = array.dims.resolve(array.payload.len(), 4, offset);
                }
            }
            Ok(_) => {}
            Err(_) => break,
        }
        assert!(cursor.offset() > offset);
        let _ = before.clone().skip();
        let _ = before.clone().number();
    }
    assert!(cursor.offset() <= data.len());
});
