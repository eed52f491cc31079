//! Differences of typed values.

use std::fmt::{self, Write};

use crate::format::structure::{PLACEHOLDER, Value};
use crate::{Result, base::grow};

const MAX_TEXT: usize = 40;

const MAX_NAME: usize = 100;

/// The first innermost parts that differ. Code is not compared.
pub fn apart<'a>(one: &'a Value, other: &'a Value) -> Result<Option<(&'a Value, &'a Value)>> {
    let first = |pairs: &mut dyn Iterator<Item = (&'a Value, &'a Value)>| {
        let mut differences = pairs.map(|(one, other)| apart(one, other).transpose());
        differences.find_map(|difference| difference).transpose()
    };
    match (one, other) {
        (Value::Float(a), Value::Float(b)) if a.is_nan() && b.is_nan() => Ok(None),
        (Value::Tuple(a), Value::Tuple(b)) | (Value::List(a), Value::List(b))
            if a.len() == b.len() =>
        {
            first(&mut a.iter().zip(b))
        }
        (Value::Dict(a), Value::Dict(b)) if a.len() == b.len() => {
            let (a, b) = (sorted(a)?, sorted(b)?);
            if a.iter().zip(&b).any(|(a, b)| a.0 != b.0) {
                return Ok(Some((one, other)));
            }
            first(&mut a.into_iter().zip(b).map(|(a, b)| (a.1, b.1)))
        }
        (Value::Named(name, a), Value::Named(same, b)) if name == same => {
            if name == PLACEHOLDER {
                return Ok(None);
            }
            apart(a, b)
        }
        _ => Ok((one != other).then_some((one, other))),
    }
}

fn sorted(pairs: &[(Value, Value)]) -> Result<Vec<(Vec<u8>, &Value)>> {
    let keyed = pairs.iter().map(|(key, value)| Ok((key.encode()?, value)));
    let mut keyed = grow::try_collect(keyed)?;
    keyed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(keyed)
}

/// The beginning of Python's `repr`.
pub fn short(value: &Value) -> Result<String> {
    written(MAX_TEXT, |text| write_repr(value, text))
}

pub fn short_name(name: &str) -> Result<String> {
    written(MAX_NAME, |text| text.write_str(name))
}

fn written(room: usize, write: impl FnOnce(&mut Short) -> fmt::Result) -> Result<String> {
    let bytes = grow::with_room(room + 3)?;
    let mut text = Short { bytes, room };
    if write(&mut text).is_err() {
        text.bytes.extend_from_slice(b"...");
    }
    grow::to_string(&String::from_utf8_lossy(&text.bytes))
}

struct Short {
    bytes: Vec<u8>,
    room: usize,
}

impl Write for Short {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let end = more.floor_char_boundary(self.room - self.bytes.len());
        self.bytes.extend_from_slice(&more.as_bytes()[..end]);
        if end < more.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

fn write_repr(value: &Value, to: &mut Short) -> fmt::Result {
    match value {
        Value::None => to.write_str("None"),
        Value::Bool(true) => to.write_str("True"),
        Value::Bool(false) => to.write_str("False"),
        Value::Int(value) => write!(to, "{value}"),
        Value::Float(value) => write!(to, "{value:?}"),
        Value::Complex(real, imag) => write!(to, "complex({real:?}, {imag:?})"),
        Value::Str(value) => write!(to, "'{}'", value.escape_debug()),
        Value::Bytes(value) => write!(to, "b'{}'", value.escape_ascii()),
        Value::Tuple(parts) => write_all("(", parts, ")", to, write_repr),
        Value::List(parts) => write_all("[", parts, "]", to, write_repr),
        Value::Frozenset(parts) => write_all("{", parts, "}", to, write_repr),
        Value::Dict(pairs) => write_all("{", pairs, "}", to, |(key, value), to| {
            write_repr(key, to)?;
            to.write_str(": ")?;
            write_repr(value, to)
        }),
        Value::Named(name, value) => {
            to.write_str(name)?;
            write_all("(", std::slice::from_ref(&**value), ")", to, write_repr)
        }
    }
}

fn write_all<T>(
    begin: &str,
    parts: &[T],
    end: &str,
    to: &mut Short,
    write: impl Fn(&T, &mut Short) -> fmt::Result,
) -> fmt::Result {
    to.write_str(begin)?;
    for (at, part) in parts.iter().enumerate() {
        to.write_str(if at == 0 { "" } else { ", " })?;
        write(part, to)?;
    }
    to.write_str(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, value: Value) -> Value {
        Value::Named(name.into(), Box::new(value))
    }

    fn text(text: &str) -> Value {
        Value::Str(text.into())
    }

    #[test]
    fn the_first_parts_that_differ_are_found() {
        let dict = |value| {
            Value::Dict(vec![
                (text("a"), Value::Int(value)),
                (text("b"), Value::Int(2)),
            ])
        };
        let nan = Value::Float(f64::NAN);
        let one = Value::Tuple(vec![nan.clone(), dict(1), Value::Int(3)]);
        let other = Value::Tuple(vec![nan, dict(5), Value::Int(4)]);
        assert_eq!(apart(&one, &one).unwrap(), None);
        let pair = apart(&one, &other).unwrap();
        assert_eq!(pair, Some((&Value::Int(1), &Value::Int(5))));
        let Value::Dict(mut pairs) = dict(1) else {
            unreachable!()
        };
        pairs.reverse();
        assert_eq!(apart(&dict(1), &Value::Dict(pairs)).unwrap(), None);
        let placeholder = |name| named(PLACEHOLDER, text(name));
        assert_eq!(apart(&placeholder("f"), &placeholder("g")).unwrap(), None);
        let (relu, gelu) = (named("jax.nn", text("relu")), named("jax.nn", text("gelu")));
        let pair = apart(&relu, &gelu).unwrap().unwrap();
        assert_eq!(short(pair.0).unwrap(), "'relu'");
        assert!(
            apart(&relu, &named("other", text("relu")))
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn texts_are_short() {
        let value = Value::Tuple(vec![
            Value::None,
            Value::Bool(true),
            Value::Float(0.5),
            text("a'\n"),
        ]);
        assert_eq!(short(&value).unwrap(), r"(None, True, 0.5, 'a\'\n')");
        let value = Value::List(vec![named("é".repeat(30).as_str(), Value::Int(1))]);
        let text = short(&value).unwrap();
        assert!(
            text.len() <= MAX_TEXT + 3 && text.ends_with("é..."),
            "{text}"
        );
    }
}
