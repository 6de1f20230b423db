//! Quantisation of activations: exact rule, equal on every instruction set, honest about numbers it cannot hold.

use proptest::prelude::*;

use super::*;

fn quantised(isa: Isa, x: &[f32]) -> Vec<ActivationBlock> {
    let mut batch = Activations::new();
    batch.resize(1, x.len(), true, false);
    // SAFETY: `isa` comes from `available`, and nobody else has the batch.
    unsafe {
        batch.write_row(isa, 0, x);
        std::slice::from_raw_parts(batch.blocks_of(0), x.len() / BLOCK_COLS).to_vec()
    }
}

/// The integers that the parts make.
fn integers(block: &ActivationBlock) -> [i32; 32] {
    std::array::from_fn(|i| (i32::from(block.high[i]) << LOW_BITS) + i32::from(block.low[i]))
}

/// Blocks as bits, so that NaN equals itself.
fn bits(blocks: &[ActivationBlock]) -> Vec<(Vec<i8>, Vec<u32>)> {
    let of = |b: &ActivationBlock| {
        let floats = [b.scale, b.sum].map(|x| if x.is_nan() { f32::NAN } else { x }.to_bits());
        let ints = [
            b.minus_8_sum,
            b.minus_128_sum,
            b.minus_half_sums[0],
            b.minus_half_sums[1],
            b.wide_quads.cast_signed(),
        ]
        .map(i32::cast_unsigned);
        ([b.high, b.low].concat(), [&floats[..], &ints[..]].concat())
    };
    blocks.iter().map(of).collect()
}

proptest! {
    /// Every instruction set writes the same block, for any bit patterns at all.
    #[test]
    fn instruction_sets_agree(x in prop::collection::vec(any::<u32>(), 64), scale in prop::sample::select(vec![0_u32, 1, 8])) {
        // Shifting the exponents down makes most blocks finite.
        let x: Vec<f32> = x.iter().map(|bits| f32::from_bits(if scale == 0 { *bits } else { bits & 0xbfff_ffff })).collect();
        let expected = bits(&quantised(Isa::Scalar, &x));
        for isa in Isa::available() {
            prop_assert_eq!(bits(&quantised(isa, &x)), expected.clone(), "{}", isa.name());
        }
    }

    /// Each number is within half a step (and the rounding of 16,256 steps in f32) of its integer times the scale, a quad is wide if and only if it has upper parts, and the sums are those of the integers.
    #[test]
    fn numbers_are_within_half_a_step(x in prop::collection::vec(-1e3_f32..1e3, 32), outliers in prop::collection::vec((0_usize..32, 1_f32..1e4), 0..4)) {
        let mut x = x;
        for (column, factor) in outliers {
            x[column] *= factor;
        }
        let block = quantised(Isa::Scalar, &x)[0];
        for (quad, parts) in block.high.as_chunks::<4>().0.iter().enumerate() {
            prop_assert_eq!(block.wide_quads >> quad & 1 != 0, *parts != [0; 4]);
        }
        for (x, quant) in x.iter().zip(integers(&block)) {
            let error = f64::from(*x) - f64::from(block.scale) * f64::from(quant);
            prop_assert!(error.abs() <= f64::from(block.scale) * 0.502);
        }
        let low: i32 = integers(&block)[..16].iter().sum();
        let high: i32 = integers(&block)[16..].iter().sum();
        prop_assert_eq!(block.minus_half_sums, [-low, -high]);
        prop_assert_eq!(block.minus_8_sum, -8 * (low + high));
        prop_assert_eq!(block.minus_128_sum, -128 * (low + high));
        prop_assert_eq!(block.sum, block.scale * (low + high) as f32);
    }
}

/// An outlier in one quad, or in two, does not widen the step of the others: these still fill 8 bits.
#[test]
fn outliers_leave_the_rest_its_steps() {
    let mut x: [f32; 32] = std::array::from_fn(|i| if i % 2 == 0 { 1.0 } else { -0.5 });
    x[31] = 0.9;
    for (outlier, wide) in [(5, 0b10), (30, 0b1000_0010)] {
        x[outlier] = 90.0;
        for isa in Isa::available() {
            let block = quantised(isa, &x)[0];
            assert_eq!(block.wide_quads, wide, "{}", isa.name());
            assert_eq!(block.low[0], 127, "{}", isa.name());
            assert_eq!(integers(&block)[outlier], 90 * 127, "{}", isa.name());
        }
    }
}

/// Zeros stay zeros, tiny numbers become zeros, and a number that is not finite spoils its block visibly.
#[test]
fn degenerate_blocks_are_zero_or_nan() {
    for (value, is_nan) in [
        (0.0, false),
        (-0.0, false),
        (1e-40, false),
        (f32::INFINITY, true),
        (f32::NAN, true),
    ] {
        let mut x = [0.0; 32];
        x[5] = value;
        for isa in Isa::available() {
            let block = quantised(isa, &x)[0];
            assert_eq!(integers(&block), [0; 32]);
            assert_eq!(block.scale.is_nan(), is_nan, "{value}");
            assert_eq!(block.sum.is_nan(), is_nan, "{value}");
        }
    }
}
