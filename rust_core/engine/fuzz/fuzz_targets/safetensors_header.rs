//! Any bytes as a safetensors file: refused, or read with each tensor inside the file.
//!
//! Run with `cargo +nightly fuzz run safetensors_header` from `rust_core/engine`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pyagent_engine::safetensors::SafetensorsHeader;

fuzz_target!(|bytes: &[u8]| {
    match SafetensorsHeader::parse(bytes) {
        Err(error) => assert!(error.to_string().len() < 2_000),
        Ok(header) => assert!(header.tensors.values().all(|tensor| tensor.range.end <= bytes.len())),
    }
});
