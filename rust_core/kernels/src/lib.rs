//! SIMD kernels and their run-time dispatch.

pub mod attention;
pub mod elementwise;
pub mod ggml;
pub mod isa;
mod lanes;
pub mod low_rank;
pub mod matmul;
pub mod pack;
pub mod recurrent;
pub mod sampling;
pub mod thread_pool;
