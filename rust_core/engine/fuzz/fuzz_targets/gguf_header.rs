//! Any bytes as a GGUF file: refused, or read with each tensor inside the file and apart from the others.
//!
//! Run with `cargo +nightly fuzz run gguf_header` from `rust_core/engine`; the stable twin is
//! `tests/hostile_model_files.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pyagent_engine::gguf::GgufHeader;

fuzz_target!(|bytes: &[u8]| {
    match GgufHeader::parse(bytes) {
        Err(error) => assert!(error.to_string().len() < 2_000),
        Ok(header) => {
            let mut ranges: Vec<_> = header.tensors.into_iter().map(|tensor| tensor.range).collect();
            ranges.sort_by_key(|range| range.start);
            assert!(ranges.iter().all(|range| range.end <= bytes.len()));
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
});
