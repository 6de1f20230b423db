//! The right-hand side of a matmul: a batch of token vectors, as 8-bit integers, as `f32`, or as both.
//!
//! Quantisation per token and block of 32 columns: `q = round_half_even(x * (1 / scale))`, where [`scale_of`] makes
//! the usual numbers of the block fill 8 bits. Its outliers get as many as they need, `q = 128 * high + low`: their
//! quads of four columns are [wide](ActivationBlock::wide_quads), and kernels multiply the upper parts of wide quads
//! alone. With 8 bits for all, outliers leave the rest too few steps (`docs/explanation/log.md`); with 15 bits for all,
//! products take twice the time. The rule is exact, so the result depends on nothing but the block's 32 numbers. A
//! block whose largest magnitude is below [`SMALLEST`] counts as zero (its inverse would overflow); one with an
//! infinity or a NaN gets a NaN scale, which makes every output of its token NaN instead of a plausible wrong number.

use std::ops::Range;

use crate::isa::Isa;
use crate::pack::BLOCK_COLS;
use crate::pack::memory::Memory;

/// Tokens of room past the batch, so that a whole AMX tile may be read from any token on.
const SPARE_TOKENS: usize = 16;
/// Largest magnitudes below this are taken for zero.
pub(crate) const SMALLEST: f32 = 1e-30;
/// Bits of the positive infinity; magnitudes from here on are not finite.
pub(crate) const INFINITY_BITS: u32 = 0x7f80_0000;

/// 32 quantised activations of one token, with all that kernels need of them.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ActivationBlock {
    /// The integers in -127..=127 themselves; the lower parts of the others, in -64..=63.
    pub(crate) low: [i8; BLOCK_COLS],
    /// The upper parts of the integers, in -127..=127: zero where `low` is the integer.
    pub(crate) high: [i8; BLOCK_COLS],
    /// What an integer is multiplied by.
    pub(crate) scale: f32,
    /// `scale` times the sum of the integers.
    pub(crate) sum: f32,
    /// -8 times the sum of the integers: removes the offset of 4-bit weights.
    pub(crate) minus_8_sum: i32,
    /// -128 times the sum of the integers: removes the offset of 8-bit weights.
    pub(crate) minus_128_sum: i32,
    /// The negated sums of the first and the last 16 integers.
    pub(crate) minus_half_sums: [i32; 2],
    /// Bit `j` is set if quad `j`, four columns, has upper parts that are not zero.
    pub(crate) wide_quads: u32,
}

const _: () = assert!(size_of::<ActivationBlock>() == 96);

/// Bits of the lower part of an integer.
pub(crate) const LOW_BITS: u32 = 7;
/// Magnitude of the largest integer without an upper part.
pub(crate) const LARGEST_NARROW: i32 = 127;
/// Magnitude of the largest integer: the largest whose upper part fits 8 bits.
pub(crate) const LARGEST: f32 = (LARGEST_NARROW << LOW_BITS) as f32;
/// A quad whose largest magnitude is this many times that of the next smaller one holds outliers.
pub(crate) const OUTLIER_RATIO: f32 = 2.0;

/// Blocks that are quantised together at most: as many as a vector has lanes.
pub(crate) const AT_ONCE: usize = 16;

/// A block to quantise: where its numbers are, and where they go.
#[derive(Clone, Copy)]
pub(crate) struct Unquantised {
    pub(crate) numbers: *const [f32; BLOCK_COLS],
    pub(crate) block: *mut ActivationBlock,
}

impl Unquantised {
    const NONE: Self = Self {
        numbers: std::ptr::null(),
        block: std::ptr::null_mut(),
    };
}

/// The scale of a block, from the three largest of the different values that its quads' largest magnitudes have (zero
/// where there are fewer): up to two values may be outliers, for which 8 bits need not suffice.
#[inline(always)]
pub(crate) fn scale_of(bits: [u32; 3]) -> f32 {
    let [largest, second, third] = bits.map(f32::from_bits);
    let mut usual = largest;
    for next in [second, third] {
        if next > 0.0 && usual > OUTLIER_RATIO * next {
            usual = next;
        }
    }
    (usual * (1.0 / LARGEST_NARROW as f32)).max(largest * (1.0 / LARGEST))
}

/// The quads of the columns whose bits are set.
#[inline(always)]
pub(crate) fn quads_of(columns: u32) -> u32 {
    let any = (columns | columns >> 1 | columns >> 2 | columns >> 3) & 0x1111_1111;
    let pairs = (any | any >> 3) & 0x0303_0303;
    let fours = (pairs | pairs >> 6) & 0x000f_000f;
    (fours | fours >> 12) & 0xff
}

impl ActivationBlock {
    /// Fills in everything but the integers; a bit of `wide` is set for each column with an upper part.
    #[inline(always)]
    pub(crate) fn finish(&mut self, scale: f32, half_sums: [i32; 2], wide: u32) {
        let [low, high] = half_sums;
        let sum = low + high;
        self.scale = scale;
        self.sum = scale * sum as f32;
        self.minus_8_sum = -8 * sum;
        self.minus_128_sum = -128 * sum;
        self.minus_half_sums = [-low, -high];
        self.wide_quads = quads_of(wide);
    }

    /// The block for numbers that are all zero (`scale` 0) or not all finite (`scale` NaN).
    #[inline(always)]
    pub(crate) fn degenerate(&mut self, amax_bits: u32) {
        (self.high, self.low) = ([0; BLOCK_COLS], [0; BLOCK_COLS]);
        let scale = if amax_bits < INFINITY_BITS { 0.0 } else { f32::NAN };
        self.finish(scale, [0, 0], 0);
    }

    /// Whether [`Self::degenerate`] applies.
    #[inline(always)]
    pub(crate) fn is_degenerate(amax_bits: u32) -> bool {
        !(SMALLEST.to_bits()..INFINITY_BITS).contains(&amax_bits)
    }
}

/// A reusable batch of token vectors.
///
/// Threads write different rows at once with [`Self::write_row`]; a stage must end between writing and
/// reading. Nothing is shared between rows, so the batch a token is in cannot change its numbers.
#[derive(Debug, Default)]
pub struct Activations {
    tokens: usize,
    cols: usize,
    quantised: Option<Memory>,
    dense: Option<Memory>,
    has_quantised: bool,
    has_dense: bool,
}

impl Activations {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `tokens` vectors of `cols` numbers, as integers if `quantised`, as `f32` if `dense`.
    ///
    /// The content is unspecified until written. Memory only grows, so a buffer can serve every step.
    ///
    /// # Panics
    /// If `quantised` and `cols` is not a multiple of 32, or the size cannot be addressed.
    pub fn resize(&mut self, tokens: usize, cols: usize, quantised: bool, dense: bool) {
        assert!(
            !quantised || cols.is_multiple_of(BLOCK_COLS),
            "{cols} columns are not whole blocks of {BLOCK_COLS}"
        );
        (self.tokens, self.cols) = (tokens, cols);
        (self.has_quantised, self.has_dense) = (quantised, dense);
        let padded = tokens
            .checked_add(SPARE_TOKENS)
            .expect("a batch that fits the address space");
        if quantised {
            let bytes = self.block_stride().checked_mul(size_of::<ActivationBlock>());
            grow(&mut self.quantised, padded, bytes);
        }
        if dense {
            let bytes = self.dense_stride().checked_mul(size_of::<f32>());
            grow(&mut self.dense, padded, bytes);
        }
    }

    /// Vectors in the batch.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Numbers in a vector.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let held = |memory: &Option<Memory>| memory.as_ref().map_or(0, Memory::len);
        held(&self.quantised) + held(&self.dense)
    }

    /// Writes the vector of `token` in the forms the batch has.
    ///
    /// # Safety
    /// `isa` must be available on this CPU. Nobody else may write this row or read it at the same time.
    ///
    /// # Panics
    /// If there is no such token, or `x` has not one number per column.
    pub unsafe fn write_row(&self, isa: Isa, token: usize, x: &[f32]) {
        assert_eq!(x.len(), self.cols, "numbers for the columns");
        let origin = x.as_ptr().wrapping_sub(token * self.cols);
        // SAFETY: by contract.
        unsafe { self.write_tile(isa, token..token + 1, 0..self.cols, origin, self.cols) }
    }

    /// Writes some columns of some tokens: those of column `c` of token `t` are at `origin[t * stride + c]`. In a
    /// quantised batch the columns are whole blocks of 32.
    ///
    /// # Safety
    /// `isa` must be available on this CPU, and the numbers be there. Nobody else may write these columns of these
    /// tokens or read them at the same time.
    ///
    /// # Panics
    /// If there is no such token or column, or a quantised block would be written in part.
    pub unsafe fn write_tile(
        &self,
        isa: Isa,
        tokens: Range<usize>,
        columns: Range<usize>,
        origin: *const f32,
        stride: usize,
    ) {
        assert!(tokens.end <= self.tokens, "tokens {tokens:?} of {}", self.tokens);
        assert!(columns.end <= self.cols, "column past the batch");
        let is_whole = columns.start.is_multiple_of(BLOCK_COLS) && columns.len().is_multiple_of(BLOCK_COLS);
        assert!(
            !self.has_quantised || is_whole,
            "part of a block of {BLOCK_COLS} columns"
        );
        let numbers = |token: usize, column: usize| origin.wrapping_add(token * stride + column);
        if self.has_dense {
            for token in tokens.clone() {
                // SAFETY: the row lies inside the buffer and is ours alone by contract.
                unsafe {
                    let row = self.dense_row(token).cast_mut().add(columns.start);
                    row.copy_from_nonoverlapping(numbers(token, columns.start), columns.len());
                }
            }
        }
        if self.has_quantised {
            let mut blocks = tokens.flat_map(|token| {
                let columns = columns.clone().step_by(BLOCK_COLS);
                columns.map(move |column| (token, column))
            });
            let mut pairs = [const { Unquantised::NONE }; AT_ONCE];
            loop {
                let mut count = 0;
                for (pair, (token, column)) in pairs.iter_mut().zip(blocks.by_ref()) {
                    let block = self.blocks_of(token).cast_mut().wrapping_add(column / BLOCK_COLS);
                    *pair = Unquantised {
                        numbers: numbers(token, column).cast(),
                        block,
                    };
                    count += 1;
                }
                if count == 0 {
                    break;
                }
                // SAFETY: as above; the buffer was zeroed when allocated.
                unsafe { super::quantise(isa, &pairs[..count]) };
            }
        }
    }

    /// Whether the integers are there.
    pub(crate) fn has_quantised(&self) -> bool {
        self.has_quantised
    }

    /// Whether the `f32` numbers are there.
    pub(crate) fn has_dense(&self) -> bool {
        self.has_dense
    }

    /// Blocks from one token to the next: odd, lest the tokens of a tile share their cache sets.
    #[inline]
    pub(crate) fn block_stride(&self) -> usize {
        (self.cols / BLOCK_COLS) | 1
    }

    /// Numbers from one dense token to the next: an odd number of cache lines.
    #[inline]
    pub(crate) fn dense_stride(&self) -> usize {
        (self.cols.div_ceil(16) | 1) * 16
    }

    /// The first block of a token of a quantised batch.
    #[inline]
    pub(crate) fn blocks_of(&self, token: usize) -> *const ActivationBlock {
        let memory = self.quantised.as_ref().expect("a quantised batch");
        let start = memory.as_ptr().cast::<ActivationBlock>();
        start.wrapping_add(token * self.block_stride())
    }

    /// The first number of a token of a dense batch.
    #[inline]
    pub(crate) fn dense_row(&self, token: usize) -> *const f32 {
        let memory = self.dense.as_ref().expect("a dense batch");
        let start = memory.as_ptr().cast::<f32>();
        start.wrapping_add(token * self.dense_stride())
    }
}

fn grow(memory: &mut Option<Memory>, rows: usize, row_bytes: Option<usize>) {
    let bytes = row_bytes
        .and_then(|row| row.checked_mul(rows))
        .expect("a batch that fits the address space");
    if memory.as_ref().is_none_or(|held| held.len() < bytes) {
        // The old content is not needed: free it first.
        *memory = None;
        *memory = Some(Memory::zeroed(bytes).expect("a batch that fits the address space"));
    }
}

#[cfg(test)]
mod tests;
