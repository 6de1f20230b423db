//! How numbers lie in key-value memory, and how they are read, factor by factor, into a chain.

use std::ops::Range;

use crate::lanes::{Bf16, F16, LANES, Lanes};

/// What lies in key-value memory at one dimension of a key, or of a value: a number, or two neighbours in one.
pub(super) trait Stored: Copy {
    /// Numbers in one: neighbouring dimensions of a key, or positions of a value.
    const WIDTH: usize = 1;
    /// Factors with which they are taken into a chain, one after the other.
    const PARTS: usize = 1;
    /// Registers of sixteen in a cache line.
    const PER_LINE: usize = 64 / (LANES * size_of::<Self>());
    /// Whether each token's numbers are to be multiplied by a scale.
    const IS_SCALED: bool = false;
    /// Part `part` of sixteen.
    unsafe fn load<L: Lanes>(source: *const Self, part: usize) -> L;
    /// Takes a part of sixteen, with its factor, into a chain.
    #[inline(always)]
    unsafe fn add<L: Lanes>(sum: L, factor: L, line: L) -> L {
        factor.fma(line, sum)
    }
    /// Writes a block's weights as factors of the values; gives what was written.
    #[inline(always)]
    unsafe fn store_weights<L: Lanes>(weights: L, target: *mut f32) -> L {
        // SAFETY: the caller promises sixteen writable numbers.
        unsafe { weights.store(target) };
        weights
    }
    /// Where keys hold the values: sixteen positions' numbers of [`Self::WIDTH`] dimensions, as they lie.
    #[inline(always)]
    unsafe fn load_dims<L: Lanes>(source: *const Self) -> L {
        // SAFETY: the caller promises sixteen and the set of `L`.
        unsafe { Self::load(source, 0) }
    }
    /// The same, as they go with a register of weights.
    #[inline(always)]
    fn by_position<L: Lanes>(dims: L) -> L {
        dims
    }
    /// Writes a block's weights as a register that goes with [`Self::by_position`]; gives what was written.
    #[inline(always)]
    unsafe fn store_lanes<L: Lanes>(weights: L, target: *mut f32) -> L {
        // SAFETY: the caller promises sixteen writable numbers.
        unsafe { weights.store(target) };
        weights
    }
    /// Takes weighted dimensions into sums.
    #[inline(always)]
    unsafe fn add_lanes<L: Lanes>(sums: L, weights: L, dims: L) -> L {
        weights.fma(dims, sums)
    }
    /// What sixteen registers have summed: a number for each dimension of each, in order.
    #[inline(always)]
    fn sums<L: Lanes>(each: [L; LANES]) -> [L; 2] {
        [L::sums(each), each[0].all(0.0)]
    }
    /// A slot's weight among those that were written.
    #[inline(always)]
    unsafe fn weight(weights: *const f32, slot: usize) -> f32 {
        // SAFETY: the caller promises a block's weights.
        unsafe { *weights.add(slot) }
    }
    /// Number `which` of it.
    fn widen(self, which: usize) -> f32;
}

/// Two bfloat16 numbers that the CPU multiplies at once.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16Pair(u32);

/// Two bfloat16 numbers that are widened and multiplied one after the other, in the order of [`Bf16Pair`]'s product.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Bf16Halves(u32);

impl Stored for Bf16Pair {
    const WIDTH: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const Self, _: usize) -> L {
        // SAFETY: the caller promises sixteen and the set of `L`.
        unsafe { L::load(source.cast()) }
    }
    #[inline(always)]
    unsafe fn add<L: Lanes>(sum: L, factor: L, line: L) -> L {
        // SAFETY: the caller promises a CPU that has the products.
        unsafe { factor.fma_bf16_pairs(line, sum) }
    }
    #[inline(always)]
    unsafe fn store_weights<L: Lanes>(weights: L, target: *mut f32) -> L {
        // SAFETY: the caller promises room for sixteen numbers twice as wide; the value proves the set of `L`.
        unsafe {
            weights.without_tiny().store_normal_bf16(target.cast());
            L::load_bf16(target.cast())
        }
    }
    #[inline(always)]
    unsafe fn load_dims<L: Lanes>(source: *const Self) -> L {
        // SAFETY: the caller promises sixteen and the set of `L`.
        unsafe { L::load(source.cast()) }
    }
    #[inline(always)]
    fn by_position<L: Lanes>(dims: L) -> L {
        dims.unzip_halves()
    }
    #[inline(always)]
    unsafe fn store_lanes<L: Lanes>(weights: L, target: *mut f32) -> L {
        // SAFETY: the caller promises room for sixteen numbers twice as wide, and the products' set.
        unsafe {
            for half in 0..2 {
                weights
                    .without_tiny()
                    .store_normal_bf16(target.cast::<Bf16>().add(half * LANES));
            }
            L::load_bf16(target.cast())
        }
    }
    #[inline(always)]
    unsafe fn add_lanes<L: Lanes>(sums: L, weights: L, dims: L) -> L {
        // SAFETY: the caller promises a CPU that has the products.
        unsafe { weights.fma_bf16_pairs(dims, sums) }
    }
    #[inline(always)]
    fn sums<L: Lanes>(each: [L; LANES]) -> [L; 2] {
        L::half_sums(each)
    }
    #[inline(always)]
    unsafe fn weight(weights: *const f32, slot: usize) -> f32 {
        // SAFETY: the caller promises a block's weights.
        unsafe { (*weights.cast::<Bf16>().add(slot)).to_f32() }
    }
    #[inline(always)]
    fn widen(self, which: usize) -> f32 {
        Bf16((self.0 >> (16 * which)) as u16).to_f32()
    }
}

impl Stored for Bf16Halves {
    const WIDTH: usize = 2;
    const PARTS: usize = 2;
    #[inline(always)]
    unsafe fn load<L: Lanes>(source: *const Self, part: usize) -> L {
        // SAFETY: the caller promises sixteen and the set of `L`.
        let pairs = unsafe { L::load(source.cast()) };
        if part == 0 {
            pairs.upper_bf16()
        } else {
            pairs.lower_bf16()
        }
    }
    #[inline(always)]
    unsafe fn store_weights<L: Lanes>(weights: L, target: *mut f32) -> L {
        // SAFETY: the caller promises room for sixteen numbers twice as wide; the value proves the set of `L`.
        unsafe {
            weights.without_tiny().store_bf16(target.cast());
            let rounded = L::load_bf16(target.cast());
            rounded.store(target);
            rounded
        }
    }
    #[inline(always)]
    unsafe fn load_dims<L: Lanes>(source: *const Self) -> L {
        // SAFETY: the caller promises sixteen and the set of `L`.
        unsafe { L::load(source.cast()) }
    }
    #[inline(always)]
    fn by_position<L: Lanes>(dims: L) -> L {
        dims.unzip_halves()
    }
    #[inline(always)]
    unsafe fn store_lanes<L: Lanes>(weights: L, target: *mut f32) -> L {
        // SAFETY: the caller promises room for sixteen numbers twice as wide.
        unsafe {
            for half in 0..2 {
                weights
                    .without_tiny()
                    .store_bf16(target.cast::<Bf16>().add(half * LANES));
            }
            L::load_bf16(target.cast())
        }
    }
    #[inline(always)]
    unsafe fn add_lanes<L: Lanes>(sums: L, weights: L, dims: L) -> L {
        let upper = weights.upper_bf16().fma(dims.upper_bf16(), sums);
        weights.lower_bf16().fma(dims.lower_bf16(), upper)
    }
    #[inline(always)]
    fn sums<L: Lanes>(each: [L; LANES]) -> [L; 2] {
        L::half_sums(each)
    }
    #[inline(always)]
    fn widen(self, which: usize) -> f32 {
        Bf16Pair(self.0).widen(which)
    }
}

/// Which of a block's or a row's factors goes with part `part` of what is at `index`: the last number's comes first.
#[inline(always)]
pub(super) fn factor_index<S: Stored>(index: usize, part: usize) -> usize {
    index * S::PARTS + S::PARTS - 1 - part
}

/// How a type of [`KvType`] is read.
macro_rules! stored {
    ($number:ty, $load:ident, $widen:expr $(, $is_scaled:ident)?) => {
        impl Stored for $number {
                    $(const IS_SCALED: bool = $is_scaled;)?
            #[inline(always)]
            unsafe fn load<L: Lanes>(source: *const Self, _: usize) -> L {
                // SAFETY: the caller promises sixteen numbers and the set of `L`.
                unsafe { L::$load(source) }
            }
            #[inline(always)]
            fn widen(self, _: usize) -> f32 {
                $widen(self)
            }
        }
    };
}

stored!(f32, load, std::convert::identity);
stored!(F16, load_f16, F16::to_f32);
stored!(i8, load_i8, f32::from, true);

/// Whether part `part` belongs to one of the positions that are seen.
#[inline(always)]
pub(super) fn takes_part<S: Stored>(seen: &Range<usize>, part: usize) -> bool {
    S::PARTS == 1 || seen.contains(&(seen.start / S::PARTS * S::PARTS + S::PARTS - 1 - part))
}

/// Where a lane holds two values at once, 0 for the one whose position is not seen.
#[inline(always)]
pub(super) fn only_seen<S: Stored, L: Lanes>(line: L, seen: &Range<usize>) -> L {
    match (S::WIDTH > S::PARTS && seen.len() < S::WIDTH, seen.start % S::WIDTH) {
        (false, _) => line,
        (true, 0) => line.and_bits(0x0000_ffff),
        (true, _) => line.and_bits(0xffff_0000),
    }
}

/// Positions in the order of a chain: of neighbours the last comes first.
pub(super) fn in_order<S: Stored>(positions: Range<usize>) -> impl Iterator<Item = usize> {
    let indices = positions.start / S::WIDTH..positions.end.div_ceil(S::WIDTH);
    indices
        .flat_map(|index| (index * S::WIDTH..(index + 1) * S::WIDTH).rev())
        .filter(move |position| positions.contains(position))
}
