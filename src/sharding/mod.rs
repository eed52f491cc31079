//! Checkpoints of many files: the manifest, boxes of arrays, and who writes which shard.

pub mod manifest;

pub mod boxes;

pub mod plan;
