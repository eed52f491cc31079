//! The grammar of encoded trees: writing events, and reading them.

pub mod encoder;

pub mod events;
