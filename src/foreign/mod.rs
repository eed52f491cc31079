//! Recognition of other formats, and headers of safetensors.

pub mod sniff;

pub mod safetensors;
