//! The exponential and what is built on it, as one sequence of operations for every instruction set.

use crate::lanes::Lanes;

/// `e^x`, within 2 units in the last place over the whole range; `e^-inf` is 0, an overflow is infinite.
///
/// Range reduction to `r = x - n ln 2` with `|r| <= ln 2 / 2`, then `1 + r + r^2 p(r)` with a minimax `p` of
/// degree 4 (fitted by Lawson's iteration, error 3e-9), times `2^n`.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    // Outside these bounds the result is 0 or infinite anyway. Constants first: a NaN then passes through.
    let x = x.all(130.0).min(x.all(-150.0).max(x));
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits; subtracting it gives that integer.
    let rounder = x.all(12_582_912.0);
    let n = x.fma(x.all(std::f32::consts::LOG2_E), rounder).sub(rounder);
    // ln 2 in two parts: the first has few bits, so that n times it is exact.
    let r = n.fma(x.all(-0.693_145_75), x);
    let r = n.fma(x.all(-1.428_606_8e-6), r);
    let p = x.all(0.001_395_049_2);
    let p = p.fma(r, x.all(0.008_368_89));
    let p = p.fma(r, x.all(0.041_666_206));
    let p = p.fma(r, x.all(0.166_665_18));
    let p = p.fma(r, x.all(0.5));
    let e = p.fma(r.mul(r), r).add(x.all(1.0));
    e.scale_by_power_of_two(n)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: L) -> L {
    let one = x.all(1.0);
    one.div(one.add(exp(x.all(0.0).sub(x))))
}

/// `x sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<L: Lanes>(x: L) -> L {
    x.mul(sigmoid(x))
}

/// `ln(1 + e^x)`, within 4 units in the last place.
///
/// With `u = e^-|x|` it is `max(x, 0) + ln(1 + u)`, and `ln(1 + u) = 2 atanh(s)` of `s = u / (2 + u)`, an odd function whose
/// rest is a minimax polynomial of `s^2` over 0..1/9 (fitted by Lawson's iteration, error 4e-9).
#[inline(always)]
pub(crate) fn softplus<L: Lanes>(x: L) -> L {
    let u = exp(x.all(0.0).sub(x.abs()));
    let s = u.div(u.add(x.all(2.0)));
    let square = s.mul(s);
    let p = x.all(0.281_783_34);
    let p = p.fma(square, x.all(0.279_606_04));
    let p = p.fma(square, x.all(0.400_249_1));
    let p = p.fma(square, x.all(0.666_663_17));
    let p = p.fma(square, x.all(2.0));
    // Constants first: a NaN then passes through.
    p.fma(s, x.all(0.0).max(x))
}

/// `(clamp(up, -limit, limit) + 1) g sigmoid(alpha g)` with `g = min(gate, limit)`.
#[inline(always)]
pub(crate) fn clamped_swiglu<L: Lanes>(up: L, gate: L, alpha: L, limit: L) -> L {
    // Constants first: a NaN then passes through.
    let gate = limit.min(gate);
    let up = limit.min(limit.all(0.0).sub(limit).max(up));
    up.add(limit.all(1.0)).mul(gate.mul(sigmoid(gate.mul(alpha))))
}

/// `above x^2 + slope x` where `x` is above zero, else `below (e^min(x, least) - 1 - x) + slope x`.
#[inline(always)]
pub(crate) fn xielu<L: Lanes>(x: L, above: L, below: L, slope: L, least: L) -> L {
    let zero = x.all(0.0);
    let risen = x.mul(x).mul(above);
    let sunk = exp(least.min(x)).sub(x.all(1.0)).sub(x).mul(below);
    slope.fma(x, zero.select_less(x, risen, sunk))
}

/// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, by way of `(1 + tanh u) / 2 = sigmoid(2 u)`.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes>(x: L) -> L {
    let inner = x.mul(x).fma(x.all(0.044_715), x.all(1.0)).mul(x);
    x.mul(sigmoid(inner.mul(x.all(1.595_769))))
}

/// The error function, within 4e-7: `x p(x^2) / q(x^2)` with minimax `p` and `q` of degree 5 (fitted by Lawson's
/// iteration over 0..4, error 2e-8), and 1 from 4 on.
#[expect(clippy::approx_constant, reason = "fitted with the others")]
#[inline(always)]
pub(crate) fn erf<L: Lanes>(x: L) -> L {
    // Constants first: a NaN then passes through.
    let x = x.all(4.0).min(x.all(-4.0).max(x));
    let square = x.mul(x);
    let p = x.all(1.974_827_2e-6);
    let p = p.fma(square, x.all(2.880_426e-4));
    let p = p.fma(square, x.all(4.003_683e-3));
    let p = p.fma(square, x.all(5.346_759e-2));
    let p = p.fma(square, x.all(0.196_249_8));
    let p = p.fma(square, x.all(1.128_379));
    let q = x.all(3.748_09e-5);
    let q = q.fma(square, x.all(1.216_369_7e-3));
    let q = q.fma(square, x.all(1.544_449_4e-2));
    let q = q.fma(square, x.all(0.116_476_77));
    let q = q.fma(square, x.all(0.507_253));
    let q = q.fma(square, x.all(1.0));
    x.mul(p).div(q)
}

/// `x / 2 (1 + erf(x / sqrt(2)))`.
#[inline(always)]
pub(crate) fn gelu<L: Lanes>(x: L) -> L {
    let half = x.mul(x.all(0.5));
    half.fma(erf(x.mul(x.all(std::f32::consts::FRAC_1_SQRT_2))), half)
}

/// The hyperbolic tangent, within 2 units in the last place.
///
/// Near zero `x + x^3 p(x^2)` keeps the relative accuracy that `1 - 2 / (e^2x + 1)` loses.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: L) -> L {
    let magnitude = x.abs();
    let square = x.mul(x);
    let p = x.all(-0.005_717_042_4);
    let p = p.fma(square, x.all(0.020_650_584));
    let p = p.fma(square, x.all(-0.053_743_497));
    let p = p.fma(square, x.all(0.133_314_91));
    let p = p.fma(square, x.all(-0.333_332_84));
    let small = p.fma(square.mul(x), x);
    let large = x
        .all(1.0)
        .sub(x.all(2.0).div(exp(magnitude.add(magnitude)).add(x.all(1.0))));
    magnitude.select_less(x.all(0.625), small, large.copysign(x))
}

/// `cap tanh(x / cap)`: the soft cap that Gemma 2 puts on attention scores and logits.
#[inline(always)]
pub(crate) fn soft_cap<L: Lanes>(x: L, cap: L) -> L {
    tanh(x.div(cap)).mul(cap)
}
