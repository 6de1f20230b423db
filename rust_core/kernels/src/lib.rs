//! SIMD kernels and their run-time dispatch.

pub mod ggml;
