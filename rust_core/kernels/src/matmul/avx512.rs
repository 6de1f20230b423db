//! AVX-512 with VNNI: a vector is a whole group of 16 rows, a quad one `vpdpbusd`.

use std::arch::x86_64::*;

use super::ActivationBlock;
use super::activations::{
    AT_ONCE, INFINITY_BITS, LARGEST, LARGEST_NARROW, LOW_BITS, OUTLIER_RATIO, SMALLEST, Unquantised,
};
use super::simd::Simd;
use super::tile::entry;
use crate::pack::BLOCK_COLS;
use crate::pack::format::{Format, QUADS};

pub(crate) struct Avx512;

entry!(Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni");

/// Of each block its eight quads, or its eight last fields: a row per block.
#[repr(align(64))]
struct Eights([[i32; QUADS]; AT_ONCE]);

/// Quantises blocks, a lane each wherever a block has one number.
///
/// # Safety
/// As [`super::quantise`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn quantise(blocks: &[Unquantised]) {
    let mut eights = Eights([[0; QUADS]; AT_ONCE]);
    let mut wide = [0_u32; AT_ONCE];
    // SAFETY: by contract; a block has 32 numbers, and eight quads.
    unsafe {
        for (pair, maxima) in blocks.iter().zip(&mut eights.0) {
            let x = pair.numbers.cast::<f32>();
            let quads = max_of_quads(_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16)));
            _mm256_storeu_si256(maxima.as_mut_ptr().cast(), quads);
        }
        let (largest, scales) = scales_of(columns(&eights));
        let inverses = numbers_of(_mm512_div_ps(_mm512_set1_ps(1.0), scales));
        for (i, pair) in blocks.iter().enumerate() {
            let sums = quantise_block(pair, inverses[i], &mut wide[i]);
            _mm256_storeu_si256(eights.0[i].as_mut_ptr().cast(), sums);
        }
        finish(
            blocks,
            scales,
            columns(&eights),
            _mm512_loadu_si512(wide.as_ptr().cast()),
        );
        let smallest = _mm512_castps_si512(_mm512_set1_ps(SMALLEST));
        let is_usual = _mm512_cmpge_epi32_mask(largest, smallest)
            & _mm512_cmplt_epi32_mask(largest, _mm512_set1_epi32(INFINITY_BITS.cast_signed()));
        if is_usual.trailing_ones() < blocks.len() as u32 {
            let largest = numbers_of(_mm512_castsi512_ps(largest)).map(f32::to_bits);
            for (pair, bits) in blocks.iter().zip(largest) {
                if ActivationBlock::is_degenerate(bits) {
                    (*pair.block).degenerate(bits);
                }
            }
        }
    }
}

/// The bits of the blocks' largest magnitudes, and their scales as [`super::activations::scale_of`] makes them, from the
/// largest magnitudes of their quads.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn scales_of(quads: [__m512i; QUADS]) -> (__m512i, __m512) {
    let below = |limit| quads.map(|quad| _mm512_maskz_mov_epi32(_mm512_cmplt_epi32_mask(quad, limit), quad));
    let greatest = |quads: [__m512i; QUADS]| {
        quads
            .into_iter()
            .fold(_mm512_setzero_si512(), |a, b| _mm512_max_epi32(a, b))
    };
    let bits = greatest(quads);
    let second = greatest(below(bits));
    let third = greatest(below(second));
    let largest = _mm512_castsi512_ps(bits);
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
    (bits, scales)
}

/// Writes a block's integers; its wide quads come as bits, the sums of its quads' integers as the result.
///
/// # Safety
/// As [`quantise`].
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn quantise_block(pair: &Unquantised, inverse: f32, wide: &mut u32) -> __m256i {
    const {
        assert!(
            std::mem::offset_of!(ActivationBlock, low) == 0
                && std::mem::offset_of!(ActivationBlock, high) == BLOCK_COLS
        )
    };
    let inverse = _mm512_set1_ps(inverse);
    let narrow = _mm512_set1_epi32(LARGEST_NARROW);
    let rounding = _mm512_set1_epi32(1 << (LOW_BITS - 1));
    let x = pair.numbers.cast::<f32>();
    // SAFETY: a block has 32 numbers.
    let halves = unsafe { [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))] };
    let parts = halves.map(|x| {
        let quants = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
        let is_wide = _mm512_cmpgt_epi32_mask(_mm512_abs_epi32(quants), narrow);
        let high = _mm512_maskz_srai_epi32::<LOW_BITS>(is_wide, _mm512_add_epi32(quants, rounding));
        (_mm512_sub_epi32(quants, _mm512_slli_epi32::<LOW_BITS>(high)), high)
    });
    let low = _mm512_packs_epi32(parts[0].0, parts[1].0);
    let high = _mm512_packs_epi32(parts[0].1, parts[1].1);
    // Packing works within 128 bits; this puts the quads in sequence, the low ones before the high ones.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
    // SAFETY: the block begins with its low and its high bytes.
    unsafe { _mm512_storeu_si512(pair.block.cast(), bytes) };
    *wide = u32::from(_mm512_test_epi32_mask(bytes, bytes)) >> QUADS;
    let weights = _mm512_inserti64x4::<1>(_mm512_set1_epi8(1), _mm256_set1_epi8((1_u8 << LOW_BITS).cast_signed()));
    let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, bytes);
    _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums))
}

/// Writes what [`ActivationBlock::finish`] would, from the blocks' scales, the sums of their quads and their wide quads.
///
/// # Safety
/// As [`quantise`].
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512dq")]
unsafe fn finish(blocks: &[Unquantised], scales: __m512, quads: [__m512i; QUADS], wide: __m512i) {
    const FIELDS: usize = std::mem::offset_of!(ActivationBlock, scale);
    const { assert!(FIELDS + size_of::<[i32; QUADS]>() == size_of::<ActivationBlock>()) };
    let halves = [[0, 1, 2, 3], [4, 5, 6, 7]].map(|[a, b, c, d]: [usize; 4]| {
        _mm512_add_epi32(
            _mm512_add_epi32(quads[a], quads[b]),
            _mm512_add_epi32(quads[c], quads[d]),
        )
    });
    let minus = |value| _mm512_sub_epi32(_mm512_setzero_si512(), value);
    let sum = _mm512_add_epi32(halves[0], halves[1]);
    let mut rows = transposed([
        _mm512_castps_si512(scales),
        _mm512_castps_si512(_mm512_mul_ps(scales, _mm512_cvtepi32_ps(sum))),
        minus(_mm512_slli_epi32::<3>(sum)),
        minus(_mm512_slli_epi32::<7>(sum)),
        minus(halves[0]),
        minus(halves[1]),
        wide,
        _mm512_setzero_si512(),
    ]);
    for half in blocks.chunks(QUADS) {
        for (pair, row) in half.iter().zip(&mut rows) {
            // SAFETY: eight numbers, of which the last is padding, end the block.
            unsafe { _mm256_storeu_si256(pair.block.cast::<u8>().add(FIELDS).cast(), _mm512_castsi512_si256(*row)) };
            *row = _mm512_castsi256_si512(_mm512_extracti64x4_epi64::<1>(*row));
        }
    }
}

/// The columns of a table, a lane per row.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn columns(table: &Eights) -> [__m512i; QUADS] {
    transposed(std::array::from_fn(|row| {
        let [first, second] = [row, row + QUADS].map(|row| {
            // SAFETY: a row is eight numbers.
            unsafe { _mm256_loadu_si256(table.0[row].as_ptr().cast()) }
        });
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
    }))
}

/// Each half of eight vectors, a table of eight by eight, with rows and columns exchanged.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(r: [__m512i; QUADS]) -> [__m512i; QUADS] {
    let pairs = [0, 2, 4, 6].map(|i: usize| {
        [
            _mm512_unpacklo_epi32(r[i], r[i + 1]),
            _mm512_unpackhi_epi32(r[i], r[i + 1]),
        ]
    });
    // Of four rows the columns 0, 1, 2 and 3, each with the one four further.
    let fours = [0, 2].map(|i: usize| {
        let ([a, b], [c, d]) = (pairs[i], pairs[i + 1]);
        [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ]
    });
    let near = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let far = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    std::array::from_fn(|column| {
        let order = if column < 4 { near } else { far };
        _mm512_permutex2var_epi64(fours[0][column % 4], order, fours[1][column % 4])
    })
}

/// The lanes as an array.
#[inline]
#[target_feature(enable = "avx512f")]
fn numbers_of(lanes: __m512) -> [f32; AT_ONCE] {
    let mut numbers = [0.0; AT_ONCE];
    // SAFETY: sixteen numbers fit.
    unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), lanes) };
    numbers
}

/// The bits of the largest magnitude in each quad, of 128 bits, in any order.
#[inline]
#[target_feature(enable = "avx2,avx512f,avx512dq")]
fn max_of_quads(first: __m512, last: __m512) -> __m256i {
    let magnitude = _mm512_set1_epi32(0x7fff_ffff);
    let [first, last] = [first, last].map(|x| {
        let bits = _mm512_and_si512(_mm512_castps_si512(x), magnitude);
        _mm512_max_epi32(bits, _mm512_shuffle_epi32::<0b01_00_11_10>(bits))
    });
    let both = _mm512_unpacklo_epi32(first, last);
    let both = _mm512_max_epi32(both, _mm512_shuffle_epi32::<0b01_00_11_10>(both));
    // Each quad of the first half beside one of the last, twice in 128 bits.
    let once = _mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0);
    _mm512_castsi512_si256(_mm512_permutexvar_epi64(once, both))
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
    unsafe fn load_e4m3(at: *const u8) -> __m512 {
        // SAFETY: valid by contract.
        unsafe {
            // The sign goes to the 16th bit and, as it is extended, to the 15th, where it is taken away.
            let words = _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast()));
            let halves = _mm256_and_si256(_mm256_slli_epi16::<7>(words), _mm256_set1_epi16(!(1 << 14)));
            _mm512_cvtph_ps(halves)
        }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> __m512 {
        // SAFETY: valid by contract.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_half_powers(at: *const u8) -> __m512 {
        // SAFETY: valid by contract.
        unsafe {
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)));
            let is_small = _mm512_cmplt_epi32_mask(exponents, _mm512_set1_epi32(2));
            let bits = _mm512_mask_sllv_epi32(normal, is_small, _mm512_set1_epi32(0x0020_0000), exponents);
            _mm512_castsi512_ps(bits)
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: __m512) {
        // SAFETY: valid by contract.
        unsafe { _mm512_storeu_ps(to, values) }
    }
}
