//! Growing what holds input: an error where there is no memory, and not the end of the program.
//!
//! Whatever has a size that follows the input, or the tree that is written, grows by these
//! functions, or by the `try_reserve` that they are made of. Only what is small and there once
//! is allocated as usual.

#[cfg(feature = "python")]
use std::fmt;
use std::io;

use serde::Serialize;

use crate::watch::Watch;
use crate::{Error, Result};

/// An empty list with room for so many.
#[cfg(feature = "python")]
#[inline]
pub fn with_room<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count)?;
    Ok(list)
}

/// Appends one element.
#[inline]
pub fn push<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    list.try_reserve(1)?;
    list.push(item);
    Ok(())
}

/// Appends copies of elements.
#[inline]
pub fn extend<T: Copy>(list: &mut Vec<T>, items: &[T]) -> Result<()> {
    list.try_reserve(items.len())?;
    list.extend_from_slice(items);
    Ok(())
}

/// Appends text.
#[inline]
pub fn push_str(text: &mut String, more: &str) -> Result<()> {
    text.try_reserve(more.len())?;
    text.push_str(more);
    Ok(())
}

/// Writes something to text.
#[cfg(feature = "python")]
pub fn display(item: &impl fmt::Display) -> Result<String> {
    struct Text(String);
    impl fmt::Write for Text {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            push_str(&mut self.0, more).map_err(|_| fmt::Error)
        }
    }
    let mut text = Text(String::new());
    fmt::Write::write_fmt(&mut text, format_args!("{item}")).map_err(|_| Error::OutOfMemory)?;
    Ok(text.0)
}

/// Copies a slice.
pub fn to_vec<T: Copy>(items: &[T]) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(items.len())?;
    list.extend_from_slice(items);
    Ok(list)
}

/// Copies text.
pub fn to_string(text: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy)
}

/// Collects elements.
pub fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    try_collect(items.into_iter().map(Ok))
}

/// Collects elements up to the first error.
pub fn try_collect<T>(items: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let items = items.into_iter();
    let mut list = Vec::new();
    list.try_reserve_exact(items.size_hint().0)?;
    for item in items {
        push(&mut list, item?)?;
    }
    Ok(list)
}

/// Puts something in a place of its own.
pub fn boxed<T>(item: T) -> Result<Box<T>> {
    // A box cannot fail, but what was there a moment ago is there now.
    check_room(size_of::<T>())?;
    Ok(Box::new(item))
}

/// Makes a list of so many equal elements.
pub fn filled<T: Clone>(item: T, count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count)?;
    list.resize(count, item);
    Ok(list)
}

/// Lengthens a list by equal elements, or shortens it.
pub fn resize<T: Clone>(list: &mut Vec<T>, len: usize, item: T) -> Result<()> {
    list.try_reserve(len.saturating_sub(list.len()))?;
    list.resize(len, item);
    Ok(())
}

/// Returns an error unless so many bytes can be had now. This is for what allocates by itself
/// and cannot fail, right before it does.
pub fn check_room(bytes: usize) -> Result<()> {
    Ok(Vec::<u8>::new().try_reserve_exact(bytes)?)
}

/// Encodes typed data as a map, as `rmp_serde::to_vec_named` does. `watch` is asked now and then
/// whether to go on.
///
/// # Panics
/// If the data cannot be written anywhere.
pub fn encode_named(data: &impl Serialize, watch: &dyn Watch) -> Result<Vec<u8>> {
    let mut bytes = Growing::watched(watch);
    let done = rmp_serde::encode::write_named(&mut bytes, data);
    bytes.finish(done)
}

/// Bytes that grow as long as there is memory.
pub struct Growing<'a> {
    bytes: Vec<u8>,
    watch: &'a dyn Watch,
    /// At so many bytes the caller is asked next.
    check_at: usize,
    failed: Option<Error>,
}

impl Default for Growing<'_> {
    fn default() -> Self {
        Self::watched(&())
    }
}

impl<'a> Growing<'a> {
    /// After so many bytes the caller is asked whether to go on.
    const CHECK_BYTES: usize = 64 << 10;

    /// No bytes yet.
    #[must_use]
    pub fn watched(watch: &'a dyn Watch) -> Self {
        Self {
            bytes: Vec::new(),
            watch,
            check_at: Self::CHECK_BYTES,
            failed: None,
        }
    }

    fn add(&mut self, more: &[u8]) -> Result<()> {
        if self.bytes.len() >= self.check_at {
            self.watch.check()?;
            self.check_at = self.bytes.len() + Self::CHECK_BYTES;
        }
        extend(&mut self.bytes, more)
    }

    /// Returns the bytes, when all has been written.
    ///
    /// # Panics
    /// If writing has failed for another reason than memory and the caller.
    pub fn finish(
        self,
        done: std::result::Result<(), rmp_serde::encode::Error>,
    ) -> Result<Vec<u8>> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        done.expect("plain data always serialize");
        Ok(self.bytes)
    }

    /// Returns what has been written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl io::Write for Growing<'_> {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.add(more) {
            self.failed = Some(error);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What serde decodes, into memory that may be missing: for `#[serde(deserialize_with = …)]`.
pub mod decode {
    use std::fmt;
    use std::marker::PhantomData;

    use serde::de::{Deserialize, DeserializeSeed, Deserializer, SeqAccess, Visitor};
    use serde_bytes::ByteBuf;

    use crate::{Error, Result};

    /// What errors of serde say where there is no memory.
    const OUT_OF_MEMORY: &str = "out of memory";

    /// Returns the error for one in decoding a record: `other`, unless there was no memory.
    pub fn explain(
        error: &rmp_serde::decode::Error,
        other: impl FnOnce(&rmp_serde::decode::Error) -> Error,
    ) -> Error {
        match error {
            rmp_serde::decode::Error::Syntax(text)
            | rmp_serde::decode::Error::Uncategorized(text)
                if text == OUT_OF_MEMORY =>
            {
                Error::OutOfMemory
            }
            rmp_serde::decode::Error::InvalidDataRead(error)
            | rmp_serde::decode::Error::InvalidMarkerRead(error)
                if error.kind() == std::io::ErrorKind::OutOfMemory =>
            {
                Error::OutOfMemory
            }
            error => other(error),
        }
    }

    /// The same for a record whose checksum was compared: what is not known there was written by a
    /// newer version. `other` says that it is damaged.
    pub fn explain_sealed(
        error: &rmp_serde::decode::Error,
        other: impl FnOnce(&rmp_serde::decode::Error) -> String,
    ) -> Error {
        explain(error, |error| match error {
            // As `serde::de::Error::unknown_variant` has it.
            rmp_serde::decode::Error::Syntax(text) if text.starts_with("unknown variant") => {
                let name = text.split('`').nth(1).unwrap_or_default();
                let what = format!("this treepack does not know {name:?} in a record");
                Error::Newer { what }
            }
            error => Error::Structure(other(error)),
        })
    }

    fn or_full<T, E: serde::de::Error>(done: Result<T>) -> std::result::Result<T, E> {
        done.map_err(|_| E::custom(OUT_OF_MEMORY))
    }

    /// Decodes a string.
    pub fn text<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
        from.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<String, E> {
            or_full(super::to_string(text))
        }
    }

    impl<'de> DeserializeSeed<'de> for Text {
        type Value = String;

        fn deserialize<D: Deserializer<'de>>(
            self,
            from: D,
        ) -> std::result::Result<String, D::Error> {
            text(from)
        }
    }

    /// Decodes a byte string; a string and a list of numbers are as good.
    pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<ByteBuf, D::Error> {
        from.deserialize_byte_buf(Bytes)
    }

    /// The same as a plain list.
    pub fn byte_vec<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<u8>, D::Error> {
        bytes(from).map(ByteBuf::into_vec)
    }

    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = ByteBuf;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a byte string")
        }

        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> std::result::Result<ByteBuf, E> {
            or_full(super::to_vec(bytes)).map(ByteBuf::from)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<ByteBuf, E> {
            self.visit_bytes(text.as_bytes())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> std::result::Result<ByteBuf, A::Error> {
            List(PhantomData).visit_seq(items).map(ByteBuf::from)
        }
    }

    /// Decodes a byte string, or nothing.
    pub fn bytes_or_none<'de, D: Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<Option<ByteBuf>, D::Error> {
        struct Found(ByteBuf);
        impl<'de> Deserialize<'de> for Found {
            fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
                bytes(from).map(Self)
            }
        }
        Ok(Option::<Found>::deserialize(from)?.map(|found| found.0))
    }

    /// Decodes a list.
    pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<Vec<T>, D::Error> {
        from.deserialize_seq(List(PhantomData))
    }

    struct List<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(
            self,
            mut items: A,
        ) -> std::result::Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            // What it says about its length is not believed.
            while let Some(item) = items.next_element()? {
                or_full(super::push(&mut list, item))?;
            }
            Ok(list)
        }
    }

    /// Decodes a list of strings.
    pub fn texts<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<String>, D::Error> {
        from.deserialize_seq(Texts)
    }

    struct Texts;

    impl<'de> Visitor<'de> for Texts {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of strings")
        }

        fn visit_seq<A: SeqAccess<'de>>(
            self,
            mut items: A,
        ) -> std::result::Result<Vec<String>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element_seed(Text)? {
                or_full(super::push(&mut list, item))?;
            }
            Ok(list)
        }
    }

    /// Decodes a value to a place of its own.
    pub fn boxed<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<Box<T>, D::Error> {
        or_full(super::boxed(T::deserialize(from)?))
    }

    /// Two lists of strings.
    type TextLists = (Vec<String>, Vec<String>);

    /// Decodes two lists of strings, or nothing.
    pub fn pair_of_texts<'de, D: Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<Option<TextLists>, D::Error> {
        #[derive(serde::Deserialize)]
        struct Pair(
            #[serde(deserialize_with = "texts")] Vec<String>,
            #[serde(deserialize_with = "texts")] Vec<String>,
        );
        Ok(Option::<Pair>::deserialize(from)?.map(|pair| (pair.0, pair.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks for more memory than Miri has")]
    fn what_no_memory_holds_is_an_error() {
        assert!(matches!(
            check_room(isize::MAX as usize),
            Err(Error::OutOfMemory)
        ));
        assert!(matches!(
            filled(0_u64, usize::MAX / 16),
            Err(Error::OutOfMemory)
        ));
        assert_eq!(collect(0..3).unwrap(), [0, 1, 2]);
        let stopped = try_collect([Ok(1), Err(Error::Stopped)]);
        assert!(matches!(stopped, Err(Error::Stopped)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn who_waits_for_an_encoding_is_asked() {
        struct Stop;
        impl Watch for Stop {
            fn check(&self) -> Result<()> {
                Err(Error::Stopped)
            }

            fn done(&self, _: usize) -> Result<()> {
                self.check()
            }
        }
        let short = vec![1_u8; 100];
        assert_eq!(
            encode_named(&short, &Stop).unwrap(),
            rmp_serde::to_vec_named(&short).unwrap()
        );
        let long = vec![1_u8; 3 * Growing::CHECK_BYTES];
        assert!(matches!(encode_named(&long, &Stop), Err(Error::Stopped)));
    }
}
