#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| pinniped_fuzz::hop_by_hop::check(data));
