//! The algorithm for matrix tiles: 16 tokens by 16 rows by one scale at a time.
//!
//! Tiles multiply integers only, so sums leave them once per scale; in exchange the weights of a group are
//! unpacked once for all tokens, as signed bytes in the order a tile takes. The order of the `f32` operations is
//! that of [`super::tile`], and so are the results.

#![allow(
    clippy::needless_range_loop,
    reason = "indexed loops of constant length unroll into registers"
)]

use std::cell::RefCell;

use super::simd::Simd;
use super::tile::{scales, store, unpack};
use super::{ActivationBlock, Job, tile};
use crate::pack::BLOCK_COLS;
use crate::pack::format::{Format, GROUP_ROWS, QUAD_BYTES, QUADS};
use crate::pack::memory::Memory;

/// Tokens in a tile.
pub(crate) const TILE_TOKENS: usize = 16;
/// With no more tokens than this left, half-empty tiles are slower than vectors.
const FEW_TOKENS: usize = 8;

/// A machine that multiplies matrix tiles.
///
/// # Safety
/// The methods may only run where the implementing instructions exist, `product` after `configure`.
pub(crate) unsafe trait Tiles {
    /// Prepares this thread for products over `quads` quads.
    unsafe fn configure(quads: usize);
    /// Writes `c[token][row]`, the sums over all columns of `a[token][column] * b[row][column]`: signed bytes, `a`
    /// with `a_stride` bytes from token to token, `b` as quads.
    unsafe fn product(quads: usize, a: *const i8, a_stride: usize, b: *const u8, c: &mut Sums);
    /// Gives the tile registers back.
    unsafe fn release();
}

/// Sums of a tile: `[16 tokens][16 rows]`.
#[repr(align(64))]
pub(crate) struct Sums(pub(crate) [[i32; GROUP_ROWS]; TILE_TOKENS]);

thread_local! {
    /// Memory for the group in work, kept from call to call.
    static LINES: RefCell<Option<Memory>> = const { RefCell::new(None) };
}

/// Runs a job whose weights are of the quantised format `F`; `S` has 16 lanes. `run` is given the tokens that do
/// not fill a tile.
///
/// # Safety
/// As [`super::matmul`], inside a function compiled for `S`, on a machine that has `T`.
#[inline(always)]
pub(crate) unsafe fn quantised<S: Simd, T: Tiles, F: Format>(job: &Job, run: unsafe fn(&Job)) {
    let num_tokens = job.tokens.len();
    let mut num_tiled = num_tokens / TILE_TOKENS * TILE_TOKENS;
    if num_tokens - num_tiled > FEW_TOKENS {
        num_tiled = num_tokens;
    }
    let end = job.tokens.start + num_tiled;
    // A weight takes a byte here and at least a quarter of one packed, so the size is a possible one.
    let bytes = job.w.cols() / BLOCK_COLS * QUADS * QUAD_BYTES;
    let held = LINES.take().filter(|held| held.len() >= bytes);
    let memory = held.or_else(|| Memory::zeroed(bytes)).expect("memory for a group");
    // SAFETY: by contract; `memory` has room for the quads of a group.
    unsafe {
        T::configure(F::SUB_QUADS);
        let mut group = job.groups.start;
        while group < job.groups.end && num_tiled > 0 {
            let lines = memory.as_ptr();
            unpack_group::<S, F>(job, group, lines);
            let mut first = job.tokens.start;
            while first < end {
                let count = TILE_TOKENS.min(end - first);
                quantised_tile::<S, T, F>(job, group, lines, first, count);
                first += count;
            }
            group += 1;
        }
        T::release();
        run(&Job {
            w: job.w,
            groups: job.groups.clone(),
            x: job.x,
            gathered: None,
            tokens: end..job.tokens.end,
            out: job.out,
            out_stride: job.out_stride,
        });
    }
    LINES.set(Some(memory));
}

/// Writes the group's integers as signed bytes, quad by quad.
///
/// # Safety
/// As [`quantised`]; `lines` has a line per quad.
#[inline(always)]
unsafe fn unpack_group<S: Simd, F: Format>(job: &Job, group: usize, lines: *mut u8) {
    let planes = job.w.group_ptr(group).wrapping_add(job.w.header_bytes());
    for block in 0..job.w.cols() / BLOCK_COLS {
        // SAFETY: by contract.
        unsafe {
            let quads = unpack::<S, F>(planes.add(block * F::INT_BYTES));
            for quad in 0..QUADS {
                let signed = S::minus_bytes(quads[quad], F::OFFSET as u8);
                S::store_bytes(lines.add((block * QUADS + quad) * QUAD_BYTES), signed);
            }
        }
    }
}

/// # Safety
/// As [`quantised`]; `lines` holds the group, the tokens `first..first + count` exist, 16 of them have memory.
#[inline(always)]
unsafe fn quantised_tile<S: Simd, T: Tiles, F: Format>(
    job: &Job,
    group: usize,
    lines: *const u8,
    first: usize,
    count: usize,
) {
    let header = job.w.group_ptr(group);
    let stride = job.x.block_stride() * size_of::<ActivationBlock>();
    // A token that is not ours may be in another thread's hands: its integers pass through the tile unused,
    // its scales are not touched.
    let mut x = [std::ptr::null::<ActivationBlock>(); TILE_TOKENS];
    for t in 0..TILE_TOKENS {
        x[t] = job.x.blocks_of(first + if t < count { t } else { 0 });
    }
    let mut high = Sums([[0; GROUP_ROWS]; TILE_TOKENS]);
    let mut low = Sums([[0; GROUP_ROWS]; TILE_TOKENS]);
    // SAFETY: by contract.
    unsafe {
        let mut sums = [S::zero(); TILE_TOKENS];
        for block in 0..job.w.cols() / BLOCK_COLS {
            for sub in 0..F::SUBS {
                let quad = sub * F::SUB_QUADS;
                let first = &*x[0].add(block);
                let b = lines.add((block * QUADS + quad) * QUAD_BYTES);
                T::product(F::SUB_QUADS, first.high.as_ptr().add(4 * quad), stride, b, &mut high);
                T::product(F::SUB_QUADS, first.low.as_ptr().add(4 * quad), stride, b, &mut low);
                let (scale, offset) = scales::<S, F>(header, block, sub, 0);
                for t in 0..TILE_TOKENS {
                    let x = &*x[t].add(block);
                    let ints = S::plus(
                        S::shifted(S::load_ints(high.0[t].as_ptr())),
                        S::load_ints(low.0[t].as_ptr()),
                    );
                    let product = S::mul(S::to_floats(ints), S::splat(x.scale));
                    sums[t] = S::fma(product, scale, sums[t]);
                    if F::MIN {
                        sums[t] = S::fma(S::splat(tile::x_sum::<F>(x, sub)), offset, sums[t]);
                    }
                }
            }
        }
        store::<S>(job, group * GROUP_ROWS, first, &sums[..count]);
    }
}

/// Tiles in plain Rust: what the hardware must equal.
#[cfg(test)]
pub(crate) struct Software;

// SAFETY: no instruction set is needed.
#[cfg(test)]
unsafe impl Tiles for Software {
    unsafe fn configure(quads: usize) {
        assert!([4, 8].contains(&quads));
    }

    unsafe fn product(quads: usize, a: *const i8, a_stride: usize, b: *const u8, c: &mut Sums) {
        for (token, sums) in c.0.iter_mut().enumerate() {
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = (0..4 * quads)
                    .map(|column| {
                        // SAFETY: a token has four integers per quad, a quad 16 rows of four.
                        let (a, b) = unsafe {
                            let b = b.add(column / 4 * QUAD_BYTES + 4 * row + column % 4);
                            (*a.add(token * a_stride + column), b.cast::<i8>().read())
                        };
                        i32::from(a) * i32::from(b)
                    })
                    .sum();
            }
        }
    }

    unsafe fn release() {}
}
