//! A strict reader of JSON (RFC 8259), which borrows strings without escapes.

use std::borrow::Cow;

use crate::{Error, Result, grow};

/// As in the reader of safetensors.
const MAX_DEPTH: usize = 127;

/// The most bytes of a key or number in a message.
const SHOWN: usize = 100;

pub struct Json<'a> {
    text: &'a str,
    at: usize,
    /// The offset of the text in its file.
    base: usize,
    depth: usize,
}

impl<'a> Json<'a> {
    pub fn new(text: &'a [u8], base: usize) -> Result<Self> {
        let text = std::str::from_utf8(text)
            .map_err(|error| invalid(base + error.valid_up_to(), "it is not UTF-8"))?;
        Ok(Self {
            text,
            at: 0,
            base,
            depth: 0,
        })
    }

    pub fn offset(&self) -> usize {
        self.base + self.at
    }

    /// Reads an object: `read` takes each key, and reads its value.
    pub fn object(
        &mut self,
        mut read: impl FnMut(&mut Self, Cow<'a, str>) -> Result<()>,
    ) -> Result<()> {
        self.enter(b'{')?;
        if !self.ends(b'}') {
            loop {
                let key = self.string()?;
                self.take(b':')?;
                read(self, key)?;
                if self.ends(b'}') {
                    break;
                }
                self.take(b',')?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn list(&mut self, mut read: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.enter(b'[')?;
        if !self.ends(b']') {
            loop {
                read(self)?;
                if self.ends(b']') {
                    break;
                }
                self.take(b',')?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn enter(&mut self, bracket: u8) -> Result<()> {
        self.take(bracket)?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let reason = format!("it is nested more than {MAX_DEPTH} levels deep");
            return Err(self.invalid(&reason));
        }
        Ok(())
    }

    /// Skips a value; returns its text.
    pub fn skip(&mut self) -> Result<&'a str> {
        let next = self.peek();
        let start = self.at;
        match next {
            Some(b'{') => {
                let mut keys = Keys::default();
                self.object(|json, key| {
                    keys.add(key)?;
                    json.skip()?;
                    Ok(())
                })?;
                keys.check(self)?;
            }
            Some(b'[') => self.list(|json| json.skip().map(drop))?,
            Some(b'"') => drop(self.string()?),
            Some(b't') => self.word("true")?,
            Some(b'f') => self.word("false")?,
            Some(b'n') => self.word("null")?,
            _ => drop(self.number()?),
        }
        Ok(&self.text[start..self.at])
    }

    /// Reads a list of integers of 64 bits without a sign; returns its text if it is another value.
    pub fn counts(&mut self) -> Result<std::result::Result<Vec<u64>, &'a str>> {
        let is_list = self.peek() == Some(b'[');
        let start = self.at;
        if !is_list {
            return Ok(Err(self.skip()?));
        }
        let mut found = Some(Vec::new());
        self.list(|json| {
            let is_number = matches!(json.peek(), Some(b'0'..=b'9'));
            let count = if is_number {
                json.number()?
            } else {
                json.skip().map(|_| None)?
            };
            match (&mut found, count) {
                (Some(counts), Some(count)) => grow::push(counts, count)?,
                _ => found = None,
            }
            Ok(())
        })?;
        Ok(found.ok_or(&self.text[start..self.at]))
    }

    pub fn is_string(&mut self) -> bool {
        self.peek() == Some(b'"')
    }

    pub fn string(&mut self) -> Result<Cow<'a, str>> {
        self.take(b'"')?;
        let start = self.at;
        let text = self.text;
        let plain = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < b' ';
        let mut made: Option<String> = None;
        loop {
            let from = self.at;
            let rest = &text.as_bytes()[from..];
            let Some(len) = rest.iter().position(plain) else {
                return Err(self.invalid("unterminated string"));
            };
            self.at += len + 1;
            if let Some(made) = &mut made {
                grow::push_str(made, &text[from..from + len])?;
            }
            match rest[len] {
                b'"' => break,
                b'\\' => {
                    let mut begun = match made.take() {
                        Some(begun) => begun,
                        None => grow::to_string(&text[start..from + len])?,
                    };
                    let mut buffer = [0; 4];
                    grow::push_str(&mut begun, self.escape()?.encode_utf8(&mut buffer))?;
                    made = Some(begun);
                }
                _ => return Err(self.invalid("control character in a string")),
            }
        }
        Ok(made.map_or(Cow::Borrowed(&text[start..self.at - 1]), Cow::Owned))
    }

    fn escape(&mut self) -> Result<char> {
        let byte = self.text.as_bytes().get(self.at).copied();
        self.at += 1;
        Ok(match byte {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.unit()?;
                let mut units = [first, 0];
                let is_high = (0xD800..0xDC00).contains(&first);
                if is_high && self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                    self.at += 2;
                    units[1] = self.unit()?;
                }
                let units = &units[..=usize::from(units[1] != 0)];
                match char::decode_utf16(units.iter().copied()).next() {
                    Some(Ok(found)) if units.len() == found.len_utf16() => found,
                    _ => return Err(self.invalid("lone surrogate in a string")),
                }
            }
            _ => {
                self.at -= 1;
                return Err(self.invalid("a string has an unknown escape"));
            }
        })
    }

    fn unit(&mut self) -> Result<u16> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let unit = text.and_then(|text| u16::from_str_radix(text, 16).ok());
        let unit = unit.ok_or_else(|| self.invalid("a string has an unknown escape"))?;
        self.at += 4;
        Ok(unit)
    }

    /// Reads a number; `None` unless it is written as an integer of 64 bits without a sign.
    fn number(&mut self) -> Result<Option<u64>> {
        self.peek();
        let start = self.at;
        let is_negative = self.next_is(b'-');
        let leads_with_zero = self.next_is(b'0');
        let has_digits = leads_with_zero || self.digits();
        let mut is_integer = true;
        let mut is_valid = has_digits;
        if is_valid && self.next_is(b'.') {
            is_integer = false;
            is_valid = self.digits();
        }
        if is_valid && (self.next_is(b'e') || self.next_is(b'E')) {
            is_integer = false;
            let _ = self.next_is(b'+') || self.next_is(b'-');
            is_valid = self.digits();
        }
        if !is_valid {
            self.at = start;
            return Err(self.invalid("expected a value"));
        }
        let text = &self.text[start..self.at];
        let count = text.parse().ok().filter(|_| is_integer && !is_negative);
        let is_finite = count.is_some() || text.parse().is_ok_and(f64::is_finite);
        if !is_finite {
            let reason = format!("the number {} is out of range", shortened(text));
            return Err(self.invalid(&reason));
        }
        Ok(count)
    }

    fn digits(&mut self) -> bool {
        let rest = &self.text.as_bytes()[self.at..];
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count > 0
    }

    fn word(&mut self, word: &str) -> Result<()> {
        if !self.text[self.at..].starts_with(word) {
            return Err(self.invalid("expected a value"));
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads `null` if it is next.
    pub fn null(&mut self) -> Result<bool> {
        let is_null = self.peek() == Some(b'n');
        if is_null {
            self.word("null")?;
        }
        Ok(is_null)
    }

    pub fn is_object(&mut self) -> bool {
        self.peek() == Some(b'{')
    }

    /// Fails if more than spaces follow.
    pub fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.invalid("unexpected text after its end")),
        }
    }

    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += rest.iter().take_while(is_space).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn next_is(&mut self, byte: u8) -> bool {
        let is = self.text.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(is);
        is
    }

    fn ends(&mut self, bracket: u8) -> bool {
        self.peek() == Some(bracket) && self.next_is(bracket)
    }

    fn take(&mut self, byte: u8) -> Result<()> {
        self.peek();
        if self.next_is(byte) {
            return Ok(());
        }
        Err(self.invalid(&format!("expected {:?}", char::from(byte))))
    }

    fn invalid(&self, reason: &str) -> Error {
        invalid(self.offset(), reason)
    }
}

/// The keys of an object, which must be different.
#[derive(Default)]
pub struct Keys<'a>(Vec<Cow<'a, str>>);

impl<'a> Keys<'a> {
    pub fn add(&mut self, key: Cow<'a, str>) -> Result<()> {
        grow::push(&mut self.0, key)
    }

    pub fn check(mut self, json: &Json<'_>) -> Result<()> {
        self.0.sort_unstable();
        match self.0.windows(2).find(|pair| pair[0] == pair[1]) {
            None => Ok(()),
            Some(pair) => Err(json.invalid(&twice(&pair[0]))),
        }
    }
}

pub fn twice(key: &str) -> String {
    format!("duplicate key '{}'", shortened(key))
}

pub fn invalid(offset: usize, reason: &str) -> Error {
    let reason = format!("not a safetensors file: invalid header: {reason}");
    Error::malformed(offset, reason)
}

pub fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN)]
}
