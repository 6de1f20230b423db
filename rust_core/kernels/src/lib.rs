//! SIMD kernels and their run-time dispatch.
