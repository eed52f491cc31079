#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::headers::safetensors(data));
