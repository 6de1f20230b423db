//! Any bytes as a file of tensorizer's: refused, or read with each tensor inside the file.
//!
//! Run with `cargo +nightly fuzz run tensorizer_file` from `rust_core/engine`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pyagent_engine::tensorizer::TensorizerFile;

fuzz_target!(|bytes: &[u8]| {
    match TensorizerFile::parse(bytes) {
        Err(error) => assert!(error.to_string().len() < 2_000),
        Ok(file) => assert!(file.tensors.values().all(|tensor| tensor.range.end <= bytes.len())),
    }
});
