//! AVX-512 with VNNI: a vector is a whole group of 16 rows, a quad one `vpdpbusd`.

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::activations::{LARGEST, LOW_BITS};
use super::simd::Simd;
use super::tile::entry;
use crate::pack::BLOCK_COLS;
use crate::pack::format::{Format, QUADS};

pub(crate) struct Avx512;

entry!(Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

/// Quantises one token vector, block by block.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn quantise_row(x: &[f32], row: &mut [ActivationBlock]) {
    let (blocks, _) = x.as_chunks::<BLOCK_COLS>();
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    for (x, block) in blocks.iter().zip(row) {
        // SAFETY: a block has 32 numbers and 32 places for integers.
        unsafe {
            let first = _mm512_loadu_ps(x.as_ptr());
            let last = _mm512_loadu_ps(x.as_ptr().add(16));
            let bits = _mm512_max_epi32(
                _mm512_and_si512(_mm512_castps_si512(first), magnitude),
                _mm512_and_si512(_mm512_castps_si512(last), magnitude),
            );
            let amax_bits = _mm512_reduce_max_epi32(bits).cast_unsigned();
            if ActivationBlock::is_degenerate(amax_bits) {
                block.degenerate(amax_bits);
                continue;
            }
            let amax = f32::from_bits(amax_bits);
            let inverse = _mm512_set1_ps(LARGEST / amax);
            let mut half_sums = [0; 2];
            for (half, x) in [first, last].into_iter().enumerate() {
                let quants = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
                let rounding = _mm512_set1_epi32(1 << (LOW_BITS - 1));
                let high = _mm512_srai_epi32::<LOW_BITS>(_mm512_add_epi32(quants, rounding));
                let low = _mm512_sub_epi32(quants, _mm512_slli_epi32::<LOW_BITS>(high));
                _mm_storeu_si128(
                    block.high.as_mut_ptr().add(16 * half).cast(),
                    _mm512_cvtepi32_epi8(high),
                );
                _mm_storeu_si128(block.low.as_mut_ptr().add(16 * half).cast(), _mm512_cvtepi32_epi8(low));
                half_sums[half] = _mm512_reduce_add_epi32(quants);
            }
            block.finish(amax / LARGEST, half_sums);
        }
    }
}

// SAFETY: each method is built on intrinsics of the named features, which the entries enable.
unsafe impl Simd for Avx512 {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;

    const LANES: usize = 16;
    const MAX_TOKENS: usize = 8;
    const SIGNED_BYTES: bool = false;

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn load_bytes(at: *const u8) -> __m512i {
        // SAFETY: valid by contract.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn field(bytes: __m512i, right: u32, mask: u8) -> __m512i {
        // SAFETY: by contract.
        unsafe {
            let moved = _mm512_srlv_epi32(bytes, _mm512_set1_epi32(right.cast_signed()));
            _mm512_and_si512(moved, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn field_left(bytes: __m512i, left: u32, mask: u8) -> __m512i {
        // SAFETY: by contract.
        unsafe {
            let moved = _mm512_sllv_epi32(bytes, _mm512_set1_epi32(left.cast_signed()));
            _mm512_and_si512(moved, _mm512_set1_epi8(mask.cast_signed()))
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: by contract.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn lookup(indexes: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: by contract.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indexes)
        }
    }

    #[inline(always)]
    unsafe fn minus_bytes(bytes: __m512i, offset: u8) -> __m512i {
        // SAFETY: by contract.
        unsafe { _mm512_sub_epi8(bytes, _mm512_set1_epi8(offset.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: __m512i) {
        // SAFETY: valid by contract.
        unsafe { _mm512_storeu_si512(to.cast(), bytes) }
    }

    #[inline(always)]
    unsafe fn load_ints(at: *const i32) -> __m512i {
        // SAFETY: valid by contract.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn zero_ints() -> __m512i {
        // SAFETY: by contract.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn shifted_plus(ints: __m512i, plus: __m512i) -> __m512i {
        // SAFETY: by contract.
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<LOW_BITS>(ints), plus) }
    }

    #[inline(always)]
    unsafe fn splat_shifted(value: i32, left: u32) -> __m512i {
        // SAFETY: by contract.
        unsafe {
            let shift = _mm512_set1_epi32(left.cast_signed());
            _mm512_sllv_epi32(_mm512_set1_epi32(value), shift)
        }
    }

    #[inline(always)]
    unsafe fn dots<F: Format, const T: usize>(
        weights: &[__m512i; QUADS],
        first: usize,
        x: &[*const i8; T],
        sums: &mut [__m512i; T],
    ) {
        for i in 0..F::SUB_QUADS {
            let quad = first + i;
            for t in 0..T {
                // SAFETY: a token's block has four integers per quad.
                unsafe {
                    let x = _mm512_set1_epi32(x[t].add(4 * quad).cast::<i32>().read_unaligned());
                    sums[t] = _mm512_dpbusd_epi32(sums[t], weights[quad], x);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: by contract.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: by contract.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn to_floats(ints: __m512i) -> __m512 {
        // SAFETY: by contract.
        unsafe { _mm512_cvtepi32_ps(ints) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: by contract.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: by contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> __m512 {
        // SAFETY: valid by contract.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u16) -> __m512 {
        // SAFETY: valid by contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> __m512 {
        // SAFETY: valid by contract.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> __m512 {
        // SAFETY: valid by contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: __m512) {
        // SAFETY: valid by contract.
        unsafe { _mm512_storeu_ps(to, values) }
    }
}
