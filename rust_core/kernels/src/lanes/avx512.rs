//! Sixteen lanes as one 512-bit register: AVX-512 F and DQ.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::scalar::Scalar;
use super::{Bf16, F16, LANES, Lanes};
use crate::isa::Isa;

/// One register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// Whether the CPU multiplies pairs of bfloat16 numbers, in the order of [`Lanes::fma_bf16_pairs`]: tried once.
pub(crate) fn has_bf16_products() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        // SAFETY: the CPU has the set.
        is_x86_feature_detected!("avx512bf16") && Isa::best() >= Isa::Avx512 && unsafe { products_are_in_order() }
    })
}

/// Compares the products of numbers for which the order of adding and each rounding show.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn products_are_in_order() -> bool {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Two bfloat16 numbers of 2^-8 to 2^8.
        let pair = (state >> 4) & 0x07ff_07ff;
        f32::from_bits((0x3b80_3b80 + pair) | (state & 0x8000_8000))
    };
    (0..64).all(|_| {
        let [a, b, c]: [[f32; LANES]; 3] = std::array::from_fn(|_| std::array::from_fn(|_| next()));
        // SAFETY: this function's own target features are those of the lanes; the arrays hold sixteen numbers.
        unsafe {
            let exact = |x: &[f32; LANES]| Avx512::load(x.as_ptr());
            let plain = |x: &[f32; LANES]| Scalar::load(x.as_ptr());
            let got = exact(&a).fma_bf16_pairs(exact(&b), exact(&c)).to_array();
            let expected = plain(&a).fma_bf16_pairs(plain(&b), plain(&c)).to_array();
            got.map(f32::to_bits) == expected.map(f32::to_bits)
        }
    })
}

/// One intrinsic over registers.
macro_rules! register {
    ($intrinsic:ident($($operand:ident),+)) => {
        // SAFETY: a value of these lanes exists only where the CPU has the set.
        unsafe { Avx512($intrinsic($($operand.0),+)) }
    };
}

/// The halves of two registers, picked by two patterns, added.
macro_rules! added {
    ($shuffle:ident, $a:expr, $b:expr, $lower:literal, $upper:literal) => {
        _mm512_add_ps($shuffle::<$lower>($a, $b), $shuffle::<$upper>($a, $b))
    };
}

/// Which half goes where in [`Lanes::unzip_halves`].
const UNZIPPED: [u16; 2 * LANES] = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        (order[i], order[LANES + i]) = (2 * i as u16, 2 * i as u16 + 1);
        i += 1;
    }
    order
};

/// Of quarters of four registers' sums, those of one register and half: [`Lanes::half_sums`] in order.
const IN_ORDER: [u32; LANES] = {
    let mut order = [0; LANES];
    let mut i = 0;
    while i < LANES {
        let (register, half) = (i as u32 / 2, i as u32 % 2);
        order[i] = (register % 2 * 2 + half) * 4 + register / 2;
        i += 1;
    }
    order
};

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
    unsafe fn load_bf16(source: *const Bf16) -> Self {
        // SAFETY: the caller promises the set and sixteen readable Bf16.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(source.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(source: *const i8) -> Self {
        // SAFETY: the caller promises the set and sixteen readable i8.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast())))) }
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
    unsafe fn store_bf16(self, target: *mut Bf16) {
        // In integers: the instruction for it takes subnormals for zeros.
        // SAFETY: the caller promises sixteen writable Bf16; the value proves the set.
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let upper = _mm512_srli_epi32::<16>(bits);
            let is_odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let halves = _mm512_mask_blend_epi32(is_nan, _mm512_srli_epi32::<16>(rounded), quiet);
            _mm256_storeu_si256(target.cast(), _mm512_cvtepi32_epi16(halves));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, target: *mut i8) {
        // SAFETY: the caller promises sixteen writable i8; the value proves the set.
        unsafe { _mm_storeu_si128(target.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0))) };
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
    fn at_least(self, limit: Self) -> u32 {
        // SAFETY: the value proves the set.
        u32::from(unsafe { _mm512_cmp_ps_mask::<_CMP_GE_OQ>(self.0, limit.0) })
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, n: Self) -> Self {
        register!(_mm512_scalef_ps(self, n))
    }
    #[inline(always)]
    fn and_bits(self, mask: u32) -> Self {
        // SAFETY: the value proves the set.
        let mask = unsafe { Self::splat(f32::from_bits(mask)) };
        register!(_mm512_and_ps(self, mask))
    }
    #[inline(always)]
    fn lower_bf16(self) -> Self {
        // SAFETY: the value proves the set.
        unsafe {
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(
                self.0,
            ))))
        }
    }
    #[inline(always)]
    fn sums(each: [Self; LANES]) -> Self {
        // SAFETY: the values prove the set.
        unsafe {
            // Keys `e`, `e + 4`, `e + 8` and `e + 12` in the four quarters of one register, four numbers each. In loops, as
            // closures are compiled for a plainer set, and each of their instructions becomes a call.
            let mut fours = [each[0].0; 4];
            for e in 0..4 {
                let first = added!(_mm512_shuffle_f32x4, each[e].0, each[e + 4].0, 0x44, 0xee);
                let second = added!(_mm512_shuffle_f32x4, each[e + 8].0, each[e + 12].0, 0x44, 0xee);
                fours[e] = added!(_mm512_shuffle_f32x4, first, second, 0x88, 0xdd);
            }
            let first = added!(_mm512_shuffle_ps, fours[0], fours[1], 0x44, 0xee);
            let second = added!(_mm512_shuffle_ps, fours[2], fours[3], 0x44, 0xee);
            Self(added!(_mm512_shuffle_ps, first, second, 0x88, 0xdd))
        }
    }
    #[inline(always)]
    fn unzip_halves(self) -> Self {
        // SAFETY: the value proves the set.
        unsafe {
            let order = _mm512_loadu_si512(UNZIPPED.as_ptr().cast());
            let halves = _mm512_permutexvar_epi16(order, _mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(halves))
        }
    }
    #[inline(always)]
    fn half_sums(each: [Self; LANES]) -> [Self; 2] {
        // SAFETY: the values prove the set.
        unsafe {
            let mut out = [each[0]; 2];
            for (half, out) in out.iter_mut().enumerate() {
                // Of two registers a quarter for each half, four numbers each.
                let mut pairs = [each[0].0; 4];
                for (i, pair) in pairs.iter_mut().enumerate() {
                    let at = 8 * half + 2 * i;
                    *pair = added!(_mm512_shuffle_f32x4, each[at].0, each[at + 1].0, 0x88, 0xdd);
                }
                let first = added!(_mm512_shuffle_ps, pairs[0], pairs[1], 0x44, 0xee);
                let second = added!(_mm512_shuffle_ps, pairs[2], pairs[3], 0x44, 0xee);
                let sums = added!(_mm512_shuffle_ps, first, second, 0x88, 0xdd);
                let order = _mm512_loadu_si512(IN_ORDER.as_ptr().cast());
                *out = Self(_mm512_permutexvar_ps(order, sums));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn store_normal_bf16(self, target: *mut Bf16) {
        // SAFETY: the caller promises the products, with which this comes, and sixteen writable Bf16.
        unsafe {
            let halves = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0));
            _mm256_storeu_si256(target.cast(), halves);
        }
    }
    #[inline(always)]
    unsafe fn fma_bf16_pairs(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller promises the products; both types are 512 bits of any value.
        unsafe {
            let pairs = |x: __m512| std::mem::transmute::<__m512, __m512bh>(x);
            Self(_mm512_dpbf16_ps(c.0, pairs(self.0), pairs(b.0)))
        }
    }
}
