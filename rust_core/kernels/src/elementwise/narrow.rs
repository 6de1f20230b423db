//! Rounding a row to fewer bits: for key-value memory.

use crate::isa::Isa;
use crate::lanes::{Bf16, F16, LANES, Lanes, SMALLEST_BF16, load_part, run_on};

/// Rounds to half-precision bits, ties to even; beyond the range gives infinity.
pub fn f32_to_f16(isa: Isa, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "rows of unequal length");
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &[f32], out: &mut [u16]) {
        let whole = out.len() / LANES * LANES;
        for start in (0..whole).step_by(LANES) {
            // SAFETY: the caller promises the set of `L`; sixteen numbers are left; F16 is a transparent u16.
            unsafe { L::load(x.as_ptr().add(start)).store_f16(out.as_mut_ptr().add(start).cast()) };
        }
        for (x, out) in x[whole..].iter().zip(&mut out[whole..]) {
            *out = F16::from_f32(*x).0;
        }
    }
    run_on!(isa, kernel(x: &[f32], out: &mut [u16]))
}

/// Rounds to bfloat16 bits, ties to even; magnitudes under [`SMALLEST_BF16`] become 0, as its products ask for.
pub fn f32_to_bf16(isa: Isa, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len(), "rows of unequal length");
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &[f32], out: &mut [u16]) {
        let whole = out.len() / LANES * LANES;
        for start in (0..whole).step_by(LANES) {
            // SAFETY: the caller promises the set of `L`; sixteen numbers are left; Bf16 is a transparent u16.
            unsafe {
                let lanes = L::load(x.as_ptr().add(start)).without_tiny();
                lanes.store_bf16(out.as_mut_ptr().add(start).cast());
            }
        }
        for (x, out) in x[whole..].iter().zip(&mut out[whole..]) {
            let is_tiny = x.abs() < SMALLEST_BF16;
            *out = Bf16::from_f32(if is_tiny { 0.0 } else { *x }).0;
        }
    }
    run_on!(isa, kernel(x: &[f32], out: &mut [u16]))
}

/// The factor by which 8-bit integers stand for these numbers: the greatest magnitude is 127.
///
/// 0 where all are (nearly) 0, and NaN where one is not finite, so that a fault shows in whatever is made of the row.
pub fn i8_scale(isa: Isa, x: &[f32]) -> f32 {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &[f32]) -> f32 {
        // SAFETY: the caller promises the set of `L`.
        let zero = unsafe { L::splat(0.0) };
        let (mut greatest, mut fault) = (zero, zero);
        for start in (0..x.len()).step_by(LANES) {
            // SAFETY: as above.
            let x: L = unsafe { load_part(x, start) };
            greatest = x.abs().max(greatest);
            fault = x.fma(zero, fault); // 0, or NaN for an infinity or a NaN
        }
        let scale = greatest.greatest() / 127.0;
        let fault = fault.sum();
        if fault.is_nan() {
            f32::NAN
        } else if scale >= f32::MIN_POSITIVE {
            scale
        } else {
            0.0
        }
    }
    run_on!(isa, kernel(x: &[f32]) -> f32)
}

/// Divides by a scale of [`i8_scale`] and rounds to integers, ties to even; zeros where the scale is 0 or NaN.
pub fn f32_to_i8(isa: Isa, x: &[f32], scale: f32, out: &mut [i8]) {
    assert_eq!(x.len(), out.len(), "rows of unequal length");
    if scale.is_nan() || scale <= 0.0 {
        out.fill(0);
        return;
    }
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &[f32], factor: f32, out: &mut [i8]) {
        // SAFETY: the caller promises the set of `L`.
        let factor = unsafe { L::splat(factor) };
        for start in (0..out.len()).step_by(LANES) {
            let mut integers = [0; LANES];
            // SAFETY: as above; the array holds sixteen integers, and the scale keeps them within 127.
            unsafe { load_part::<L>(x, start).mul(factor).store_i8(integers.as_mut_ptr()) };
            let count = LANES.min(out.len() - start);
            out[start..start + count].copy_from_slice(&integers[..count]);
        }
    }
    let factor = 1.0 / scale;
    run_on!(isa, kernel(x: &[f32], factor: f32, out: &mut [i8]))
}
