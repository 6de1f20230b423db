//! AVX2, FMA and F16C, with AVX-VNNI where the CPU has it: a vector is half a group, eight rows.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length unroll into registers"
)]

use std::arch::x86_64::*;

use super::activations::{LARGEST_NARROW, LOW_BITS, Unquantised, scale_of};
use super::simd::Simd;
use super::{ActivationBlock, Job};
use crate::pack::format::{Format, QUADS};

/// [`LOW_BITS`], as these intrinsics take it.
const SHIFT: i32 = LOW_BITS as i32;

/// Runs a job, with AVX-VNNI if there.
///
/// # Safety
/// As [`super::matmul`]; the CPU has AVX2, FMA and F16C.
pub(crate) unsafe fn run(job: &Job) {
    // SAFETY: by contract; AVX-VNNI is checked.
    unsafe {
        if is_x86_feature_detected!("avxvnni") {
            vnni::run(job);
        } else {
            maddubs::run(job);
        }
    }
}

/// Quantises block by block.
///
/// # Safety
/// As [`super::quantise`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn quantise(blocks: &[Unquantised]) {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for pair in blocks {
        // SAFETY: by contract; a block has 32 numbers and 32 places for integers.
        unsafe {
            let (x, block) = (&*pair.numbers, &mut *pair.block);
            let mut numbers = [_mm256_setzero_ps(); 4];
            let mut bits = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                numbers[i] = _mm256_loadu_ps(x.as_ptr().add(8 * i));
                bits[i] = _mm256_and_si256(_mm256_castps_si256(numbers[i]), magnitude);
            }
            let largest = largest_quads(bits);
            if ActivationBlock::is_degenerate(largest[0]) {
                block.degenerate(largest[0]);
                continue;
            }
            let scale = scale_of(largest);
            let inverse = _mm256_set1_ps(1.0 / scale);
            let narrow = _mm256_set1_epi32(LARGEST_NARROW);
            let mut ints = [_mm256_setzero_si256(); 4];
            for i in 0..4 {
                ints[i] = _mm256_cvtps_epi32(_mm256_mul_ps(numbers[i], inverse));
            }
            let rounding = _mm256_set1_epi32(1 << (LOW_BITS - 1));
            let mut high = ints;
            let mut low = ints;
            let mut wide = 0;
            for i in 0..4 {
                let is_wide = _mm256_cmpgt_epi32(_mm256_abs_epi32(ints[i]), narrow);
                let upper = _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(ints[i], rounding));
                wide |= _mm256_movemask_ps(_mm256_castsi256_ps(is_wide)).cast_unsigned() << (8 * i);
                high[i] = _mm256_and_si256(upper, is_wide);
                low[i] = _mm256_sub_epi32(ints[i], _mm256_slli_epi32::<SHIFT>(high[i]));
            }
            // Packing works within halves of a register; `order` puts the fours back in sequence.
            for (parts, place) in [(high, block.high.as_mut_ptr()), (low, block.low.as_mut_ptr())] {
                let pairs = [
                    _mm256_packs_epi32(parts[0], parts[1]),
                    _mm256_packs_epi32(parts[2], parts[3]),
                ];
                let bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(pairs[0], pairs[1]), order);
                _mm256_storeu_si256(place.cast(), bytes);
            }
            let half_sums = [
                reduce_add(_mm256_add_epi32(ints[0], ints[1])),
                reduce_add(_mm256_add_epi32(ints[2], ints[3])),
            ];
            block.finish(scale, half_sums, wide);
        }
    }
}

/// The bits of the three largest of the different values that the quads' largest magnitudes have; a quad is 128 bits.
#[target_feature(enable = "avx2")]
fn largest_quads(bits: [__m256i; 4]) -> [u32; 3] {
    let [a, b, c, d] = bits.map(|quads| {
        let two = _mm256_max_epi32(quads, _mm256_shuffle_epi32::<0b01_00_11_10>(quads));
        _mm256_max_epi32(two, _mm256_shuffle_epi32::<0b10_11_00_01>(two))
    });
    let halves = (
        _mm256_blend_epi32::<0b0010_0010>(a, b),
        _mm256_blend_epi32::<0b1000_1000>(c, d),
    );
    let maxima = _mm256_blend_epi32::<0b1100_1100>(halves.0, halves.1);
    let below = |limit: u32| {
        let is_below = _mm256_cmpgt_epi32(_mm256_set1_epi32(limit.cast_signed()), maxima);
        reduce_max(_mm256_and_si256(maxima, is_below))
    };
    let largest = reduce_max(maxima);
    let second = below(largest);
    [largest, second, below(second)]
}

#[target_feature(enable = "avx2")]
fn reduce_max(values: __m256i) -> u32 {
    let (low, high) = (_mm256_castsi256_si128(values), _mm256_extracti128_si256::<1>(values));
    let four = _mm_max_epi32(low, high);
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one).cast_unsigned()
}

#[target_feature(enable = "avx2")]
fn reduce_add(values: __m256i) -> i32 {
    let (low, high) = (_mm256_castsi256_si128(values), _mm256_extracti128_si256::<1>(values));
    let four = _mm_add_epi32(low, high);
    let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
    _mm_cvtsi128_si32(one)
}

/// Products of bytes with `vpmaddubsw`, whose 16-bit sums must not saturate.
pub(crate) mod maddubs {
    use super::*;

    pub(crate) struct Avx2;

    crate::matmul::tile::entry!(Avx2, "avx2,fma,f16c");

    // SAFETY: each method is built on intrinsics of the named features, which the entries enable.
    unsafe impl Simd for Avx2 {
        const SIGNED_BYTES: bool = true;
        super::common!();

        /// Bytes: |w - 128| <= 128 times the activation with the sign moved over to it is at most
        /// 2 * 127 * 128 = 32512, which just fits an `i16`.
        #[inline(always)]
        unsafe fn quad_dots<F: Format, const T: usize>(
            weights: __m256i,
            quad: usize,
            x: &[*const i8; T],
            sums: &mut [__m256i; T],
        ) {
            // SAFETY: by contract; a token's block has four integers per quad.
            unsafe {
                let is_byte = F::BITS == 8 || F::IS_CODEBOOK;
                let signed = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
                let magnitude = if is_byte { _mm256_abs_epi8(signed) } else { weights };
                for t in 0..T {
                    let x = super::splat_quad(x[t], quad);
                    let x = if is_byte { _mm256_sign_epi8(x, signed) } else { x };
                    let pairs = _mm256_maddubs_epi16(magnitude, x);
                    sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
            }
        }

        /// Weights of up to 6 bits: 2 * 127 * (2^BITS - 1) fits an `i16` at least twice, so that many quads are
        /// added in 16 bits.
        #[inline(always)]
        unsafe fn dots<F: Format, const T: usize>(
            weights: &[__m256i; QUADS],
            first: usize,
            x: &[*const i8; T],
            sums: &mut [__m256i; T],
        ) {
            // SAFETY: by contract; a token's block has four integers per quad.
            unsafe {
                let ones = _mm256_set1_epi16(1);
                if F::BITS == 8 || F::IS_CODEBOOK {
                    for quad in first..first + F::SUB_QUADS {
                        Self::quad_dots::<F, T>(weights[quad], quad, x, sums);
                    }
                    return;
                }
                let run = (i16::MAX as usize / (254 * ((1 << F::BITS) - 1))).min(F::SUB_QUADS);
                for i in 0..F::SUB_QUADS / run {
                    let start = first + i * run;
                    for t in 0..T {
                        let x0 = super::splat_quad(x[t], start);
                        let mut pairs = _mm256_maddubs_epi16(weights[start], x0);
                        for quad in start + 1..start + run {
                            let more = super::splat_quad(x[t], quad);
                            let more = _mm256_maddubs_epi16(weights[quad], more);
                            pairs = _mm256_add_epi16(pairs, more);
                        }
                        sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
        }
    }
}

/// Products of bytes with the 256-bit `vpdpbusd` of AVX-VNNI.
pub(crate) mod vnni {
    use super::*;

    pub(crate) struct AvxVnni;

    crate::matmul::tile::entry!(AvxVnni, "avx2,fma,f16c,avxvnni");

    // SAFETY: each method is built on intrinsics of the named features, which the entries enable.
    unsafe impl Simd for AvxVnni {
        const SIGNED_BYTES: bool = false;
        super::common!();

        #[inline(always)]
        unsafe fn quad_dots<F: Format, const T: usize>(
            weights: __m256i,
            quad: usize,
            x: &[*const i8; T],
            sums: &mut [__m256i; T],
        ) {
            for t in 0..T {
                // SAFETY: by contract; a token's block has four integers per quad.
                unsafe {
                    let x = super::splat_quad(x[t], quad);
                    sums[t] = _mm256_dpbusd_avx_epi32(sums[t], weights, x);
                }
            }
        }
    }
}

/// The four integers of a quad in every lane.
///
/// # Safety
/// Inside a function compiled for AVX2; the block at `x` is readable.
#[inline(always)]
unsafe fn splat_quad(x: *const i8, quad: usize) -> __m256i {
    // SAFETY: by contract.
    unsafe { _mm256_set1_epi32(x.add(4 * quad).cast::<i32>().read_unaligned()) }
}

/// The methods that do not depend on how bytes are multiplied.
macro_rules! common {
    () => {
        type Bytes = __m256i;
        type Ints = __m256i;
        type Floats = __m256;

        const LANES: usize = 8;
        const MAX_TOKENS: usize = 4;

        #[inline(always)]
        unsafe fn prefetch(at: *const u8) {
            // SAFETY: a prefetch of any address is harmless.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }

        #[inline(always)]
        unsafe fn load_bytes(at: *const u8) -> __m256i {
            // SAFETY: valid by contract.
            unsafe { _mm256_loadu_si256(at.cast()) }
        }

        #[inline(always)]
        unsafe fn field(bytes: __m256i, right: u32, mask: u8) -> __m256i {
            // SAFETY: by contract.
            unsafe {
                let moved = _mm256_srlv_epi32(bytes, _mm256_set1_epi32(right.cast_signed()));
                _mm256_and_si256(moved, _mm256_set1_epi8(mask.cast_signed()))
            }
        }

        #[inline(always)]
        unsafe fn field_left(bytes: __m256i, left: u32, mask: u8) -> __m256i {
            // SAFETY: by contract.
            unsafe {
                let moved = _mm256_sllv_epi32(bytes, _mm256_set1_epi32(left.cast_signed()));
                _mm256_and_si256(moved, _mm256_set1_epi8(mask.cast_signed()))
            }
        }

        #[inline(always)]
        unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: by contract.
            unsafe { _mm256_or_si256(a, b) }
        }

        #[inline(always)]
        unsafe fn lookup(indexes: __m256i, table: &[u8; 16]) -> __m256i {
            // SAFETY: by contract.
            unsafe {
                let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                _mm256_shuffle_epi8(table, indexes)
            }
        }

        #[inline(always)]
        unsafe fn minus_bytes(bytes: __m256i, offset: u8) -> __m256i {
            // SAFETY: by contract.
            unsafe { _mm256_sub_epi8(bytes, _mm256_set1_epi8(offset.cast_signed())) }
        }

        #[inline(always)]
        unsafe fn store_bytes(to: *mut u8, bytes: __m256i) {
            // SAFETY: valid by contract.
            unsafe { _mm256_storeu_si256(to.cast(), bytes) }
        }

        #[inline(always)]
        unsafe fn load_ints(at: *const i32) -> __m256i {
            // SAFETY: valid by contract.
            unsafe { _mm256_loadu_si256(at.cast()) }
        }

        #[inline(always)]
        unsafe fn shifted(ints: __m256i) -> __m256i {
            // SAFETY: by contract.
            unsafe { _mm256_slli_epi32::<SHIFT>(ints) }
        }

        #[inline(always)]
        unsafe fn plus(a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: by contract.
            unsafe { _mm256_add_epi32(a, b) }
        }

        #[inline(always)]
        unsafe fn zero_ints() -> __m256i {
            // SAFETY: by contract.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        unsafe fn splat_shifted(value: i32, left: u32) -> __m256i {
            // SAFETY: by contract.
            unsafe {
                let shift = _mm256_set1_epi32(left.cast_signed());
                _mm256_sllv_epi32(_mm256_set1_epi32(value), shift)
            }
        }

        #[inline(always)]
        unsafe fn zero() -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_set1_ps(value) }
        }

        #[inline(always)]
        unsafe fn to_floats(ints: __m256i) -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_cvtepi32_ps(ints) }
        }

        #[inline(always)]
        unsafe fn mul(a: __m256, b: __m256) -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_mul_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            // SAFETY: by contract.
            unsafe { _mm256_fmadd_ps(a, b, c) }
        }

        #[inline(always)]
        unsafe fn load_f32(at: *const f32) -> __m256 {
            // SAFETY: valid by contract.
            unsafe { _mm256_loadu_ps(at) }
        }

        #[inline(always)]
        unsafe fn load_f16(at: *const u16) -> __m256 {
            // SAFETY: valid by contract.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
        }

        #[inline(always)]
        unsafe fn load_bf16(at: *const u16) -> __m256 {
            // SAFETY: valid by contract.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }

        #[inline(always)]
        unsafe fn load_e4m3(at: *const u8) -> __m256 {
            // SAFETY: valid by contract.
            unsafe {
                // The sign goes to the 16th bit and, as it is extended, to the 15th, where it is taken away.
                let words = _mm_cvtepi8_epi16(_mm_loadl_epi64(at.cast()));
                let halves = _mm_and_si128(_mm_slli_epi16::<7>(words), _mm_set1_epi16(!(1 << 14)));
                _mm256_cvtph_ps(halves)
            }
        }

        #[inline(always)]
        unsafe fn load_i8(at: *const i8) -> __m256 {
            // SAFETY: valid by contract.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
        }

        #[inline(always)]
        unsafe fn load_half_powers(at: *const u8) -> __m256 {
            // SAFETY: valid by contract.
            unsafe {
                let exponents = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
                let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
                let is_normal = _mm256_cmpgt_epi32(exponents, _mm256_set1_epi32(1));
                _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, is_normal))
            }
        }

        #[inline(always)]
        unsafe fn store(to: *mut f32, values: __m256) {
            // SAFETY: valid by contract.
            unsafe { _mm256_storeu_ps(to, values) }
        }
    };
}
use common;
