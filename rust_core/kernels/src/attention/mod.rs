//! Causal attention over paged key-value memory.
//!
//! Knows blocks and rows, not models or requests: the caller owns the memory, says which page holds which
//! sixteen tokens, and splits the work over sequences, heads and runs of query tokens as it likes.
//!
//! A query's result is the same bit for bit however the work is split, wherever its blocks lie, and on every
//! instruction set:
//! - a score is one chain of fused multiply-adds over the head's dimensions (lanes are sixteen keys);
//! - with keys and values in bfloat16, queries and weights (also in their sum) are rounded to it, and a chain takes
//!   neighbours two by two, the second of each two first;
//! - in dual chunk attention a key's score is by the query that was turned for the key's chunk;
//! - a key's scale, where it has one, multiplies its score, and a value's scale its weight;
//! - what a table has for a key's distance is added to its scaled and capped score; a slope by one fused multiply-add;
//! - positions are taken in chunks of [`CHUNK_TOKENS`], counted from position 0; of each a row has the greatest score,
//!   the sum of the weights `e^(score - greatest)` and the outputs;
//! - a chunk's sum runs in sixteen lanes, lane = position mod 16, added up by one fixed tree;
//! - a chunk's output is one chain over its keys in order (lanes are dimensions), or where keys hold the values one sum in
//!   sixteen lanes, as the weights' is;
//! - chunks that the row sees are taken in in ascending order, sums and outputs by `fma(new, e^(its greatest - both),
//!   old * e^(its greatest - both))`; at the end outputs are multiplied by `1 / sum`;
//! - attention to positions that were picked is attention to a text of these alone, in their order;
//! - a position's rating is one chain over the index heads, of weights and scores that are not below 0.

mod args;
mod bias;
mod bidirectional;
mod dual;
mod index;
mod kernel;
mod latent;
mod layout;
mod partial;
mod picked;
mod rows;
mod scalar;
mod stored;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(test)]
mod tests;

pub use args::AttentionArgs;
pub use bias::{HeadsBias, ScoreBias, ScoreBiasError};
pub use bidirectional::{
    PartArgs, StoredHeads, WholeArgs, WholeScratch, attend_part, attend_whole, distance_row_len, part_scratch_len,
    whole_scratch_len,
};
pub use dual::EarlierChunks;
pub use index::{pick, rate};
pub use layout::{BLOCK_TOKENS, KvLayout, KvType, LayerBlocks, expect_kv, store_kv};
pub use picked::{attend_picked, attend_picked_chunk};
pub use rows::{RowPages, RowSequence, attend_rows};

use partial::Partials;

use crate::isa::Isa;
use crate::lanes::LANES;

/// Positions computed by themselves and then taken in: what one sequence's attention can be split into.
pub const CHUNK_TOKENS: usize = 256;

/// Memory that attention works in; reuse one per thread.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    /// Scores, then weights: `[block][row][16]`.
    scores: Vec<Line>,
    /// Transposed queries, for each group of rows `[head_dim][row]`.
    queries: Vec<Line>,
    /// What a group's rows have of a chunk.
    chunk: Vec<Line>,
    /// What all rows have of the chunks so far.
    whole: Vec<Line>,
    /// Blocks of keys that were picked.
    picked: Vec<Line>,
    /// Which of them each block of a list of positions is.
    picked_pages: Vec<u32>,
}

/// Sixteen numbers on a cache line of their own: 512-bit accesses must not straddle two.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] [f32; LANES]);

/// A pointer to at least so many numbers.
fn reserve(lines: &mut Vec<Line>, numbers: usize) -> *mut f32 {
    let needed = numbers.div_ceil(LANES);
    if lines.len() < needed {
        lines.resize(needed, Line([0.0; LANES]));
    }
    lines.as_mut_ptr().cast()
}

/// Numbers that the results of one chunk take, for so many rows (query token and head).
pub const fn chunk_len(value_dim: usize, num_rows: usize) -> usize {
    num_rows * Partials::row_len(value_dim)
}

/// Attention of `args.num_tokens` tokens at consecutive positions, each over the positions up to its own.
///
/// # Panics
/// When the blocks do not reach the last token, there are no heads, or the window is 0.
///
/// # Safety
/// - Every block of the visible positions lies in initialised memory, laid out as `layout` says; nobody writes to the
///   visible positions meanwhile.
/// - `args.q` and `args.out` reach `num_tokens` rows of `num_query_heads_per_kv` times `head_dim`, or `value_dim`, numbers
///   at their strides; nobody else uses the rows of `out` meanwhile.
pub unsafe fn attend(isa: Isa, layout: &KvLayout, args: &AttentionArgs<'_>, scratch: &mut AttentionScratch) {
    let limit = args.check(isa, layout);
    let whole = args.nothing_seen(layout, scratch);
    let here = reserve(&mut scratch.chunk, limit * Partials::row_len(layout.value_dim()));
    let here = Partials::new(here, layout.value_dim());
    // SAFETY: the caller's promises; the scratch was reserved.
    unsafe {
        args.transpose_queries(isa, layout, limit, scratch);
        for chunk in args.chunks() {
            args.each_group(layout, limit, chunk, scratch, |group, first_row, rows| {
                group.partials = here;
                run_group(isa, group);
                let chunk = here.from(rows.start - first_row);
                whole.from(rows.start).fold(isa, chunk, rows.len());
            });
        }
        whole.finish(isa, args, layout.value_dim());
    }
}

/// Computes one of [`AttentionArgs::chunks`], to be given to [`merge_chunks`].
///
/// # Panics
/// As [`attend`].
///
/// # Safety
/// As [`attend`], but for `args.out`, which is not used; and `results` has room for
/// [`chunk_len`] numbers that nobody else uses meanwhile.
pub unsafe fn attend_chunk(
    isa: Isa,
    layout: &KvLayout,
    args: &AttentionArgs<'_>,
    chunk: usize,
    results: *mut f32,
    scratch: &mut AttentionScratch,
) {
    let limit = args.check(isa, layout);
    let results = Partials::new(results, layout.value_dim());
    // SAFETY: the caller's promises; the scratch was reserved.
    unsafe {
        args.transpose_queries(isa, layout, limit, scratch);
        args.each_group(layout, limit, chunk, scratch, |group, first_row, _| {
            group.partials = results.from(first_row);
            run_group(isa, group);
        });
    }
}

/// Makes [`attend`]'s result of those of its chunks: all that any of the tokens sees, in order, one after the other.
///
/// # Safety
/// `args.out` is as in [`attend`], and `results` holds what [`attend_chunk`] gave for each chunk.
pub unsafe fn merge_chunks(
    isa: Isa,
    layout: &KvLayout,
    args: &AttentionArgs<'_>,
    results: *const f32,
    scratch: &mut AttentionScratch,
) {
    let whole = args.nothing_seen(layout, scratch);
    // SAFETY: the caller's promises; the scratch was reserved.
    unsafe {
        for (index, chunk) in args.chunks().enumerate() {
            let results = Partials::new(
                results
                    .add(index * chunk_len(layout.value_dim(), args.num_rows()))
                    .cast_mut(),
                layout.value_dim(),
            );
            let rows = args.rows_that_see(chunk);
            whole.from(rows.start).fold(isa, results.from(rows.start), rows.len());
        }
        whole.finish(isa, args, layout.value_dim());
    }
}

/// Whether bfloat16 numbers are multiplied two at a time.
fn multiplies_pairs(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    return isa >= Isa::Avx512 && crate::lanes::avx512::has_bf16_products();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

unsafe fn run_group(isa: Isa, group: &kernel::Group<'_>) {
    // SAFETY: the caller promises what the group asks for; the set is one that the CPU has.
    unsafe {
        match isa.min(Isa::best()) {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx if group.layout.dtype == KvType::Bf16 && multiplies_pairs(isa) => {
                avx512::attend_bf16(group);
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => avx512::attend(group),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::attend(group),
            _ => scalar::attend(group),
        }
    }
}
