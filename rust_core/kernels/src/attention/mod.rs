//! Causal attention over paged key-value memory.
//!
//! Knows blocks and rows, not models or requests: the caller owns the memory, says which page holds which
//! sixteen tokens, and splits the work over sequences, heads and runs of query tokens as it likes.
//!
//! A query's result is the same bit for bit however the work is split, wherever its blocks lie, and on every
//! instruction set:
//! - a score is one chain of fused multiply-adds over the head's dimensions (lanes are sixteen keys);
//! - a key's scale, where it has one, multiplies its score, and a value's scale its weight;
//! - the sum of the weights runs in sixteen lanes, lane = position mod 16, added up by one fixed tree;
//! - an output is one chain over the keys in order (lanes are dimensions), multiplied by `1 / sum` at the end.

mod kernel;
mod layout;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(test)]
mod tests;

pub use layout::{BLOCK_TOKENS, KvLayout, KvType, LayerBlocks, store_kv};

use crate::isa::Isa;
use crate::lanes::LANES;

/// One call's worth of attention: a run of query tokens of one sequence against one key-value head.
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// The sequence's blocks in this layer. Pages of blocks that no query token sees may be any number.
    pub kv: LayerBlocks<'a>,
    /// The key-value head.
    pub kv_head: usize,
    /// Query heads that share it.
    pub num_query_heads_per_kv: usize,
    /// Position of the first query token; its own keys and values, and all before, are stored.
    pub first_position: usize,
    /// Query tokens.
    pub num_tokens: usize,
    /// With a window of `w`, the token at `p` sees `p - w + 1 ..= p`.
    pub window: Option<usize>,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Gemma 2: scores `s` become `cap tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// The first token's row at the first of the query heads; the heads lie side by side.
    pub q: *const f32,
    /// Numbers from one token's row to the next.
    pub q_stride: usize,
    /// As `q`, for the result.
    pub out: *mut f32,
    /// Numbers from one token's row to the next.
    pub out_stride: usize,
}

/// Memory that [`attend`] works in; reuse one per thread.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    /// Scores, then weights: `[block][row][16]`.
    scores: Vec<Line>,
    /// Transposed queries, `[head_dim][row]`.
    queries: Vec<Line>,
    /// Outputs in the making, `[row][head_dim]`.
    sums: Vec<Line>,
}

/// Sixteen numbers on a cache line of their own: 512-bit accesses must not straddle two.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers")] [f32; LANES]);

impl AttentionScratch {
    /// Pointers to at least so many numbers of scores, queries and sums.
    fn reserve(&mut self, scores: usize, queries: usize, sums: usize) -> kernel::Work {
        let pointer = |lines: &mut Vec<Line>, numbers: usize| {
            let needed = numbers.div_ceil(LANES);
            if lines.len() < needed {
                lines.resize(needed, Line([0.0; LANES]));
            }
            lines.as_mut_ptr().cast::<f32>()
        };
        kernel::Work {
            scores: pointer(&mut self.scores, scores),
            queries: pointer(&mut self.queries, queries),
            sums: pointer(&mut self.sums, sums),
        }
    }
}

/// Scores held at a time, in numbers (1 MiB): longer contexts take fewer rows at once, down to one.
const MAX_SCORES: usize = 1 << 18;

/// Attention of `args.num_tokens` tokens at consecutive positions, each over the positions up to its own.
///
/// # Panics
/// When the blocks do not reach the last token, there are no heads, or the window is 0.
///
/// # Safety
/// - Every block of the visible positions lies in initialised memory, laid out as `layout` says; nobody writes to the
///   visible positions meanwhile.
/// - `args.q` and `args.out` reach `num_tokens` rows of `num_query_heads_per_kv * head_dim` numbers at their
///   strides; nobody else uses the rows of `out` meanwhile.
pub unsafe fn attend(isa: Isa, layout: &KvLayout, args: &AttentionArgs<'_>, scratch: &mut AttentionScratch) {
    if args.num_tokens == 0 {
        return;
    }
    let end = args.first_position + args.num_tokens;
    assert!(
        args.kv.len() * BLOCK_TOKENS >= end,
        "there is no block for position {}",
        end - 1
    );
    assert!(
        args.num_query_heads_per_kv > 0 && args.window != Some(0),
        "no query heads, or an empty window"
    );
    assert!(args.kv_head < layout.num_kv_heads, "no such key-value head");
    let isa = isa.min(Isa::best());
    let num_rows = args.num_tokens * args.num_query_heads_per_kv;
    let mut first_row = 0;
    while first_row < num_rows {
        let first_token = first_row / args.num_query_heads_per_kv;
        let first_block = args.visible(first_token).start / BLOCK_TOKENS;
        let limit = rows_at_once(isa, args, end.div_ceil(BLOCK_TOKENS) - first_block);
        let num_rows_here = limit.min(num_rows - first_row);
        let last_token = (first_row + num_rows_here - 1) / args.num_query_heads_per_kv;
        let blocks = first_block..args.visible(last_token).end.div_ceil(BLOCK_TOKENS);
        let work = scratch.reserve(
            blocks.len() * num_rows_here * BLOCK_TOKENS,
            layout.head_dim * num_rows_here,
            layout.head_dim * num_rows_here,
        );
        let group = kernel::Group {
            layout,
            args,
            first_row,
            num_rows: num_rows_here,
            blocks,
            work,
        };
        // SAFETY: the caller's promises are those of the group; `isa` is available; the scratch is reserved.
        unsafe { run_group(isa, &group) };
        first_row += num_rows_here;
    }
}

impl AttentionArgs<'_> {
    /// The positions that query token `token` sees.
    fn visible(&self, token: usize) -> std::ops::Range<usize> {
        let end = self.first_position + token + 1;
        end - self.window.map_or(end, |window| window.min(end))..end
    }
}

/// Rows (token and head) computed together: whole tokens when they fit, as they then see the same keys.
fn rows_at_once(isa: Isa, args: &AttentionArgs<'_>, num_blocks: usize) -> usize {
    let heads = args.num_query_heads_per_kv;
    let most = match isa {
        Isa::Scalar => 4,
        Isa::Avx2 => 6,
        Isa::Avx512 | Isa::Amx => 8,
    };
    let in_scratch = (MAX_SCORES / (num_blocks * BLOCK_TOKENS)).clamp(1, most);
    if heads <= in_scratch {
        in_scratch / heads * heads
    } else {
        in_scratch
    }
}

unsafe fn run_group(isa: Isa, group: &kernel::Group<'_>) {
    // SAFETY: the caller promises what the group asks for, and that `isa` is available.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx => avx512::attend(group),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::attend(group),
            _ => scalar::attend(group),
        }
    }
}
