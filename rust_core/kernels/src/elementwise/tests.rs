//! Kernels against double precision, and each instruction set against plain Rust.

use super::*;
use crate::lanes::scalar::Scalar;
use crate::lanes::{Lanes, SMALLEST_BF16, run_on};
use proptest::prelude::*;

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// The distance of `got` from `exact` in units of the last place of `exact` as an `f32`.
fn ulps(got: f32, exact: f64) -> f64 {
    let rounded = (exact.abs() as f32).max(f32::MIN_POSITIVE);
    let unit = f64::from(f32::from_bits(rounded.to_bits() + 1)) - f64::from(rounded);
    (f64::from(got) - exact).abs() / unit
}

/// Applies a function of lanes to one number.
macro_rules! at {
    ($function:ident, $x:expr) => {{
        // SAFETY: plain Rust needs no instruction set.
        let lanes = unsafe { Scalar::splat($x) };
        functions::$function(lanes).to_array()[0]
    }};
}

/// The exponential is within 2 units in the last place, and right at its ends.
#[test]
fn exp_is_within_two_ulps() {
    let worst = (0..2_000_000)
        .map(|i| -87.0 + i as f32 * (175.0 / 2_000_000.0))
        .fold(0.0_f64, |worst, x| worst.max(ulps(at!(exp, x), f64::from(x).exp())));
    println!("exp: {worst} ulp");
    assert!(worst < 2.0, "{worst} ulp");
    let ends = [f32::NEG_INFINITY, -200.0, -0.0, 0.0, 89.0, f32::INFINITY].map(|x| at!(exp, x));
    assert_eq!(ends, [0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY]);
    assert!(at!(exp, f32::NAN).is_nan());
    let subnormal = f64::from(at!(exp, -100.0));
    assert!(
        (subnormal - (-100.0_f64).exp()).abs() <= 2.0_f64.powi(-149),
        "subnormal results are not flushed"
    );
}

/// The softplus is within 4 units in the last place over the whole range, and right at its ends.
#[test]
fn softplus_is_within_four_ulps() {
    let worst = (0..1_000_000)
        .map(|i| -87.0 + i as f32 * (175.0 / 1_000_000.0))
        .fold(0.0_f64, |worst, x| {
            let exact = f64::from(x.max(0.0)) + (-f64::from(x.abs())).exp().ln_1p();
            worst.max(ulps(at!(softplus, x), exact))
        });
    println!("softplus: {worst} ulp");
    assert!(worst < 4.0, "{worst} ulp");
    let ends = [f32::NEG_INFINITY, -200.0, 200.0, f32::INFINITY].map(|x| at!(softplus, x));
    assert_eq!(ends, [0.0, 0.0, 200.0, f32::INFINITY]);
    assert!(at!(softplus, f32::NAN).is_nan());
}

/// The hyperbolic tangent is within 2 units in the last place, odd, and 1 at infinity.
#[test]
fn tanh_is_within_two_ulps() {
    let worst = (1..1_000_000).map(|i| i as f32 * 1e-5).fold(0.0_f64, |worst, x| {
        assert_eq!(at!(tanh, -x), -at!(tanh, x));
        worst.max(ulps(at!(tanh, x), f64::from(x).tanh()))
    });
    println!("tanh: {worst} ulp");
    assert!(worst < 2.0, "{worst} ulp");
    assert_eq!(
        [at!(tanh, 0.0), at!(tanh, f32::INFINITY), at!(tanh, f32::NEG_INFINITY)],
        [0.0, 1.0, -1.0]
    );
}

/// Gated activations equal their formulas: 5e-7 relative, or 1e-7 where the result vanishes.
#[test]
fn gated_activations_equal_their_formulas() {
    let gate: Vec<f32> = (0..4001).map(|i| (i - 2000) as f32 * 0.01).collect();
    let (mut silu, mut gelu) = (vec![1.0; gate.len()], vec![1.0; gate.len()]);
    let up: Vec<f32> = gate.iter().rev().copied().collect();
    let mut clamped = up.clone();
    clamped_swiglu(Isa::best(), &mut clamped, &gate, 1.702, 7.0);
    let mut bent = gate.clone();
    xielu(Isa::best(), &mut bent, 0.8, 1.1, 0.5, -1e-6);
    silu_mul(Isa::best(), &mut silu, &gate);
    gelu_tanh_mul(Isa::best(), &mut gelu, &gate);
    for (i, x) in gate.iter().map(|x| f64::from(*x)).enumerate() {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        for (got, expected) in [
            (silu[i], x / (1.0 + (-x).exp())),
            (bent[i], {
                let [above, below] = [0.8_f32, 1.1].map(f64::from);
                let least = x.min(f64::from(-1e-6_f32));
                let curve = if x > 0.0 {
                    above * x * x
                } else {
                    below * (least.exp_m1() - x)
                };
                curve + 0.5 * x
            }),
            (gelu[i], x / 2.0 * (1.0 + inner.tanh())),
            (clamped[i], {
                let (alpha, x) = (f64::from(1.702_f32), x.min(7.0));
                (f64::from(up[i]).clamp(-7.0, 7.0) + 1.0) * x / (1.0 + (-alpha * x).exp())
            }),
        ] {
            let error = (f64::from(got) - expected).abs();
            assert!(
                error < 5e-7 * expected.abs() + 1e-7,
                "{x}: got {got}, expected {expected}"
            );
        }
    }
}

/// The error function by its Taylor series in double precision, 1 past 4.2, to 3e-9.
fn exact_erf(x: f64) -> f64 {
    if x.abs() > 4.2 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..400 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// The error function is within 4e-7 everywhere, odd, 1 at infinity, and hands a NaN on.
#[test]
fn erf_is_within_its_bound() {
    let worst = (0..60_000).map(|i| i as f32 * 1e-4).fold(0.0_f64, |worst, x| {
        assert_eq!(at!(erf, -x), -at!(erf, x));
        worst.max((f64::from(at!(erf, x)) - exact_erf(f64::from(x))).abs())
    });
    println!("erf: {worst}");
    assert!(worst < 4e-7, "{worst}");
    let ends = [f32::INFINITY, f32::NEG_INFINITY, 0.0].map(|x| at!(erf, x));
    assert!(
        (ends[0] - 1.0).abs() < 2e-7 && ends[1] == -ends[0] && ends[2] == 0.0,
        "{ends:?}"
    );
    assert!(at!(erf, f32::NAN).is_nan());
}

/// Both forms of GELU equal their formulas.
#[test]
fn gelu_equals_its_formula() {
    let x: Vec<f32> = (0..4001).map(|i| (i - 2000) as f32 * 0.005).collect();
    let (mut exact, mut tanh) = (x.clone(), x.clone());
    gelu(Isa::best(), &mut exact);
    gelu_tanh(Isa::best(), &mut tanh);
    for (i, x) in x.iter().map(|x| f64::from(*x)).enumerate() {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        for (got, expected) in [
            (exact[i], x / 2.0 * (1.0 + exact_erf(x / std::f64::consts::SQRT_2))),
            (tanh[i], x / 2.0 * (1.0 + inner.tanh())),
        ] {
            let error = (f64::from(got) - expected).abs();
            assert!(error < 3e-7 * (1.0 + x.abs()), "{x}: got {got}, expected {expected}");
        }
    }
}

/// The norm with a mean equals its formula, on rows that fill registers and rows that do not, also far from zero.
#[test]
fn layer_norm_equals_its_formula() {
    for (len, shift) in [(1, 0.0), (15, 1.0), (16, 0.0), (100, 50.0), (384, -3.0), (1024, 0.5)] {
        let x: Vec<f32> = (0..len).map(|i| ((i * 37) % 101) as f32 * 0.05 - 2.0 + shift).collect();
        let weight: Vec<f32> = (0..len).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
        let bias: Vec<f32> = (0..len).map(|i| (i % 5) as f32 * 0.2).collect();
        let mut out = x.clone();
        layer_norm(Isa::best(), &mut out, &weight, &bias, 1e-5);
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / len as f64;
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / len as f64;
        for i in 0..len {
            let normal = (f64::from(x[i]) - mean) / (variance + 1e-5).sqrt();
            let expected = normal * f64::from(weight[i]) + f64::from(bias[i]);
            assert!(
                (f64::from(out[i]) - expected).abs() <= 1e-5,
                "{len}: {i}: {} {expected}",
                out[i]
            );
        }
        for isa in Isa::available() {
            let mut other = x.clone();
            layer_norm(isa, &mut other, &weight, &bias, 1e-5);
            assert_eq!(bits(&other), bits(&out), "{}", isa.name());
        }
    }
}

/// The norm equals its formula to 1e-6 relative, on rows that fill registers and rows that do not.
#[test]
fn rms_norm_equals_its_formula() {
    for len in [1, 15, 16, 64, 100, 576, 4096] {
        let x: Vec<f32> = (0..len).map(|i| ((i * 37) % 101) as f32 * 0.05 - 2.0).collect();
        let weight: Vec<f32> = (0..len).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
        let mut out = vec![0.0; len];
        rms_norm(Isa::best(), &x, &weight, 1e-5, &mut out);
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / len as f64;
        for i in 0..len {
            let expected = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
            assert!(
                (f64::from(out[i]) - expected).abs() <= 1e-6 * expected.abs(),
                "{len}: {i}"
            );
        }
        let mut heads = [x.clone(), x].concat();
        rms_norm_in_place(Isa::best(), &mut heads, &weight, 1e-5);
        assert_eq!(heads, [out.clone(), out].concat());
    }
}

/// The sum is that of the exponentials left behind; negative infinity counts 0, an empty row too.
#[test]
fn exp_sum_is_the_sum_of_what_it_leaves() {
    let mut x = [1.0, 3.0, f32::NEG_INFINITY, 2.0];
    let total = exp_sum(Isa::best(), &mut x, 3.0, 1.0);
    assert!((f64::from(x.iter().sum::<f32>()) - total).abs() < 1e-6);
    assert_eq!((x[1], x[2]), (1.0, 0.0));
    assert!(((x[1] / x[0]) - std::f32::consts::E.powi(2)).abs() < 1e-5);
    assert_eq!(exp_sum(Isa::best(), &mut [], 0.0, 1.0), 0.0);
}

/// Rotation equals its definition in both styles, which are one up to a permutation, and keeps lengths.
#[test]
fn rope_rotates_pairs_by_their_angles() {
    let mut table = RopeTable::new(20, 10_000.0, &RopeScaling::None, 4096).unwrap();
    table.grow_to(101).unwrap();
    let (cos, sin) = table.row(100);
    let head: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut halves = head.clone();
    rope(Isa::best(), &mut halves, cos, sin, RopeStyle::Neox);
    let mut pairs = head.clone();
    for i in 0..10 {
        (pairs[2 * i], pairs[2 * i + 1]) = (head[i], head[i + 10]);
    }
    rope(Isa::best(), &mut pairs, cos, sin, RopeStyle::Interleaved);
    for i in 0..10 {
        let angle = 100.0 * 10_000.0_f64.powf(-2.0 * i as f64 / 20.0);
        let (a, b) = (f64::from(head[i]), f64::from(head[i + 10]));
        let expected = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
        // The angle is rounded to f32: up to 100 * 2^-24.
        assert!((f64::from(halves[i]) - expected[0]).abs() < 1e-5);
        assert!((f64::from(halves[i + 10]) - expected[1]).abs() < 1e-5);
        assert_eq!((pairs[2 * i], pairs[2 * i + 1]), (halves[i], halves[i + 10]));
    }
    assert_eq!(halves[20..], head[20..], "dimensions beyond the rotary ones stay");
}

/// Scores after rotation depend on the distance of two positions alone.
#[test]
fn rope_makes_scores_depend_on_distance() {
    let mut table = RopeTable::new(64, 10_000.0, &RopeScaling::None, 4096).unwrap();
    table.grow_to(2000).unwrap();
    let rotated = |seed: usize, position| {
        let mut x: Vec<f32> = (0..64).map(|i| ((i * seed) as f32).sin()).collect();
        let (cos, sin) = table.row(position);
        rope(Isa::best(), &mut x, cos, sin, RopeStyle::Neox);
        x
    };
    let score = |m, n| rotated(3, m).iter().zip(rotated(5, n)).map(|(a, b)| a * b).sum::<f32>();
    assert!((score(17, 3) - score(1017, 1003)).abs() < 1e-3);
}

/// Each kind of scaling changes the angles as its paper says.
#[test]
fn rope_scaling_follows_each_rule() {
    let row = |scaling: RopeScaling, position| {
        let mut table = RopeTable::new(64, 500_000.0, &scaling, 1 << 17).unwrap();
        table.grow_to(position + 1).unwrap();
        table.row(position).0.to_vec()
    };
    let plain = row(RopeScaling::None, 8);
    assert_eq!(row(RopeScaling::Linear { factor: 4.0 }, 32), plain);
    let factors = |divisors| RopeScaling::Factors {
        divisors,
        attention_factor: 1.0,
    };
    assert_eq!(row(factors(vec![4.0; 32]), 32), plain);
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 8192,
    };
    let scaled = row(llama3, 8);
    // Wavelengths 2 pi base^(2 i / 64): below 2,048 for i <= 14, above 8,192 for i >= 18.
    assert_eq!(scaled[..14], plain[..14]);
    assert_eq!(scaled[18..], row(RopeScaling::None, 1)[18..]);
}

fn yarn(beta_fast: f32, original_max_position: usize) -> RopeScaling {
    RopeScaling::Yarn {
        factor: 4.0,
        beta_fast,
        beta_slow: 1.0,
        original_max_position,
        is_truncated: true,
        attention_factor: 1.1,
    }
}

/// YaRN keeps what turns often, divides what hardly turns, and multiplies every cosine; the base of a dynamic scaling
/// leaves the highest frequency and divides the lowest by the factor; both lengthen the context.
#[test]
fn rope_scaling_for_long_contexts_keeps_what_turns_often() {
    let frequencies = |scaling: &RopeScaling| rope::inverse_frequencies(64, 10_000.0, scaling).unwrap();
    let plain = frequencies(&RopeScaling::None);
    let scaled = frequencies(&yarn(32.0, 4096));
    // 32 turns of 4,096 positions are between the frequencies 10 and 11, one turn is between 22 and 23.
    assert_eq!(scaled[..11], plain[..11]);
    assert!(scaled[16] < plain[16] && scaled[16] > plain[16] / 4.0);
    assert!(
        scaled[23..]
            .iter()
            .zip(&plain[23..])
            .all(|(a, b)| (a / b - 0.25).abs() < 1e-6)
    );
    let mut table = RopeTable::new(64, 10_000.0, &yarn(32.0, 4096), 8).unwrap();
    table.grow_to(1).unwrap();
    assert_eq!(table.row(0).0, [1.1; 32]);
    let dynamic = RopeScaling::DynamicNtk { factor: 2.0 };
    let stretched = frequencies(&dynamic);
    assert_eq!(stretched[0], 1.0);
    assert!((stretched[31] / plain[31] - 1.0 / 3.0).abs() < 1e-6);
    let lengths =
        [dynamic, yarn(32.0, 4096), RopeScaling::Linear { factor: 2.0 }].map(|scaling| scaling.context_length(5000));
    assert_eq!(lengths, [10_000, 16_384, 5000]);
}

/// Frequencies and cosines are those of Hugging Face transformers 5.23 (PyTorch, CPU): Llama 3.2 1B, SmolLM2 135M.
///
/// Frequencies bit for bit but for the last bit inside Llama 3's ramp; cosines at position 8,000 to 1e-7.
#[test]
fn rope_table_equals_transformers() {
    let llama3 = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position: 8192,
    };
    let frequencies = rope::inverse_frequencies(64, 500_000.0, &llama3).unwrap();
    let expected = [
        0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad, 0x3d681e67, 0x3d1a08c8,
        0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402, 0x3b527720, 0x3aa9279b, 0x39e13620, 0x38cb98f7,
        0x37a3418d, 0x3758ac81, 0x370fc8f8, 0x36bed4f4, 0x367d45c3, 0x3628126b, 0x35df10c4, 0x359406cb, 0x35447610,
        0x35025f34, 0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0,
    ];
    for (i, (frequency, expected)) in frequencies.iter().zip(expected).enumerate() {
        let is_in_ramp = (15..18).contains(&i);
        let distance = frequency.to_bits().abs_diff(expected);
        assert!(
            distance <= u32::from(is_in_ramp),
            "frequency {i}: {:x} is not {expected:x}",
            frequency.to_bits()
        );
    }
    let mut table = RopeTable::new(64, 100_000.0, &RopeScaling::None, 8192).unwrap();
    table.grow_to(8001).unwrap();
    let (cos, sin) = table.row(8000);
    let expected_cos = [
        0.065_645_13,
        -0.999_408_84,
        0.986_361_8,
        -0.463_367_3,
        0.911_826_3,
        -0.321_833_88,
    ];
    let expected_sin = [
        0.997_843,
        -0.034_379_046,
        0.164_591_63,
        -0.886_166_33,
        -0.410_576_13,
        -0.946_796_2,
    ];
    for i in 0..6 {
        assert!(
            (cos[i] - expected_cos[i]).abs() < 1e-7 && (sin[i] - expected_sin[i]).abs() < 1e-7,
            "angle {i}"
        );
    }
}

/// What does not make a table is refused with the number at fault.
#[test]
fn rope_table_refuses_bad_configurations() {
    let error = |dims, base, scaling| RopeTable::new(dims, base, &scaling, 10).unwrap_err().to_string();
    assert!(error(7, 1e4, RopeScaling::None).contains("got 7"));
    assert!(error(8, f32::NAN, RopeScaling::None).contains("base must be finite"));
    assert!(error(8, 1e4, RopeScaling::Linear { factor: 0.0 }).contains("above 0, got 0"));
    let factors = |attention_factor| RopeScaling::Factors {
        divisors: vec![1.0],
        attention_factor,
    };
    assert!(error(8, 1e4, factors(1.0)).contains("1 factors for 4 frequencies"));
    assert!(error(8, 1e4, factors(0.0)).contains("attention_factor"));
    assert!(error(8, 1e4, RopeScaling::DynamicNtk { factor: 0.5 }).contains("at least 1, got 0.5"));
    assert!(error(2, 1e4, RopeScaling::DynamicNtk { factor: 2.0 }).contains("got 2"));
    assert!(error(8, 1e4, yarn(32.0, 0)).contains("original_max_position"));
    assert!(error(8, 1e4, yarn(0.5, 64)).contains("at least beta_slow"));
    let mut table = RopeTable::new(8, 1e4, &RopeScaling::None, 10).unwrap();
    assert_eq!(
        table.grow_to(11),
        Err(RopeError::Position {
            position: 10,
            max_positions: 10
        })
    );
}

/// Half precision comes back from every one of its 65,536 values, the same on every set.
#[test]
fn f16_round_trips_on_every_set() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let mut expected = vec![0.0; halves.len()];
    f16_to_f32(Isa::Scalar, &halves, &mut expected);
    assert_eq!(
        [expected[0x3c00], expected[0x0001], expected[0xfbff]],
        [1.0, 2.0_f32.powi(-24), -65504.0]
    );
    for isa in Isa::available() {
        let mut wide = vec![0.0; halves.len()];
        f16_to_f32(isa, &halves, &mut wide);
        assert_eq!(bits(&wide), bits(&expected), "{isa:?}");
        let mut back = vec![0; halves.len()];
        f32_to_f16(isa, &wide, &mut back);
        let quiet = |half: u16| {
            if half & 0x7fff > 0x7c00 { half | 0x0200 } else { half }
        };
        assert!(
            back.iter().zip(&halves).all(|(back, half)| *back == quiet(*half)),
            "{isa:?}"
        );
    }
}

/// Both bfloat16 halves of a lane are the scalar ones on every set, also where this CPU multiplies pairs without parting them.
#[test]
fn bf16_halves_are_the_same_on_every_set() {
    #[inline(always)]
    unsafe fn parts<L: Lanes>(x: &[f32; 16]) -> [[f32; 16]; 3] {
        // SAFETY: the caller promises the set of `L`; sixteen numbers are there.
        let x = unsafe { L::load(x.as_ptr()) };
        [x.upper_bf16(), x.lower_bf16(), x.and_bits(0x0000_ffff)].map(L::to_array)
    }
    let parts_on = |isa: Isa, x: &[f32; 16]| run_on!(isa, parts(x: &[f32; 16]) -> [[f32; 16]; 3]);
    let x = std::array::from_fn(|i| f32::from_bits(0x4049_3f80 ^ (i as u32 * 0x0012_8035)));
    let expected = parts_on(Isa::Scalar, &x);
    assert_eq!(expected[0][0].to_bits(), 0x4049_0000);
    assert_eq!(expected[1][0].to_bits(), 0x3f80_0000);
    for isa in Isa::available() {
        for (got, expected) in parts_on(isa, &x).iter().flatten().zip(expected.iter().flatten()) {
            assert_eq!(got.to_bits(), expected.to_bits(), "{isa:?}");
        }
    }
}

fn any_bits() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        -20.0_f32..20.0,
        -70_000.0_f32..70_000.0,
        -1e-4_f32..1e-4
    ]
}

/// Equal bits, or both a NaN (its payload is not promised).
fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter()
        .zip(b)
        .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Rounding to half precision is the hardware's, for any bits.
    #[test]
    fn f32_to_f16_is_the_same_on_every_set(x in prop::collection::vec(any_bits(), 0..70)) {
        let mut expected = vec![0; x.len()];
        f32_to_f16(Isa::Scalar, &x, &mut expected);
        for isa in Isa::available() {
            let mut halves = vec![0; x.len()];
            f32_to_f16(isa, &x, &mut halves);
            prop_assert_eq!(&halves, &expected, "{:?}", isa);
        }
    }

    /// So are rounding to bfloat16, which takes the nearest, and to 8-bit integers, which are at most half a step off.
    #[test]
    fn narrowing_is_the_same_on_every_set(x in prop::collection::vec(any_bits(), 0..70)) {
        let narrow = |isa| {
            let (mut halves, mut integers) = (vec![0; x.len()], vec![0; x.len()]);
            f32_to_bf16(isa, &x, &mut halves);
            let scale = i8_scale(isa, &x);
            f32_to_i8(isa, &x, scale, &mut integers);
            (halves, integers, scale.to_bits())
        };
        let expected = narrow(Isa::Scalar);
        for isa in Isa::available() {
            prop_assert_eq!(&narrow(isa), &expected, "{:?}", isa);
        }
        let scale = f32::from_bits(expected.2);
        for ((x, half), integer) in x.iter().zip(expected.0).zip(expected.1) {
            let wide = f32::from_bits(u32::from(half) << 16);
            prop_assert!(wide == *x || x.is_nan() && wide.is_nan() || (wide - x).abs() <= x.abs() / 256.0
                || wide == 0.0 && x.abs() < SMALLEST_BF16
                || wide.is_infinite() && x.abs() > 3.38e38);
            let error = (f32::from(integer) * scale - x).abs();
            prop_assert!(scale.is_nan() || error <= scale * 0.501 || scale == 0.0 && x.abs() < 1e-35);
        }
    }

    /// Every kernel gives the same bits on every set, for any length and any numbers.
    #[test]
    fn kernels_are_the_same_on_every_set(x in prop::collection::vec(any_bits(), 1..100)) {
        let y: Vec<f32> = x.iter().rev().copied().collect();
        let half = x.len() / 2;
        let (cos, sin) = (&y[..half], &x[..half]);
        let all = |isa| {
            let mut rows = vec![vec![0.0; x.len()]];
            rms_norm(isa, &x, &y, 1e-5, &mut rows[0]);
            let mut in_place = |kernel: &dyn Fn(&mut [f32])| {
                let mut row = x.clone();
                kernel(&mut row);
                rows.push(row);
            };
            in_place(&|row| silu_mul(isa, row, &y));
            in_place(&|row| gelu_tanh_mul(isa, row, &y));
            in_place(&|row| clamped_swiglu(isa, row, &y, 1.702, 0.5));
            in_place(&|row| xielu(isa, row, 0.8, 1.1, 0.5, -0.1));
            in_place(&|row| mul(isa, row, &y));
            in_place(&|row| add(isa, row, &y));
            in_place(&|row| scale(isa, row, 0.3));
            in_place(&|row| {
                let total = exp_sum(isa, row, 0.5, 30.0);
                row[0] = total as f32;
            });
            in_place(&|row| rms_norm_in_place(isa, row, &y, 1e-6));
            in_place(&|row| rope(isa, row, cos, sin, RopeStyle::Neox));
            in_place(&|row| rope(isa, row, cos, sin, RopeStyle::Interleaved));
            rows
        };
        let expected = all(Isa::Scalar);
        for isa in Isa::available() {
            for (i, (row, expected)) in all(isa).iter().zip(&expected).enumerate() {
                prop_assert!(same(row, expected), "{:?}, kernel {}: {:?} is not {:?}", isa, i, row, expected);
            }
        }
    }
}
