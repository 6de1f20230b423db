//! Sixteen lanes as two 256-bit registers: AVX2, FMA and F16C.

use std::arch::x86_64::*;

use super::{F16, Lanes};

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
    fn scale_by_power_of_two(self, n: Self) -> Self {
        Self(scale(self.0, n.0), scale(self.1, n.1))
    }
}
