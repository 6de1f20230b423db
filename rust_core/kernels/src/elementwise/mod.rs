//! The kernels between the matrix products: norms, activations, rotary positions, half precision, softmax.
//!
//! All work on one row at a time and know nothing of models. Each result depends on its row alone and is the
//! same bit for bit on every instruction set: lanes are outputs, and the sums (of squares, of a softmax)
//! run in sixteen lanes, lane = index mod 16, that one fixed tree adds up.
//!
//! Rows of unequal length are a bug of the caller and panic.

pub(crate) mod functions;
mod narrow;
mod rope;

#[cfg(test)]
mod tests;

pub use narrow::{f32_to_bf16, f32_to_f16, f32_to_i8, i8_scale};
pub use rope::{RopeError, RopeScaling, RopeStyle, RopeTable, rope};

use crate::isa::Isa;
use crate::lanes::{F16, LANES, Lanes, load_part, run_on, store_part};

/// Defines a kernel that makes each number of its first row from the same place of its other rows.
macro_rules! elementwise {
    ($(#[$doc:meta])* $name:ident($target:ident, $($row:ident)? ; $($constant:ident),*) = $result:expr) => {
        $(#[$doc])*
        pub fn $name(isa: Isa, $target: &mut [f32], $($row: &[f32],)? $($constant: f32),*) {
            $(assert_eq!($target.len(), $row.len(), "rows of unequal length");)?
            #[inline(always)]
            unsafe fn kernel<L: Lanes>($target: &mut [f32], $($row: &[f32],)? $($constant: f32),*) {
                // SAFETY: the caller promises the set of `L`.
                $(let $constant = unsafe { L::splat($constant) };)*
                for start in (0..$target.len()).step_by(LANES) {
                    let value: L = {
                        // SAFETY: as above.
                        $(let $row: L = unsafe { load_part($row, start) };)?
                        // SAFETY: as above.
                        let $target: L = unsafe { load_part($target, start) };
                        $result
                    };
                    store_part(value, $target, start);
                }
            }
            run_on!(isa, kernel($target: &mut [f32], $($row: &[f32],)? $($constant: f32),*))
        }
    };
}

elementwise! {
    /// `acc += x`.
    add(acc, x;) = acc.add(x)
}
elementwise! {
    /// `x *= factor`.
    scale(x, ; factor) = x.mul(factor)
}
elementwise! {
    /// `x *= factors`, number by number.
    mul(x, factors;) = x.mul(factors)
}
elementwise! {
    /// `x = silu(x)`.
    silu(x, ;) = functions::silu(x)
}

elementwise! {
    /// `up = silu(gate) * up`, where `silu(x) = x / (1 + e^-x)`.
    silu_mul(up, gate;) = functions::silu(gate).mul(up)
}
elementwise! {
    /// `x = sigmoid(gate) * x`.
    sigmoid_mul(x, gate;) = functions::sigmoid(gate).mul(x)
}
elementwise! {
    /// `up = gelu(gate) * up`, with the tanh form of gelu.
    gelu_tanh_mul(up, gate;) = functions::gelu_tanh(gate).mul(up)
}

elementwise! {
    /// `x = max(x, 0)`.
    relu(x, ;) = x.all(0.0).max(x)
}
elementwise! {
    /// `x = max(x, 0)^2` (So et al. 2021, arXiv 2109.08668).
    relu_squared(x, ;) = { let above = x.all(0.0).max(x); above.mul(above) }
}
elementwise! {
    /// `up = (clamp(up, -limit, limit) + 1) g sigmoid(alpha g)` with `g = min(gate, limit)`: gpt-oss's experts.
    clamped_swiglu(up, gate; alpha, limit) = functions::clamped_swiglu(up, gate, alpha, limit)
}

elementwise! {
    /// `x = xielu(x)` (Huang and Schlag 2024, arXiv 2411.13010): `above x^2 + slope x` above zero, else
    /// `below (e^min(x, least) - 1 - x) + slope x`.
    xielu(x, ; above, below, slope, least) = functions::xielu(x, above, below, slope, least)
}

elementwise! {
    /// `x = 1 / (1 + e^-x)`.
    sigmoid(x, ;) = functions::sigmoid(x)
}
elementwise! {
    /// `x = gelu(x)`, with the error function.
    gelu(x, ;) = functions::gelu(x)
}
elementwise! {
    /// `x = gelu(x)`, with the tanh form.
    gelu_tanh(x, ;) = functions::gelu_tanh(x)
}

/// `x = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` (Ba, Kiros and Hinton 2016, arXiv 1607.06450).
pub fn layer_norm(isa: Isa, x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    assert!(
        x.len() == weight.len() && x.len() == bias.len() && !x.is_empty(),
        "rows of unequal length"
    );
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
        let (len, count) = (x.len(), x.len() as f32);
        // SAFETY: the caller promises the set of `L`.
        let zero = unsafe { L::splat(0.0) };
        let mut sums = zero;
        for start in (0..len).step_by(LANES) {
            // SAFETY: as above.
            sums = sums.add(unsafe { load_part(x, start) });
        }
        let mean = zero.all(sums.sum() / count);
        let mut squares = zero;
        for start in (0..len).step_by(LANES) {
            // SAFETY: as above.
            let centred = unsafe { load_part::<L>(x, start) }.sub(mean);
            store_part(centred, x, start);
            // Places past the end are 0 and not the mean's negative.
            // SAFETY: as above.
            let centred: L = unsafe { load_part(x, start) };
            squares = centred.fma(centred, squares);
        }
        let factor = zero.all(1.0 / (squares.sum() / count + eps).sqrt());
        for start in (0..len).step_by(LANES) {
            // SAFETY: as above.
            let (x_part, weight, bias): (L, L, L) =
                unsafe { (load_part(x, start), load_part(weight, start), load_part(bias, start)) };
            store_part(x_part.mul(factor).fma(weight, bias), x, start);
        }
    }
    run_on!(isa, kernel(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32))
}

/// `out = x / sqrt(mean(x^2) + eps) * weight` (Zhang and Sennrich 2019, arXiv 1910.07467).
pub fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(
        x.len() == out.len() && weight.len() == out.len(),
        "rows of unequal length"
    );
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: the caller promises the set of `L`.
        let factor = unsafe { L::splat(inverse_rms::<L>(x, eps)) };
        for start in (0..out.len()).step_by(LANES) {
            // SAFETY: as above.
            let (x, weight): (L, L) = unsafe { (load_part(x, start), load_part(weight, start)) };
            store_part(x.mul(factor).mul(weight), out, start);
        }
    }
    run_on!(isa, kernel(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]))
}

/// [`rms_norm`] in place of every run of `weight.len()` numbers in `x`: the norm of each head's query or key.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(
        !weight.is_empty() && x.len().is_multiple_of(weight.len()),
        "x is not whole heads"
    );
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
        for head in x.chunks_exact_mut(weight.len()) {
            // SAFETY: the caller promises the set of `L`.
            let factor = unsafe { L::splat(inverse_rms::<L>(head, eps)) };
            for start in (0..head.len()).step_by(LANES) {
                // SAFETY: as above.
                let (x, weight): (L, L) = unsafe { (load_part(head, start), load_part(weight, start)) };
                store_part(x.mul(factor).mul(weight), head, start);
            }
        }
    }
    run_on!(isa, kernel(x: &mut [f32], weight: &[f32], eps: f32))
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
unsafe fn inverse_rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    // SAFETY: the caller promises the set of `L`.
    let mut squares = unsafe { L::splat(0.0) };
    for start in (0..x.len()).step_by(LANES) {
        // SAFETY: as above.
        let x: L = unsafe { load_part(x, start) };
        squares = x.fma(x, squares);
    }
    1.0 / (squares.sum() / x.len() as f32 + eps).sqrt()
}

/// Replaces `x` by `e^((x - shift) / divisor)` and gives the sum of that, accumulated in `f64`.
///
/// Infinitely negative scores count 0.
pub fn exp_sum(isa: Isa, x: &mut [f32], shift: f32, divisor: f32) -> f64 {
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(x: &mut [f32], shift: f32, divisor: f32) -> f64 {
        // SAFETY: the caller promises the set of `L`.
        let (shift, divisor) = unsafe { (L::splat(shift), L::splat(divisor)) };
        let mut sums = [0.0_f64; LANES];
        for start in (0..x.len()).step_by(LANES) {
            // SAFETY: as above.
            let scores: L = unsafe { load_part(x, start) };
            let weights = functions::exp(scores.sub(shift).div(divisor));
            store_part(weights, x, start);
            let filled = LANES.min(x.len() - start);
            for (sum, weight) in sums.iter_mut().zip(&weights.to_array()[..filled]) {
                *sum += f64::from(*weight);
            }
        }
        sums.iter().sum()
    }
    run_on!(isa, kernel(x: &mut [f32], shift: f32, divisor: f32) -> f64)
}

/// Widens half-precision bits.
pub fn f16_to_f32(isa: Isa, halves: &[u16], out: &mut [f32]) {
    assert_eq!(halves.len(), out.len(), "rows of unequal length");
    #[inline(always)]
    unsafe fn kernel<L: Lanes>(halves: &[u16], out: &mut [f32]) {
        let whole = out.len() / LANES * LANES;
        for start in (0..whole).step_by(LANES) {
            // SAFETY: the caller promises the set of `L`; sixteen numbers are left; F16 is a transparent u16.
            let lanes = unsafe { L::load_f16(halves.as_ptr().add(start).cast()) };
            store_part(lanes, out, start);
        }
        for (half, out) in halves[whole..].iter().zip(&mut out[whole..]) {
            *out = F16(*half).to_f32();
        }
    }
    run_on!(isa, kernel(halves: &[u16], out: &mut [f32]))
}
