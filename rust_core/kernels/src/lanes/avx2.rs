//! Sixteen lanes as two 256-bit registers: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{Bf16, F16, Lanes};

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// Both halves through one intrinsic.
macro_rules! halves {
    ($intrinsic:ident($($operand:ident),+)) => {
        // SAFETY: a value of these lanes exists only where the CPU has the set.
        unsafe { Avx2($intrinsic($($operand.0),+), $intrinsic($($operand.1),+)) }
    };
}

/// `x * 2^n` in two steps, as 2^n alone may overflow; the first is exact for magnitudes near one.
#[inline(always)]
fn scale(x: __m256, n: __m256) -> __m256 {
    // SAFETY: called with registers of a value of these lanes, which proves the set.
    unsafe {
        let n = _mm256_cvttps_epi32(n);
        let first = _mm256_srai_epi32::<1>(n);
        let second = _mm256_sub_epi32(n, first);
        let bias = _mm256_set1_epi32(127);
        let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(first, bias));
        let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(second, bias));
        _mm256_mul_ps(
            _mm256_mul_ps(x, _mm256_castsi256_ps(first)),
            _mm256_castsi256_ps(second),
        )
    }
}

/// The upper halves of eight numbers' bits, rounded to nearest, in 32 bits each.
#[inline(always)]
fn to_bf16(x: __m256) -> __m256i {
    // SAFETY: called with a register of a value of these lanes, which proves the set.
    unsafe {
        let bits = _mm256_castps_si256(x);
        let upper = _mm256_srli_epi32::<16>(bits);
        let is_odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff)));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_blendv_epi8(_mm256_srli_epi32::<16>(rounded), quiet, is_nan)
    }
}

impl Lanes for Avx2 {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller promises the set.
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises the set and sixteen readable f32.
        unsafe { Self(_mm256_loadu_ps(source), _mm256_loadu_ps(source.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_f16(source: *const F16) -> Self {
        // SAFETY: the caller promises the set and sixteen readable F16.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(source.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(source.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(source: *const Bf16) -> Self {
        // SAFETY: the caller promises the set and sixteen readable Bf16.
        unsafe {
            let widen = |half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)));
            Self(
                widen(_mm_loadu_si128(source.cast())),
                widen(_mm_loadu_si128(source.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(source: *const i8) -> Self {
        // SAFETY: the caller promises the set and sixteen readable i8.
        unsafe {
            let widen = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            Self(
                widen(_mm_loadl_epi64(source.cast())),
                widen(_mm_loadl_epi64(source.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises sixteen writable f32; the value proves the set.
        unsafe {
            _mm256_storeu_ps(target, self.0);
            _mm256_storeu_ps(target.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut F16) {
        // SAFETY: the caller promises sixteen writable F16; the value proves the set.
        unsafe {
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1);
            _mm_storeu_si128(target.cast(), low);
            _mm_storeu_si128(target.add(8).cast(), high);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut Bf16) {
        // SAFETY: the caller promises sixteen writable Bf16; the value proves the set.
        unsafe {
            // Packing works in each half of the registers, so the quarters come out in the order 0 2 1 3.
            let packed = _mm256_packus_epi32(to_bf16(self.0), to_bf16(self.1));
            _mm256_storeu_si256(target.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, target: *mut i8) {
        // SAFETY: the caller promises sixteen writable i8; the value proves the set.
        unsafe {
            let packed = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256::<1>(ordered));
            _mm_storeu_si128(target.cast(), bytes);
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        halves!(_mm256_add_ps(self, other))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        halves!(_mm256_sub_ps(self, other))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        halves!(_mm256_mul_ps(self, other))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        halves!(_mm256_div_ps(self, other))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        halves!(_mm256_fmadd_ps(self, b, c))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        halves!(_mm256_max_ps(self, other))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        halves!(_mm256_min_ps(self, other))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: the value proves the set.
        let sign = unsafe { Self::splat(-0.0) };
        halves!(_mm256_andnot_ps(sign, self))
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        // SAFETY: the value proves the set.
        let bit = unsafe { Self::splat(-0.0) };
        let magnitude = self.abs();
        let sign = halves!(_mm256_and_ps(bit, sign));
        halves!(_mm256_or_ps(magnitude, sign))
    }
    #[inline(always)]
    fn select_less(self, limit: Self, yes: Self, no: Self) -> Self {
        // SAFETY: the value proves the set.
        let is_less = unsafe {
            Self(
                _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0),
                _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, limit.1),
            )
        };
        halves!(_mm256_blendv_ps(no, yes, is_less))
    }
    #[inline(always)]
    fn at_least(self, limit: Self) -> u32 {
        // SAFETY: the value proves the set.
        let [low, high] = unsafe {
            [
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(self.0, limit.0)),
                _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(self.1, limit.1)),
            ]
        };
        low as u32 | (high as u32) << 8
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, n: Self) -> Self {
        Self(scale(self.0, n.0), scale(self.1, n.1))
    }
    #[inline(always)]
    fn and_bits(self, mask: u32) -> Self {
        // SAFETY: the value proves the set.
        let mask = unsafe { Self::splat(f32::from_bits(mask)) };
        halves!(_mm256_and_ps(self, mask))
    }
    #[inline(always)]
    fn lower_bf16(self) -> Self {
        // SAFETY: the value proves the set.
        unsafe {
            let bits = [_mm256_castps_si256(self.0), _mm256_castps_si256(self.1)];
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits[0])),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits[1])),
            )
        }
    }
    #[inline(always)]
    fn unzip_halves(self) -> Self {
        // SAFETY: the value proves the set.
        unsafe {
            // Even and odd lanes, whose quarters lie 0, 2, 1, 3.
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(self.0, self.1));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xdd>(self.0, self.1));
            let even = _mm256_castpd_si256(_mm256_permute4x64_pd::<0xd8>(even));
            let odd = _mm256_castpd_si256(_mm256_permute4x64_pd::<0xd8>(odd));
            Self(
                _mm256_castsi256_ps(_mm256_blend_epi16::<0xaa>(even, _mm256_slli_epi32::<16>(odd))),
                _mm256_castsi256_ps(_mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(even), odd)),
            )
        }
    }
}
