#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| pinniped_fuzz::session::check(data));
