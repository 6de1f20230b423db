//! `Q4_K`, `Q5_K` and `Q6_K`: scales that keep the weighted squared error small.
//!
//! The error is weighed as ggml's reference does without an importance matrix: `Q4_K` and `Q5_K` by a number's magnitude
//! and the root mean square of its 32, `Q6_K` by its square. Three steps:
//!
//! 1. Each group is fitted alone. Integers for a grid of scales are fixed, and for each of them the best scale (and
//!    offset) is the weighted least-squares solution.
//! 2. Scales become small integers times one scale of the block; each integer's neighbours are tried too, with the
//!    quants rounded anew.
//! 3. With all integers fixed, the block's scale (and that of the offsets) is the least-squares solution once more; the
//!    second step is done again with it, and the better of both is kept.

use super::super::GgmlType;
use super::put_f16;
use crate::lanes::half::F16;

const BLOCK: usize = 256;
/// The quants of one block.
type Quants = [f32; BLOCK];

/// Writes a block of 256.
pub(super) fn write(kind: GgmlType, values: &[f32], bytes: &mut [u8]) {
    let Ok(values) = <&Quants>::try_from(values) else {
        unreachable!("the caller cuts blocks of 256")
    };
    match kind {
        GgmlType::Q4_K => write_affine(values, bytes, 15.0),
        GgmlType::Q5_K => write_affine(values, bytes, 31.0),
        _ => write_q6(values, bytes),
    }
}

/// The nearest integer, ties to even: beyond 2^23 an `f32` has no fraction.
fn nearest(value: f32) -> f32 {
    const LARGE: f32 = 12_582_912.0; // 1.5 * 2^23
    (value + LARGE) - LARGE
}

/// The sum of `term(i)`, eight sums side by side.
fn sum<const N: usize>(term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    for start in (0..N).step_by(8) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    sums.iter().sum()
}

fn ratio(numerator: f32, denominator: f32) -> f32 {
    if denominator > 0.0 {
        numerator / denominator
    } else {
        0.0
    }
}

// `Q4_K` and `Q5_K`: 8 groups of 32, `scale * quant - offset`.

const GROUP: usize = 32;
const NUM_GROUPS: usize = BLOCK / GROUP;
/// The greatest scale and offset of a group, in steps of the block's.
const MOST_STEPS: f32 = 63.0;
/// Scales tried on either side of the plain one, in tenths of a quant.
const GRID: i16 = 10;

/// A block's integers and scales, with what they miss.
#[derive(Clone, Copy)]
struct Affine {
    scale: f32,
    offset: f32,
    steps: [(f32, f32); NUM_GROUPS],
    quants: Quants,
    error: f32,
}

fn write_affine(values: &Quants, bytes: &mut [u8], most: f32) {
    let weights = affine_weights(values);
    let groups = values.as_chunks::<GROUP>().0.iter().zip(weights.as_chunks::<GROUP>().0);
    let mut fits = [(0.0, 0.0); NUM_GROUPS];
    for (fit, (values, weights)) in fits.iter_mut().zip(groups) {
        *fit = fit_group(values, weights, most);
    }
    let greatest = |part: fn(&(f32, f32)) -> f32| fits.iter().map(part).fold(0.0, f32::max) / MOST_STEPS;
    let first = affine(
        values,
        &weights,
        (greatest(|fit| fit.0), greatest(|fit| fit.1)),
        &fits,
        most,
    );
    let second = affine(values, &weights, refitted(values, &weights, &first), &fits, most);
    let best = if second.error < first.error { second } else { first };
    pack_affine(&best, bytes, most);
}

fn affine_weights(values: &Quants) -> Quants {
    let mut weights = [0.0; BLOCK];
    let groups = values.as_chunks::<GROUP>().0.iter();
    for (values, weights) in groups.zip(weights.as_chunks_mut::<GROUP>().0) {
        let size = (sum::<GROUP>(|i| values[i] * values[i]) / GROUP as f32).sqrt();
        for (weight, value) in weights.iter_mut().zip(values) {
            *weight = size + value.abs();
        }
    }
    weights
}

/// The scale and offset of a group by themselves; the offset is not negative.
fn fit_group(values: &[f32; GROUP], weights: &[f32; GROUP], most: f32) -> (f32, f32) {
    let least = values.iter().copied().fold(0.0, f32::min);
    let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let width = greatest - least;
    if width <= 0.0 {
        return (0.0, -least);
    }
    let (weight, first) = (sum::<GROUP>(|i| weights[i]), sum::<GROUP>(|i| weights[i] * values[i]));
    let mut best = (f32::INFINITY, (width / most, -least));
    for tenth in -GRID..=GRID {
        let inverse = (most + f32::from(tenth) / 10.0) / width;
        let mut quants = [0.0; GROUP];
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = nearest(((value - least) * inverse).min(most));
        }
        let linear = sum::<GROUP>(|i| weights[i] * quants[i]);
        let square = sum::<GROUP>(|i| weights[i] * quants[i] * quants[i]);
        let mixed = sum::<GROUP>(|i| weights[i] * quants[i] * values[i]);
        let determinant = weight * square - linear * linear;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit = (
            (weight * mixed - first * linear) / determinant,
            (linear * mixed - square * first) / determinant,
        );
        if fit.1 < 0.0 {
            fit = (ratio(mixed, square), 0.0);
        }
        let error = sum::<GROUP>(|i| {
            let miss = values[i] - (fit.0 * quants[i] - fit.1);
            weights[i] * miss * miss
        });
        if error < best.0 && fit.0 > 0.0 {
            best = (error, fit);
        }
    }
    best.1
}

/// The best integers for these scales of the block, which are rounded to binary16 first.
fn affine(
    values: &Quants,
    weights: &Quants,
    (scale, offset): (f32, f32),
    fits: &[(f32, f32); NUM_GROUPS],
    most: f32,
) -> Affine {
    let (scale, offset) = (F16::from_f32(scale).to_f32(), F16::from_f32(offset).to_f32());
    let mut made = Affine {
        scale,
        offset,
        steps: [(0.0, 0.0); NUM_GROUPS],
        quants: [0.0; BLOCK],
        error: 0.0,
    };
    for (group, fit) in fits.iter().enumerate() {
        let place = group * GROUP..(group + 1) * GROUP;
        let mut least = f32::INFINITY;
        for (scale_steps, offset_steps) in neighbours(ratio(fit.0, scale), ratio(fit.1, offset)) {
            let (d, m) = (scale * scale_steps, offset * offset_steps);
            let inverse = ratio(1.0, d);
            let mut quants = [0.0; GROUP];
            let mut error = 0.0;
            for (part, quants) in quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let start = place.start + 8 * part;
                for (lane, quant) in quants.iter_mut().enumerate() {
                    *quant = nearest(((values[start + lane] + m) * inverse).clamp(0.0, most));
                }
            }
            error += sum::<GROUP>(|i| {
                let miss = values[place.start + i] - (d * quants[i] - m);
                weights[place.start + i] * miss * miss
            });
            if error < least {
                least = error;
                made.steps[group] = (scale_steps, offset_steps);
                made.quants[place.clone()].copy_from_slice(&quants);
            }
        }
        made.error += least;
    }
    made
}

/// The nearest pair of steps, and those one step from it.
fn neighbours(scale: f32, offset: f32) -> impl Iterator<Item = (f32, f32)> {
    let near = |steps: f32| {
        let middle = nearest(steps.clamp(0.0, MOST_STEPS));
        [middle, (middle - 1.0).max(0.0), (middle + 1.0).min(MOST_STEPS)]
    };
    let offsets = near(offset);
    near(scale)
        .into_iter()
        .flat_map(move |scale| offsets.map(|offset| (scale, offset)))
}

/// The block's scales that fit its integers best; those it has where there is no one best.
fn refitted(values: &Quants, weights: &Quants, made: &Affine) -> (f32, f32) {
    let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0f64, 0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for i in 0..BLOCK {
        let (scale, offset) = made.steps[i / GROUP];
        let (weight, value) = (f64::from(weights[i]), f64::from(values[i]));
        let (a, b) = (f64::from(scale * made.quants[i]), -f64::from(offset));
        aa += weight * a * a;
        ab += weight * a * b;
        bb += weight * b * b;
        ax += weight * a * value;
        bx += weight * b * value;
    }
    let determinant = aa * bb - ab * ab;
    if determinant > 0.0 {
        let scale = (bb * ax - ab * bx) / determinant;
        let offset = (aa * bx - ab * ax) / determinant;
        if scale > 0.0 && offset >= 0.0 {
            return (scale as f32, offset as f32);
        }
    }
    (made.scale, made.offset)
}

/// `d dmin scales[12] (high[32]) quants[128]`, as [`super::super::k_quants`] reads them.
fn pack_affine(made: &Affine, bytes: &mut [u8], most: f32) {
    put_f16(bytes, made.scale);
    put_f16(&mut bytes[2..], made.offset);
    for g in 0..4 {
        let [(scale, offset), (later_scale, later_offset)] =
            [g, g + 4].map(|g| (made.steps[g].0 as u8, made.steps[g].1 as u8));
        bytes[4 + g] = scale | (later_scale >> 4) << 6;
        bytes[8 + g] = offset | (later_offset >> 4) << 6;
        bytes[12 + g] = (later_scale & 0x0f) | (later_offset & 0x0f) << 4;
    }
    let rest = &mut bytes[16..];
    rest.fill(0);
    let quants = if most > 15.0 {
        let (high, quants) = rest.split_at_mut(32);
        for (i, quant) in made.quants.iter().enumerate() {
            high[i % 32] |= ((*quant as u8) >> 4) << (i / 32);
        }
        quants
    } else {
        rest
    };
    for (i, quant) in made.quants.iter().enumerate() {
        quants[i / 64 * 32 + i % 32] |= ((*quant as u8) & 0x0f) << (i % 64 / 32 * 4);
    }
}

// `Q6_K`: 16 groups of 16, `scale * quant`.

const SMALL: usize = 16;
const NUM_SMALL: usize = BLOCK / SMALL;

/// A block's integers and scale, with what they miss.
#[derive(Clone, Copy)]
struct Linear {
    scale: f32,
    steps: [f32; NUM_SMALL],
    quants: Quants,
    error: f32,
}

fn write_q6(values: &Quants, bytes: &mut [u8]) {
    let groups = values.as_chunks::<SMALL>().0;
    let mut fits = [0.0f32; NUM_SMALL];
    for (fit, values) in fits.iter_mut().zip(groups) {
        *fit = fit_small(values);
    }
    let greatest = fits
        .iter()
        .fold(0.0f32, |peak, fit| if fit.abs() > peak.abs() { *fit } else { peak });
    let first = linear(groups, greatest / -128.0, &fits);
    let second = linear(groups, rescaled(values, &first), &fits);
    let best = if second.error < first.error { second } else { first };
    pack_q6(&best, bytes);
}

/// The scale of a group by itself, of either sign: that of largest magnitude is -32 or 31.
fn fit_small(values: &[f32; SMALL]) -> f32 {
    let peak = values.iter().fold(
        0.0f32,
        |peak, value| if value.abs() > peak.abs() { *value } else { peak },
    );
    let (mut most, mut best) = (0.0f32, 0.0f32);
    for tenth in -9i16..=9 {
        let inverse = -(32.0 + f32::from(tenth) / 10.0) / peak;
        if !inverse.is_finite() {
            return 0.0;
        }
        let mut quants = [0.0; SMALL];
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = nearest((value * inverse).clamp(-32.0, 31.0));
        }
        let weight = |i: usize| values[i] * values[i];
        let mixed = sum::<SMALL>(|i| weight(i) * quants[i] * values[i]);
        let square = sum::<SMALL>(|i| weight(i) * quants[i] * quants[i]);
        let gained = ratio(mixed * mixed, square);
        if gained > most {
            (most, best) = (gained, mixed / square);
        }
    }
    best
}

fn linear(groups: &[[f32; SMALL]], scale: f32, fits: &[f32; NUM_SMALL]) -> Linear {
    let scale = F16::from_f32(scale).to_f32();
    let mut made = Linear {
        scale,
        steps: [0.0; NUM_SMALL],
        quants: [0.0; BLOCK],
        error: 0.0,
    };
    for (group, (values, fit)) in groups.iter().zip(fits).enumerate() {
        let middle = if scale == 0.0 {
            0.0
        } else {
            nearest((fit / scale).clamp(-128.0, 127.0))
        };
        let mut least = f32::INFINITY;
        for steps in [middle, (middle - 1.0).max(-128.0), (middle + 1.0).min(127.0)] {
            let d = scale * steps;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            let mut quants = [0.0; SMALL];
            for (quant, value) in quants.iter_mut().zip(values) {
                *quant = nearest((value * inverse).clamp(-32.0, 31.0));
            }
            let error = sum::<SMALL>(|i| {
                let miss = values[i] - d * quants[i];
                values[i] * values[i] * miss * miss
            });
            if error < least {
                least = error;
                made.steps[group] = steps;
                made.quants[group * SMALL..(group + 1) * SMALL].copy_from_slice(&quants);
            }
        }
        made.error += least;
    }
    made
}

fn rescaled(values: &Quants, made: &Linear) -> f32 {
    let (mut square, mut mixed) = (0.0f64, 0.0f64);
    for (i, value) in values.iter().enumerate() {
        let (value, whole) = (f64::from(*value), f64::from(made.steps[i / SMALL] * made.quants[i]));
        square += value * value * whole * whole;
        mixed += value * value * whole * value;
    }
    if square > 0.0 {
        (mixed / square) as f32
    } else {
        made.scale
    }
}

/// `low[128] high[64] scales[16] d`.
fn pack_q6(made: &Linear, bytes: &mut [u8]) {
    bytes[..192].fill(0);
    for (i, quant) in made.quants.iter().enumerate() {
        let quant = (*quant + 32.0) as u8;
        bytes[i / 128 * 64 + i % 64] |= (quant & 0x0f) << (i % 128 / 64 * 4);
        bytes[128 + i / 128 * 32 + i % 32] |= (quant >> 4) << (i % 128 / 32 * 2);
    }
    for (byte, steps) in bytes[192..208].iter_mut().zip(made.steps) {
        *byte = (steps as i8).cast_unsigned();
    }
    put_f16(&mut bytes[208..], made.scale);
}
