#![no_main]

mod python;

libfuzzer_sys::fuzz_target!(|data: &[u8]| python::check(include_str!("python/remote.py"), data));
