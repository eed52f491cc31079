#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::patches::make_any(data));
