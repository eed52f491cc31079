//! Fallible allocation: `OutOfMemory` instead of an abort.
//!
//! For memory whose size depends on the input, or on the tree to write. Small fixed memory is
//! allocated as usual.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::base::watch::Watch;
use crate::{Error, Result};

#[inline]
pub fn with_room<T>(count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count)?;
    Ok(list)
}

#[inline]
pub fn push<T>(list: &mut Vec<T>, item: T) -> Result<()> {
    list.try_reserve(1)?;
    list.push(item);
    Ok(())
}

#[inline]
pub fn extend<T: Copy>(list: &mut Vec<T>, items: &[T]) -> Result<()> {
    list.try_reserve(items.len())?;
    list.extend_from_slice(items);
    Ok(())
}

pub fn add_all<T>(list: &mut Vec<T>, items: impl IntoIterator<Item = T>) -> Result<()> {
    let mut items = items.into_iter();
    list.try_reserve(items.size_hint().0)?;
    items.try_for_each(|item| push(list, item))
}

#[inline]
pub fn push_str(text: &mut String, more: &str) -> Result<()> {
    text.try_reserve(more.len())?;
    text.push_str(more);
    Ok(())
}

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

pub fn to_vec<T: Copy>(items: &[T]) -> Result<Vec<T>> {
    let mut list = with_room(items.len())?;
    list.extend_from_slice(items);
    Ok(list)
}

pub fn to_string(text: &str) -> Result<String> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy)
}

pub fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    try_collect(items.into_iter().map(Ok))
}

pub fn try_collect<T>(items: impl IntoIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let items = items.into_iter();
    let mut list = with_room(items.size_hint().0)?;
    for item in items {
        push(&mut list, item?)?;
    }
    Ok(list)
}

pub fn boxed<T>(item: T) -> Result<Box<T>> {
    // Boxes cannot fail, but memory that was free a moment ago is free now.
    check_room(size_of::<T>())?;
    Ok(Box::new(item))
}

/// The value of a cache, made when first needed.
pub fn kept<T>(place: &mut Option<T>, make: impl FnOnce() -> Result<T>) -> Result<&mut T> {
    Ok(match place {
        Some(known) => known,
        none => none.insert(make()?),
    })
}

pub fn filled<T: Clone>(item: T, count: usize) -> Result<Vec<T>> {
    let mut list = with_room(count)?;
    list.resize(count, item);
    Ok(list)
}

pub fn resize<T: Clone>(list: &mut Vec<T>, len: usize, item: T) -> Result<()> {
    list.try_reserve(len.saturating_sub(list.len()))?;
    list.resize(len, item);
    Ok(())
}

/// Fails unless `bytes` can be allocated now. Called right before allocations that cannot fail.
pub fn check_room(bytes: usize) -> Result<()> {
    Ok(Vec::<u8>::new().try_reserve_exact(bytes)?)
}

/// Encodes data as `rmp_serde::to_vec_named` does, and checks `watch`.
///
/// # Panics
/// If the data cannot be encoded.
pub fn encode_named(data: &impl Serialize, watch: &dyn Watch) -> Result<Vec<u8>> {
    let mut bytes = Growing::watched(watch);
    let done = rmp_serde::encode::write_named(&mut bytes, data);
    bytes.finish(done)
}

pub struct Growing<'a> {
    bytes: Vec<u8>,
    watch: &'a dyn Watch,
    check_at: usize,
    failed: Option<Error>,
}

impl Default for Growing<'_> {
    fn default() -> Self {
        Self::watched(&())
    }
}

impl<'a> Growing<'a> {
    const CHECK_BYTES: usize = 64 << 10;

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

    /// # Panics
    /// If writing failed, except for memory or the watch.
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

/// Fallible decoding with serde: for `#[serde(deserialize_with = …)]`.
pub mod decode {
    use std::fmt;
    use std::marker::PhantomData;
    use std::result::Result;

    use serde::de::{Deserialize, DeserializeSeed, Deserializer, SeqAccess, Visitor};
    use serde_bytes::ByteBuf;

    use crate::Error;

    const OUT_OF_MEMORY: &str = "out of memory";

    /// Decodes a record whose MessagePack is at most `depth` deep.
    pub fn nested<'a, T: Deserialize<'a>>(
        bytes: &'a [u8],
        depth: usize,
    ) -> Result<T, rmp_serde::decode::Error> {
        let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
        deserializer.set_max_depth(depth);
        T::deserialize(&mut deserializer)
    }

    /// Returns `other` for an error in decoding a record, unless out of memory.
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

    /// Like `explain`, for a record with a matching checksum: unknown variants are from a newer
    /// version.
    pub fn explain_sealed(
        error: &rmp_serde::decode::Error,
        other: impl FnOnce(&rmp_serde::decode::Error) -> Error,
    ) -> Error {
        explain(error, |error| match error {
            // As in `serde::de::Error::unknown_variant`.
            rmp_serde::decode::Error::Syntax(text) if text.starts_with("unknown variant") => {
                let name = text.split('`').nth(1).unwrap_or_default();
                let reason = format!("unknown {name:?} in a record");
                Error::Newer { reason }
            }
            error => other(error),
        })
    }

    pub fn is_out_of_memory(reason: &str) -> bool {
        reason.starts_with(OUT_OF_MEMORY)
    }

    fn or_full<T, E: serde::de::Error>(done: crate::Result<T>) -> Result<T, E> {
        done.map_err(|_| E::custom(OUT_OF_MEMORY))
    }

    pub fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
        from.deserialize_str(Text)
    }

    #[derive(Clone, Copy)]
    struct Text;

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
            or_full(super::to_string(text))
        }
    }

    impl<'de> DeserializeSeed<'de> for Text {
        type Value = String;

        fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
            text(from)
        }
    }

    pub fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<ByteBuf, D::Error> {
        from.deserialize_byte_buf(Bytes)
    }

    pub fn byte_vec<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        bytes(from).map(ByteBuf::into_vec)
    }

    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = ByteBuf;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a byte string")
        }

        fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<ByteBuf, E> {
            or_full(super::to_vec(bytes)).map(ByteBuf::from)
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteBuf, E> {
            self.visit_bytes(text.as_bytes())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<ByteBuf, A::Error> {
            List(PhantomData, "").visit_seq(items).map(ByteBuf::from)
        }
    }

    pub fn bytes_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteBuf>, D::Error> {
        struct Found(ByteBuf);
        impl<'de> Deserialize<'de> for Found {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                bytes(from).map(Self)
            }
        }
        Ok(Option::<Found>::deserialize(from)?.map(|found| found.0))
    }

    pub fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<T>, D::Error> {
        from.deserialize_seq(List(PhantomData, "a list"))
    }

    /// A list of items, and its name.
    struct List<S>(S, &'static str);

    impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for List<S> {
        type Value = Vec<S::Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.1)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut list = Vec::new();
            // Its claimed length is not trusted.
            while let Some(item) = items.next_element_seed(self.0)? {
                or_full(super::push(&mut list, item))?;
            }
            Ok(list)
        }
    }

    pub fn texts<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        from.deserialize_seq(List(Text, "a list of strings"))
    }

    pub fn boxed<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Box<T>, D::Error> {
        or_full(super::boxed(T::deserialize(from)?))
    }

    type TextLists = (Vec<String>, Vec<String>);

    pub fn pair_of_texts<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<TextLists>, D::Error> {
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
    fn more_than_all_memory_is_an_error() {
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
    fn encoding_checks_the_watch() {
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
