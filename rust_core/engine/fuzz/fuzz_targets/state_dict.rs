//! Any bytes as a PyTorch file: refused, or read with each tensor inside the file. Nothing of it is run.
//!
//! Run with `cargo +nightly fuzz run state_dict` from `rust_core/engine`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pyagent_engine::pytorch::StateDict;

fuzz_target!(|bytes: &[u8]| {
    match StateDict::parse(bytes) {
        Err(error) => assert!(error.to_string().len() < 2_000),
        Ok(dict) => assert!(dict.tensors.values().all(|tensor| tensor.range.end <= bytes.len())),
    }
});
