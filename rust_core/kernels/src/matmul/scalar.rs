//! Plain Rust, for every CPU: the reference the other instruction sets must equal.

use super::ActivationBlock;
use super::activations::{LARGEST_NARROW, LOW_BITS, Unquantised, scale_of};
use super::simd::Simd;
use super::tile::entry;
use crate::ggml::e4m3::E4M3_NUMBERS;
use crate::ggml::{bf16_to_f32, f16_to_f32, half_power};
use crate::pack::BLOCK_COLS;
use crate::pack::format::{Format, QUADS};

pub(crate) struct Scalar;

entry!(Scalar);

/// Quantises block by block.
///
/// # Safety
/// As [`super::quantise`].
pub(crate) unsafe fn quantise(blocks: &[Unquantised]) {
    for pair in blocks {
        // SAFETY: by contract.
        let (x, block) = unsafe { (&*pair.numbers, &mut *pair.block) };
        // Magnitudes compare like their bits, NaN above infinity: no order of comparison can lose one.
        let amax_bits = x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
        if ActivationBlock::is_degenerate(amax_bits) {
            block.degenerate(amax_bits);
            continue;
        }
        let scale = scale_of(largest_quads(x, amax_bits));
        let inverse = 1.0 / scale;
        let (mut half_sums, mut wide) = ([0; 2], 0);
        for (c, x) in x.iter().enumerate() {
            let quant = (x * inverse).round_ties_even() as i32;
            let is_wide = quant.abs() > LARGEST_NARROW;
            let high = if is_wide {
                (quant + (1 << (LOW_BITS - 1))) >> LOW_BITS
            } else {
                0
            };
            wide |= u32::from(is_wide) << c;
            block.high[c] = high as i8;
            block.low[c] = (quant - (high << LOW_BITS)) as i8;
            half_sums[c / 16] += quant;
        }
        block.finish(scale, half_sums, wide);
    }
}

/// The bits of the three largest of the different values that the quads' largest magnitudes have.
fn largest_quads(x: &[f32; BLOCK_COLS], amax_bits: u32) -> [u32; 3] {
    let (quads, _) = x.as_chunks::<4>();
    let maxima: [u32; QUADS] =
        std::array::from_fn(|quad| quads[quad].map(|x| x.abs().to_bits()).into_iter().max().unwrap_or(0));
    let below = |limit: u32| maxima.into_iter().filter(|bits| *bits < limit).max().unwrap_or(0);
    let second = below(amax_bits);
    [amax_bits, second, below(second)]
}

// SAFETY: no instruction set is needed.
unsafe impl Simd for Scalar {
    type Bytes = [u8; 64];
    type Ints = [i32; 16];
    type Floats = [f32; 16];

    const LANES: usize = 16;
    const MAX_TOKENS: usize = 2;
    const SIGNED_BYTES: bool = false;

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn load_bytes(at: *const u8) -> [u8; 64] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[u8; 64]>().read() }
    }

    #[inline(always)]
    unsafe fn field(bytes: [u8; 64], right: u32, mask: u8) -> [u8; 64] {
        bytes.map(|byte| (byte >> right) & mask)
    }

    #[inline(always)]
    unsafe fn field_left(bytes: [u8; 64], left: u32, mask: u8) -> [u8; 64] {
        bytes.map(|byte| (byte << left) & mask)
    }

    #[inline(always)]
    unsafe fn or(mut a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        for (a, b) in a.iter_mut().zip(b) {
            *a |= b;
        }
        a
    }

    #[inline(always)]
    unsafe fn lookup(indexes: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        indexes.map(|index| table[usize::from(index & 0x0f)])
    }

    #[inline(always)]
    unsafe fn minus_bytes(bytes: [u8; 64], offset: u8) -> [u8; 64] {
        bytes.map(|byte| byte.wrapping_sub(offset))
    }

    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, bytes: [u8; 64]) {
        // SAFETY: valid by contract.
        unsafe { to.cast::<[u8; 64]>().write(bytes) }
    }

    #[inline(always)]
    unsafe fn load_ints(at: *const i32) -> [i32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[i32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn zero_ints() -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    unsafe fn shifted(ints: [i32; 16]) -> [i32; 16] {
        ints.map(|int| int << LOW_BITS)
    }

    #[inline(always)]
    unsafe fn plus(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    unsafe fn splat_shifted(value: i32, left: u32) -> [i32; 16] {
        [value << left; 16]
    }

    #[inline(always)]
    unsafe fn quad_dots<F: Format, const T: usize>(
        weights: [u8; 64],
        quad: usize,
        x: &[*const i8; T],
        sums: &mut [[i32; 16]; T],
    ) {
        for (x, sums) in x.iter().zip(sums) {
            // SAFETY: a token's block has four integers per quad.
            let x = unsafe { x.add(4 * quad).cast::<[i8; 4]>().read() };
            for (lane, sum) in sums.iter_mut().enumerate() {
                for (k, x) in x.iter().enumerate() {
                    *sum += i32::from(weights[4 * lane + k]) * i32::from(*x);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn zero() -> [f32; 16] {
        [0.0; 16]
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> [f32; 16] {
        [value; 16]
    }

    #[inline(always)]
    unsafe fn to_floats(ints: [i32; 16]) -> [f32; 16] {
        ints.map(|int| int as f32)
    }

    #[inline(always)]
    unsafe fn mul(mut a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        for (a, b) in a.iter_mut().zip(b) {
            *a *= b;
        }
        a
    }

    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], mut c: [f32; 16]) -> [f32; 16] {
        for (lane, c) in c.iter_mut().enumerate() {
            *c = a[lane].mul_add(b[lane], *c);
        }
        c
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> [f32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[f32; 16]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u16) -> [f32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[u16; 16]>().read_unaligned() }.map(f16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u16) -> [f32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[u16; 16]>().read_unaligned() }.map(bf16_to_f32)
    }

    #[inline(always)]
    unsafe fn load_e4m3(at: *const u8) -> [f32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[u8; 16]>().read() }.map(|byte| E4M3_NUMBERS[usize::from(byte)] / 256.0)
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const i8) -> [f32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[i8; 16]>().read() }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn load_half_powers(at: *const u8) -> [f32; 16] {
        // SAFETY: valid by contract.
        unsafe { at.cast::<[u8; 16]>().read() }.map(half_power)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: [f32; 16]) {
        // SAFETY: valid by contract.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(values) }
    }
}
