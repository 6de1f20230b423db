//! What an instruction set must offer to the algorithm in [`super::tile`].

use crate::pack::format::{Format, QUADS};

/// Vectors of [`Self::LANES`] output rows.
///
/// # Safety
/// The methods may only run inside a function compiled for the implementing instruction set, on a CPU that has
/// it. Pointers must be valid for a whole vector; no alignment is needed.
pub(crate) unsafe trait Simd {
    /// Four bytes per lane: part of a quad or of a plane.
    type Bytes: Copy;
    /// An `i32` per lane.
    type Ints: Copy;
    /// An `f32` per lane.
    type Floats: Copy;

    /// Rows in a vector: 8 or 16.
    const LANES: usize;
    /// Tokens in the largest tile, as many as registers allow.
    const MAX_TOKENS: usize;
    /// Whether [`Self::quad_dots`] takes 128 from weights of 8 bits (and codebook values) by itself.
    const SIGNED_BYTES: bool;

    /// Asks for a cache line that will be read soon to come to the second-level cache; any address will do. The first
    /// level can wait for few lines at a time: asked for there, weights came at two thirds of the rate.
    unsafe fn prefetch(at: *const u8);
    unsafe fn load_bytes(at: *const u8) -> Self::Bytes;
    /// `(bytes >> right) & mask` in each byte; `right < 8` and `mask` must not let bits of a neighbour in.
    unsafe fn field(bytes: Self::Bytes, right: u32, mask: u8) -> Self::Bytes;
    /// `(bytes << left) & mask` in each byte, likewise.
    unsafe fn field_left(bytes: Self::Bytes, left: u32, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Replaces each byte, in 0..16, by its entry in the table.
    unsafe fn lookup(indexes: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;

    /// Takes `offset` from each byte, wrapping.
    unsafe fn minus_bytes(bytes: Self::Bytes, offset: u8) -> Self::Bytes;
    unsafe fn store_bytes(to: *mut u8, bytes: Self::Bytes);

    unsafe fn load_ints(at: *const i32) -> Self::Ints;
    unsafe fn zero_ints() -> Self::Ints;
    /// `ints << LOW_BITS`: sums of upper parts in their place.
    unsafe fn shifted(ints: Self::Ints) -> Self::Ints;
    unsafe fn plus(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// `value << left` in each lane.
    unsafe fn splat_shifted(value: i32, left: u32) -> Self::Ints;
    /// Adds to `sums[t]`, per lane, the products of the weights of a quad with the 8-bit parts of token `t`, whose
    /// block of parts starts at `x[t]`. Exact.
    unsafe fn quad_dots<F: Format, const T: usize>(
        weights: Self::Bytes,
        quad: usize,
        x: &[*const i8; T],
        sums: &mut [Self::Ints; T],
    );
    /// [`Self::quad_dots`] of the quads `first..first + F::SUB_QUADS`.
    #[inline(always)]
    unsafe fn dots<F: Format, const T: usize>(
        weights: &[Self::Bytes; QUADS],
        first: usize,
        x: &[*const i8; T],
        sums: &mut [Self::Ints; T],
    ) {
        for i in 0..F::SUB_QUADS {
            // SAFETY: by contract.
            unsafe { Self::quad_dots::<F, T>(weights[first + i], first + i, x, sums) };
        }
    }

    unsafe fn zero() -> Self::Floats;
    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    unsafe fn load_f32(at: *const f32) -> Self::Floats;
    unsafe fn load_f16(at: *const u16) -> Self::Floats;
    unsafe fn load_bf16(at: *const u16) -> Self::Floats;
    /// 2^-8 times the numbers that [`crate::ggml::e4m3_to_f32`] makes of bytes. Exact: as binary16 of equal bits they are
    /// numbers of a greater bias, and no instruction of that type is slow at subnormal ones.
    unsafe fn load_e4m3(at: *const u8) -> Self::Floats;
    unsafe fn load_i8(at: *const i8) -> Self::Floats;
    /// Half the powers of two that bytes are the exponents of, as [`crate::ggml::half_power`].
    unsafe fn load_half_powers(at: *const u8) -> Self::Floats;
    unsafe fn store(to: *mut f32, values: Self::Floats);
}
