//! Texts of keys, as `str` of Python writes them.

use std::ascii;
use std::borrow::Cow;

use super::{Event, Events, Reader};
use crate::{Result, base::grow};

impl Reader<'_> {
    pub fn key_text(&self, key: Event) -> Result<Cow<'_, str>> {
        match key {
            Event::Bin(span) => Ok(bytes_text(&self.cursor.copy(span.range())?)?.into()),
            _ => Ok(self.events.key_text(key)),
        }
    }
}

impl Events {
    /// The text of a key, for errors; bytes are `?`.
    pub fn key_text(&self, key: Event) -> Cow<'_, str> {
        match key {
            Event::Nil => "None".into(),
            Event::Bool(true) => "True".into(),
            Event::Bool(false) => "False".into(),
            Event::Int(value) => value.to_string().into(),
            Event::Uint(value) => value.to_string().into(),
            Event::Float(value) => float_text(value).into(),
            Event::Complex(number) => complex_text(self.complex(number)).into(),
            Event::Str(text) => self.text(text).into(),
            _ => "?".into(),
        }
    }
}

/// Rust writes `NaN` and `1e-7`; Python writes `nan` and `1e-07`.
fn float_text(value: f64) -> String {
    let text = format!("{value:?}").to_lowercase();
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().expect("Rust writes exponents in digits");
            format!("{digits}e{exponent:+03}")
        }
        None => text,
    }
}

fn complex_text((real, imaginary): (f64, f64)) -> String {
    let short = |value: f64| {
        let text = float_text(value);
        text.strip_suffix(".0").unwrap_or(&text).to_owned()
    };
    let imaginary_text = short(imaginary);
    if real == 0.0 && real.is_sign_positive() {
        return format!("{imaginary_text}j");
    }
    let sign = if imaginary_text.starts_with('-') {
        ""
    } else {
        "+"
    };
    format!("({}{sign}{imaginary_text}j)", short(real))
}

fn bytes_text(bytes: &[u8]) -> Result<String> {
    let has = |byte| bytes.contains(&byte);
    let quote = if has(b'\'') && !has(b'"') {
        b'"'
    } else {
        b'\''
    };
    let mut text = Vec::new();
    grow::extend(&mut text, &[b'b', quote])?;
    for &byte in bytes {
        // Python escapes only the quote that it has around.
        let is_plain = matches!(byte, b'\'' | b'"') && byte != quote;
        let escaped = ascii::escape_default(byte).skip(is_plain.into());
        grow::add_all(&mut text, escaped)?;
    }
    grow::push(&mut text, quote)?;
    Ok(String::from_utf8(text).expect("escapes are ASCII"))
}
