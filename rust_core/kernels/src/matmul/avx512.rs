//! AVX-512 with VNNI: a vector is a whole group of 16 rows, a quad one `vpdpbusd`.

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::activations::{LARGEST, LARGEST_NARROW, LOW_BITS, OUTLIER_RATIO};
use super::simd::Simd;
use super::tile::entry;
use crate::pack::BLOCK_COLS;
use crate::pack::format::{Format, QUADS};

pub(crate) struct Avx512;

entry!(Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

/// Blocks whose scales are computed together, a lane each.
const AT_ONCE: usize = 16;

/// Quantises one token vector, block by block.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) fn quantise_row(x: &[f32], row: &mut [ActivationBlock]) {
    let (blocks, _) = x.as_chunks::<BLOCK_COLS>();
    for (blocks, row) in blocks.chunks(AT_ONCE).zip(row.chunks_mut(AT_ONCE)) {
        let [largest, scales, inverses] = scales_of(blocks);
        for (i, (x, block)) in blocks.iter().zip(row).enumerate() {
            if ActivationBlock::is_degenerate(largest[i].to_bits()) {
                block.degenerate(largest[i].to_bits());
            } else {
                quantise_block(x, scales[i], inverses[i], block);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn quantise_block(x: &[f32; BLOCK_COLS], scale: f32, inverse: f32, block: &mut ActivationBlock) {
    let inverse = _mm512_set1_ps(inverse);
    let narrow = _mm512_set1_epi32(LARGEST_NARROW);
    let rounding = _mm512_set1_epi32(1 << (LOW_BITS - 1));
    // SAFETY: a block has 32 numbers.
    let halves = unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] };
    let quants = halves.map(|x| _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
    let mut wide = 0;
    for (half, quants) in quants.into_iter().enumerate() {
        let is_wide = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(quants), narrow);
        let high = _mm512_maskz_srai_epi32::<LOW_BITS>(is_wide, _mm512_add_epi32(quants, rounding));
        let low = _mm512_sub_epi32(quants, _mm512_slli_epi32::<LOW_BITS>(high));
        // SAFETY: there are 32 places for integers.
        unsafe {
            let place = block.high.as_mut_ptr().add(16 * half);
            _mm_storeu_si128(place.cast(), _mm512_cvtepi32_epi8(high));
            let place = block.low.as_mut_ptr().add(16 * half);
            _mm_storeu_si128(place.cast(), _mm512_cvtepi32_epi8(low));
        }
        wide |= u32::from(is_wide) << (16 * half);
    }
    block.finish(scale, sums(quants), wide);
}

/// Of each block its largest magnitude, [`scale_of`] and the inverse of that.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512vl,avx512dq")]
fn scales_of(blocks: &[[f32; BLOCK_COLS]]) -> [[f32; AT_ONCE]; 3] {
    let mut maxima = [[0; QUADS]; AT_ONCE];
    for (x, maxima) in blocks.iter().zip(&mut maxima) {
        // SAFETY: a block has 32 numbers, and eight quads.
        unsafe {
            let quads = max_of_quads(_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16)));
            _mm256_storeu_si256(maxima.as_mut_ptr().cast(), quads);
        }
    }
    let stride = _mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120);
    // SAFETY: sixteen times eight numbers are there.
    let quads: [__m512i; QUADS] = std::array::from_fn(|quad| unsafe {
        _mm512_i32gather_epi32::<4>(stride, maxima.as_ptr().cast::<i32>().add(quad))
    });
    let below = |limit| quads.map(|quad| _mm512_maskz_mov_epi32(_mm512_cmplt_epi32_mask(quad, limit), quad));
    let greatest = |quads: [__m512i; QUADS]| {
        quads
            .into_iter()
            .fold(_mm512_setzero_si512(), |a, b| _mm512_max_epi32(a, b))
    };
    let largest = greatest(quads);
    let second = greatest(below(largest));
    let third = greatest(below(second));
    let largest = _mm512_castsi512_ps(largest);
    let mut usual = largest;
    for next in [second, third].map(|next| _mm512_castsi512_ps(next)) {
        let is_some = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(next, _mm512_setzero_ps());
        let limit = _mm512_mul_ps(_mm512_set1_ps(OUTLIER_RATIO), next);
        let holds_outliers = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(is_some, usual, limit);
        usual = _mm512_mask_mov_ps(usual, holds_outliers, next);
    }
    let scales = _mm512_max_ps(
        _mm512_mul_ps(usual, _mm512_set1_ps(1.0 / LARGEST_NARROW as f32)),
        _mm512_mul_ps(largest, _mm512_set1_ps(1.0 / LARGEST)),
    );
    [largest, scales, _mm512_div_ps(_mm512_set1_ps(1.0), scales)].map(|lanes| {
        let mut numbers = [0.0; AT_ONCE];
        // SAFETY: sixteen numbers fit.
        unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), lanes) };
        numbers
    })
}

/// The bits of the largest magnitude in each quad, of 128 bits.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512vl,avx512dq")]
fn max_of_quads(first: __m512, last: __m512) -> __m256i {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let [first, last] = [first, last].map(|x| max_in_quads(_mm512_and_si512(_mm512_castps_si512(x), magnitude)));
    let both = _mm512_mask_mov_epi32(first, 0xaaaa, last);
    let eight = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm512_castsi512_si256(_mm512_permutexvar_epi32(eight, both))
}

/// Each quad's maximum, in all its lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn max_in_quads(values: __m512i) -> __m512i {
    let two = _mm512_max_epi32(values, _mm512_shuffle_epi32::<0b01_00_11_10>(values));
    _mm512_max_epi32(two, _mm512_shuffle_epi32::<0b10_11_00_01>(two))
}

/// The sum of each vector's lanes.
#[inline]
#[target_feature(enable = "avx2,avx512f")]
fn sums(halves: [__m512i; 2]) -> [i32; 2] {
    let [first, last] =
        halves.map(|half| _mm256_add_epi32(_mm512_castsi512_si256(half), _mm512_extracti64x4_epi64::<1>(half)));
    let pairs = _mm256_hadd_epi32(first, last);
    let fours = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
    let both = _mm_hadd_epi32(fours, fours);
    [_mm_cvtsi128_si32(both), _mm_extract_epi32::<1>(both)]
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
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
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
    unsafe fn shifted(ints: __m512i) -> __m512i {
        // SAFETY: by contract.
        unsafe { _mm512_slli_epi32::<LOW_BITS>(ints) }
    }

    #[inline(always)]
    unsafe fn plus(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: by contract.
        unsafe { _mm512_add_epi32(a, b) }
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
    unsafe fn quad_dots<F: Format, const T: usize>(
        weights: __m512i,
        quad: usize,
        x: &[*const i8; T],
        sums: &mut [__m512i; T],
    ) {
        for t in 0..T {
            // SAFETY: a token's block has four integers per quad.
            unsafe {
                let x = _mm512_set1_epi32(x[t].add(4 * quad).cast::<i32>().read_unaligned());
                sums[t] = _mm512_dpbusd_epi32(sums[t], weights, x);
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
