//! Sixteen lanes as an array: the definition that the other sets must equal, and the way on other CPUs.

use super::{Bf16, F16, LANES, Lanes};

/// Sixteen numbers in an array.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; LANES]);

impl Scalar {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (a, b) in out.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        Self(out)
    }
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Lanes for Scalar {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(source: *const f32) -> Self {
        // SAFETY: the caller promises sixteen readable f32.
        Self(unsafe { source.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_f16(source: *const F16) -> Self {
        // SAFETY: the caller promises sixteen readable F16.
        let halves = unsafe { source.cast::<[F16; LANES]>().read_unaligned() };
        Self(halves.map(F16::to_f32))
    }
    #[inline(always)]
    unsafe fn load_bf16(source: *const Bf16) -> Self {
        // SAFETY: the caller promises sixteen readable Bf16.
        let halves = unsafe { source.cast::<[Bf16; LANES]>().read_unaligned() };
        Self(halves.map(Bf16::to_f32))
    }
    #[inline(always)]
    unsafe fn load_i8(source: *const i8) -> Self {
        // SAFETY: the caller promises sixteen readable i8.
        Self(unsafe { source.cast::<[i8; LANES]>().read() }.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32) {
        // SAFETY: the caller promises sixteen writable f32.
        unsafe { target.cast::<[f32; LANES]>().write_unaligned(self.0) };
    }
    #[inline(always)]
    unsafe fn store_f16(self, target: *mut F16) {
        // SAFETY: the caller promises sixteen writable F16.
        unsafe { target.cast::<[F16; LANES]>().write_unaligned(self.0.map(F16::from_f32)) };
    }
    #[inline(always)]
    unsafe fn store_bf16(self, target: *mut Bf16) {
        // SAFETY: the caller promises sixteen writable Bf16.
        unsafe {
            target
                .cast::<[Bf16; LANES]>()
                .write_unaligned(self.0.map(Bf16::from_f32))
        };
    }
    #[inline(always)]
    unsafe fn store_i8(self, target: *mut i8) {
        let integers = self.0.map(|x| x.round_ties_even() as i8);
        // SAFETY: the caller promises sixteen writable i8.
        unsafe { target.cast::<[i8; LANES]>().write(integers) };
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        let mut out = c.0;
        for (i, sum) in out.iter_mut().enumerate() {
            *sum = self.0[i].mul_add(b.0[i], *sum);
        }
        Self(out)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self(self.0.map(f32::abs))
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.zip(sign, f32::copysign)
    }
    #[inline(always)]
    fn select_less(self, limit: Self, yes: Self, no: Self) -> Self {
        let mut out = no.0;
        for (i, chosen) in out.iter_mut().enumerate() {
            if self.0[i] < limit.0[i] {
                *chosen = yes.0[i];
            }
        }
        Self(out)
    }
    #[inline(always)]
    fn at_least(self, limit: Self) -> u32 {
        let bit = |(i, (x, limit)): (usize, (&f32, &f32))| u32::from(x >= limit) << i;
        self.0.iter().zip(&limit.0).enumerate().map(bit).sum()
    }
    #[inline(always)]
    fn scale_by_power_of_two(self, n: Self) -> Self {
        // In two steps, as 2^n alone may overflow; the first is exact for magnitudes near one.
        self.zip(n, |x, n| {
            let n = n as i32;
            x * power_of_two(n >> 1) * power_of_two(n - (n >> 1))
        })
    }
    #[inline(always)]
    fn and_bits(self, mask: u32) -> Self {
        Self(self.0.map(|x| f32::from_bits(x.to_bits() & mask)))
    }
    #[inline(always)]
    fn lower_bf16(self) -> Self {
        Self(self.0.map(|x| f32::from_bits(x.to_bits() << 16)))
    }
}
