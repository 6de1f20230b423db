//! Sixteen lanes as one 512-bit register: AVX-512 F and DQ.

use std::arch::x86_64::*;

use super::{F16, Lanes};

/// One register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// One intrinsic over registers.
macro_rules! register {
    ($intrinsic:ident($($operand:ident),+)) => {
        // SAFETY: a value of these lanes exists only where the CPU has the set.
        unsafe { Avx512($intrinsic($($operand.0),+)) }
    };
}

impl Lanes for Avx512 {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller promises the set.
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises the set and sixteen readable f32.
        unsafe { Self(_mm512_loadu_ps(source)) }
    }
    #[inline(always)]
    unsafe fn load_f16(source: *const F16) -> Self {
        // SAFETY: the caller promises the set and sixteen readable F16.
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(source.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises sixteen writable f32; the value proves the set.
        unsafe { _mm512_storeu_ps(target, self.0) };
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut F16) {
        // SAFETY: the caller promises sixteen writable F16; the value proves the set.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_storeu_si256(target.cast(), halves);
        }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        register!(_mm512_add_ps(self, other))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        register!(_mm512_sub_ps(self, other))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        register!(_mm512_mul_ps(self, other))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        register!(_mm512_div_ps(self, other))
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        register!(_mm512_fmadd_ps(self, b, c))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        register!(_mm512_max_ps(self, other))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        register!(_mm512_min_ps(self, other))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        register!(_mm512_abs_ps(self))
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        // SAFETY: the value proves the set.
        let bit = unsafe { Self::splat(-0.0) };
        let magnitude = self.abs();
        let sign = register!(_mm512_and_ps(bit, sign));
        register!(_mm512_or_ps(magnitude, sign))
    }
    #[inline(always)]
    fn select_less(self, limit: Self, yes: Self, no: Self) -> Self {
        // SAFETY: the value proves the set.
        unsafe {
            let is_less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0);
            Self(_mm512_mask_blend_ps(is_less, no.0, yes.0))
        }
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, n: Self) -> Self {
        register!(_mm512_scalef_ps(self, n))
    }
}
