//! Sixteen `f32` numbers at a time: the one vocabulary in which the floating-point kernels are written.
//!
//! A kernel is one generic function over [`Lanes`]; each instruction set gives the sixteen lanes its own
//! registers (one of 512 bits, two of 256, or an array). Every operation here is a single correctly rounded
//! IEEE-754 operation or an exact one, so a kernel written once gives the same bits on every set: the order
//! of the operations is in the kernel, not in the set.
//!
//! `load` and `splat` are unsafe because they assert that the CPU has the set; a value of a [`Lanes`] type
//! is the proof of it, so the arithmetic on values is safe.

pub(crate) mod half;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

pub(crate) use half::{Bf16, F16, SMALLEST_BF16};

/// Numbers in one [`Lanes`] value.
pub(crate) const LANES: usize = 16;

/// Sixteen `f32` in the registers of one instruction set.
pub(crate) trait Lanes: Copy {
    /// Sixteen copies of `x`.
    ///
    /// # Safety
    /// The CPU has the instruction set.
    unsafe fn splat(x: f32) -> Self;
    /// Sixteen numbers from `source`, of any alignment.
    ///
    /// # Safety
    /// The CPU has the instruction set, and sixteen `f32` may be read at `source`.
    unsafe fn load(source: *const f32) -> Self;
    /// Sixteen half-precision numbers from `source`, widened exactly.
    ///
    /// # Safety
    /// The CPU has the instruction set, and sixteen `F16` may be read at `source`.
    unsafe fn load_f16(source: *const F16) -> Self;
    /// Sixteen bfloat16 numbers from `source`, widened exactly.
    ///
    /// # Safety
    /// The CPU has the instruction set, and sixteen `Bf16` may be read at `source`.
    unsafe fn load_bf16(source: *const Bf16) -> Self;
    /// Sixteen integers from `source`.
    ///
    /// # Safety
    /// The CPU has the instruction set, and sixteen `i8` may be read at `source`.
    unsafe fn load_i8(source: *const i8) -> Self;
    /// Writes sixteen numbers to `target`, of any alignment.
    ///
    /// # Safety
    /// Sixteen `f32` may be written at `target`.
    unsafe fn store(self, target: *mut f32);
    /// Writes sixteen numbers to `target`, rounded to half precision, ties to even.
    ///
    /// # Safety
    /// Sixteen `F16` may be written at `target`.
    unsafe fn store_f16(self, target: *mut F16);
    /// Writes sixteen numbers to `target`, rounded to bfloat16, ties to even.
    ///
    /// # Safety
    /// Sixteen `Bf16` may be written at `target`.
    unsafe fn store_bf16(self, target: *mut Bf16);
    /// Writes sixteen numbers of -127..=127 to `target`, rounded to integers, ties to even.
    ///
    /// # Safety
    /// Sixteen `i8` may be written at `target`.
    unsafe fn store_i8(self, target: *mut i8);
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self * other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self` where it is greater than `other`, else `other` (so a NaN in either gives `other`).
    fn max(self, other: Self) -> Self;
    /// `self` where it is less than `other`, else `other` (so a NaN in either gives `other`).
    fn min(self, other: Self) -> Self;
    /// The magnitude.
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// `yes` in the lanes where `self < limit`, `no` in the others.
    fn select_less(self, limit: Self, yes: Self, no: Self) -> Self;
    /// A bit for each lane of at least `limit`, the first lane's the lowest; none for a NaN.
    fn at_least(self, limit: Self) -> u32;
    /// `self * 2^n` for integers `n` in -250..=250, rounded once.
    fn scale_by_power_of_two(self, n: Self) -> Self;
    /// Each lane's bits and `mask`.
    fn and_bits(self, mask: u32) -> Self;
    /// The lower half of each lane's bits as a bfloat16 number, widened exactly.
    fn lower_bf16(self) -> Self;

    /// The upper half of each lane's bits as a bfloat16 number, widened exactly.
    #[inline(always)]
    fn upper_bf16(self) -> Self {
        self.and_bits(0xffff_0000)
    }

    /// Of lanes that hold two bfloat16 numbers each: the upper ones' product is added to `c`, then the lower ones', each
    /// rounded once. This is the order of `vdpbf16ps`, which takes subnormals for zeros: see [`SMALLEST_BF16`].
    ///
    /// # Safety
    /// With AVX-512, the CPU [`has_bf16_products`](avx512::has_bf16_products).
    #[inline(always)]
    unsafe fn fma_bf16_pairs(self, b: Self, c: Self) -> Self {
        let upper = self.upper_bf16().fma(b.upper_bf16(), c);
        self.lower_bf16().fma(b.lower_bf16(), upper)
    }

    /// As [`Self::store_bf16`], of numbers none of which is subnormal.
    ///
    /// # Safety
    /// As [`Self::store_bf16`] and [`Self::fma_bf16_pairs`].
    #[inline(always)]
    unsafe fn store_normal_bf16(self, target: *mut Bf16) {
        // SAFETY: the caller's promise.
        unsafe { self.store_bf16(target) };
    }

    /// 0 where the magnitude is under [`SMALLEST_BF16`].
    #[inline(always)]
    fn without_tiny(self) -> Self {
        self.abs().select_less(self.all(SMALLEST_BF16), self.all(0.0), self)
    }

    /// Sixteen copies of `x`, in the registers of `self`.
    #[inline(always)]
    fn all(self, x: f32) -> Self {
        // SAFETY: a value of these lanes exists only where the CPU has the set.
        unsafe { Self::splat(x) }
    }

    /// The sixteen numbers in order.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: `out` holds sixteen f32.
        unsafe { self.store(out.as_mut_ptr()) };
        out
    }

    /// The sum of the lanes by one fixed tree: halves are added until one lane is left.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self.to_array();
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }

    /// [`Self::sum`] of each of sixteen.
    #[inline(always)]
    fn sums(each: [Self; LANES]) -> Self {
        let sums = each.map(Self::sum);
        // SAFETY: a value of these lanes exists only where the CPU has the set; `sums` holds sixteen numbers.
        unsafe { Self::load(sums.as_ptr()) }
    }

    /// Of lanes that hold two halves each, sixteen of one kind and of another in turns: neighbours of the first kind in eight
    /// lanes, then those of the second.
    #[inline(always)]
    fn unzip_halves(self) -> Self {
        let lanes = self.to_array().map(f32::to_bits);
        let mut pairs = [0.0; LANES];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let first = 2 * i % LANES;
            let (even, odd) = (lanes[first], lanes[first + 1]);
            *pair = f32::from_bits(if i < LANES / 2 {
                even & 0xffff | odd << 16
            } else {
                even >> 16 | odd & 0xffff_0000
            });
        }
        // SAFETY: a value of these lanes exists only where the CPU has the set; `pairs` holds sixteen numbers.
        unsafe { Self::load(pairs.as_ptr()) }
    }

    /// The sums of the first and of the last eight lanes of each of sixteen, in order, each by one fixed tree: halves are
    /// added until one lane is left.
    #[inline(always)]
    fn half_sums(each: [Self; LANES]) -> [Self; 2] {
        let mut sums = [0.0; 2 * LANES];
        for (i, lanes) in each.into_iter().enumerate() {
            let mut lanes = lanes.to_array();
            let mut width = LANES / 4;
            while width > 0 {
                for i in 0..width {
                    lanes[i] += lanes[i + width];
                    lanes[LANES / 2 + i] += lanes[LANES / 2 + i + width];
                }
                width /= 2;
            }
            sums[2 * i] = lanes[0];
            sums[2 * i + 1] = lanes[LANES / 2];
        }
        // SAFETY: a value of these lanes exists only where the CPU has the set; `sums` holds twice sixteen numbers.
        unsafe { [Self::load(sums.as_ptr()), Self::load(sums.as_ptr().add(LANES))] }
    }

    /// The greatest lane, of numbers that are none of them NaN.
    #[inline(always)]
    fn greatest(self) -> f32 {
        let mut lanes = self.to_array();
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                let other = lanes[i + width];
                lanes[i] = if lanes[i] > other { lanes[i] } else { other };
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// Sixteen numbers of `values` from `start` on, zeros past its end.
///
/// # Safety
/// The CPU has the instruction set.
#[inline(always)]
pub(crate) unsafe fn load_part<L: Lanes>(values: &[f32], start: usize) -> L {
    if values.len() - start >= LANES {
        // SAFETY: the caller promises the set, and sixteen numbers are there.
        return unsafe { L::load(values.as_ptr().add(start)) };
    }
    let mut padded = [0.0; LANES];
    let rest = &values[start..];
    padded[..rest.len()].copy_from_slice(rest);
    // SAFETY: the caller promises the set; the array holds sixteen numbers.
    unsafe { L::load(padded.as_ptr()) }
}

/// Writes the lanes to `values` from `start` on, dropping those past its end.
#[inline(always)]
pub(crate) fn store_part<L: Lanes>(lanes: L, values: &mut [f32], start: usize) {
    if values.len() - start >= LANES {
        // SAFETY: sixteen numbers fit there.
        unsafe { lanes.store(values.as_mut_ptr().add(start)) };
        return;
    }
    let rest = &mut values[start..];
    let count = rest.len();
    rest.copy_from_slice(&lanes.to_array()[..count]);
}

/// Runs a generic kernel with the lanes of an instruction set, compiled for that set.
///
/// A set the CPU lacks is replaced by the best it has, so the caller stays safe whatever it passes.
macro_rules! run_on {
    ($isa:expr, $kernel:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments)]
        fn on_avx2($($argument: $kind),*) $(-> $result)? {
            // SAFETY: this function's own target features are those of the lanes.
            unsafe { $kernel::<crate::lanes::avx2::Avx2>($($argument),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments)]
        fn on_avx512($($argument: $kind),*) $(-> $result)? {
            // SAFETY: this function's own target features are those of the lanes.
            unsafe { $kernel::<crate::lanes::avx512::Avx512>($($argument),*) }
        }
        match $isa.min(crate::isa::Isa::best()) {
            // SAFETY: `best` is a set that this CPU was found to have, and `min` gives it or a smaller one.
            #[cfg(target_arch = "x86_64")]
            crate::isa::Isa::Amx | crate::isa::Isa::Avx512 => unsafe { on_avx512($($argument),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            crate::isa::Isa::Avx2 => unsafe { on_avx2($($argument),*) },
            // SAFETY: plain Rust needs no instruction set.
            _ => unsafe { $kernel::<crate::lanes::scalar::Scalar>($($argument),*) },
        }
    }};
}
pub(crate) use run_on;
