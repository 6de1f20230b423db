//! What a call of attention is given, and how its rows (query token and head) are grouped.

use std::ops::Range;

use super::bias::HeadsBias;
use super::dual::EarlierChunks;
use super::kernel::{Group, MAX_ROWS};
use super::partial::Partials;
use super::{
    AttentionScratch, BLOCK_TOKENS, CHUNK_TOKENS, KvLayout, KvType, LayerBlocks, chunk_len, multiplies_pairs, reserve,
};
use crate::elementwise::f32_to_bf16;
use crate::isa::Isa;

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
    /// Whether windows are chunks: the token at `p` sees `p / w * w ..= p`.
    pub is_window_chunk: bool,
    /// No token sees a position before this one: the first of a text that lies behind another.
    pub first_seen: usize,
    /// Nor one from here on, where a text is read that ends there.
    pub end_seen: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Gemma 2: scores `s` become `cap tanh(s / cap)`.
    pub softcap: Option<f32>,
    /// What is added to these query heads' scores by distance, after the cap.
    pub bias: Option<HeadsBias<'a>>,
    /// gpt-oss: of each of these query heads a score that takes part in its softmax and has no value.
    pub sinks: Option<&'a [f32]>,
    /// The first token's row at the first of the query heads; the heads lie side by side.
    pub q: *const f32,
    /// Numbers from one token's row to the next.
    pub q_stride: usize,
    /// As `q`, for the result.
    pub out: *mut f32,
    /// Numbers from one token's row to the next.
    pub out_stride: usize,
    /// Dual chunk attention: which queries keys of earlier chunks meet.
    pub earlier: Option<EarlierChunks>,
}

impl AttentionArgs<'_> {
    /// The chunks that any of the query tokens sees.
    pub fn chunks(&self) -> Range<usize> {
        match self.num_tokens {
            0 => 0..0,
            n => self.visible(0).start / CHUNK_TOKENS..self.visible(n - 1).end.div_ceil(CHUNK_TOKENS),
        }
    }

    /// Query tokens and heads.
    pub(super) const fn num_rows(&self) -> usize {
        self.num_tokens * self.num_query_heads_per_kv
    }

    /// The positions that query token `token` sees.
    fn visible(&self, token: usize) -> Range<usize> {
        let end = self.first_position + token + 1;
        let start = match self.window {
            None => 0,
            Some(window) if self.is_window_chunk => (end - 1) / window * window,
            Some(window) => end.saturating_sub(window),
        };
        start.max(self.first_seen)..end.min(self.end_seen)
    }

    /// Of some positions, those that query token `token` sees; empty, in whatever way, when there are none.
    #[inline(always)]
    fn visible_in(&self, positions: &Range<usize>, token: usize) -> Range<usize> {
        let Range { start, end } = self.visible(token);
        start.max(positions.start)..end.min(positions.end)
    }

    /// The rows that see some of a chunk: those of neighbouring tokens, as what tokens see moves on with them.
    pub(super) fn rows_that_see(&self, chunk: usize) -> Range<usize> {
        let positions = positions_of(chunk);
        let sees = |token: &usize| !self.visible_in(&positions, *token).is_empty();
        let first = (0..self.num_tokens).find(sees).unwrap_or(0);
        let count = (first..self.num_tokens).take_while(sees).count();
        first * self.num_query_heads_per_kv..(first + count) * self.num_query_heads_per_kv
    }

    /// Checks the call, and says how many rows are computed together.
    pub(super) fn check(&self, isa: Isa, layout: &KvLayout) -> usize {
        let end = self.first_position + self.num_tokens;
        assert!(
            self.kv.len() * BLOCK_TOKENS >= end,
            "there is no block for position {}",
            end - 1
        );
        assert!(
            self.num_query_heads_per_kv > 0 && self.window != Some(0),
            "no query heads, or an empty window"
        );
        assert!(
            self.first_seen < self.end_seen && self.first_seen <= self.first_position,
            "a token that sees nothing"
        );
        assert!(self.kv_head < layout.num_kv_heads, "no such key-value head");
        let last = end.saturating_sub(1).max(self.first_position);
        let is_one_chunk = |earlier: EarlierChunks| self.first_position / earlier.len == last / earlier.len;
        assert!(self.earlier.is_none_or(is_one_chunk), "query tokens of several chunks");
        let has_sinks = self
            .sinks
            .is_none_or(|sinks| sinks.len() == self.num_query_heads_per_kv);
        assert!(has_sinks, "not a sink for each query head");
        let has_bias = self.bias.is_none_or(|bias| bias.has(self.num_query_heads_per_kv));
        assert!(has_bias, "not a bias for each query head");
        rows_at_once(isa, self.num_query_heads_per_kv)
    }

    /// Rows that have seen nothing yet.
    pub(super) fn nothing_seen(&self, layout: &KvLayout, scratch: &mut AttentionScratch) -> Partials {
        let whole = reserve(&mut scratch.whole, chunk_len(layout.value_dim(), self.num_rows()));
        let whole = Partials::new(whole, layout.value_dim());
        // SAFETY: the rows were reserved.
        unsafe { whole.clear(self.num_rows()) };
        whole
    }

    /// Lays the queries out as `[head_dim][row]` for each group, so that one pointer serves all rows of a dimension, or as
    /// `[head_dim / 2][row]` where pairs are multiplied at once.
    pub(super) unsafe fn transpose_queries(
        &self,
        isa: Isa,
        layout: &KvLayout,
        limit: usize,
        scratch: &mut AttentionScratch,
    ) {
        let (heads, row_len) = (self.num_query_heads_per_kv, query_len(layout));
        let num_rows = self.num_rows();
        let queries = reserve(&mut scratch.queries, self.num_queries() * num_rows * row_len);
        for (query, row) in (0..self.num_queries()).flat_map(|query| (0..num_rows).map(move |row| (query, row))) {
            let (first, width) = (row / limit * limit, limit.min(num_rows - row / limit * limit));
            // SAFETY: the caller promises the query rows; the scratch was reserved.
            unsafe {
                let column = self.query_offset(query) + row % heads * layout.head_dim;
                let source = self.q.add(row / heads * self.q_stride + column);
                let source = std::slice::from_raw_parts(source, layout.head_dim);
                let target = queries.add((query * num_rows + first) * row_len + row - first);
                let put = |index: usize, factor: f32| *target.add(index * width) = factor;
                match layout.dtype {
                    KvType::Bf16 => put_bf16(isa, source, put),
                    _ => source.iter().enumerate().for_each(|(d, x)| put(d, *x)),
                }
            }
        }
    }

    /// Calls `work` for each group of rows that sees some of a chunk, with the group's first row and the rows that do.
    pub(super) unsafe fn each_group(
        &self,
        layout: &KvLayout,
        limit: usize,
        chunk: usize,
        scratch: &mut AttentionScratch,
        mut work: impl FnMut(&mut Group<'_>, usize, Range<usize>),
    ) {
        let rows = self.rows_that_see(chunk);
        for first_row in (rows.start / limit * limit..rows.end).step_by(limit) {
            let num_rows = limit.min(self.num_rows() - first_row);
            let visible = self.visible_from(first_row, &positions_of(chunk));
            let seeing = rows.start.max(first_row)..rows.end.min(first_row + num_rows);
            let (first, last) = (&visible[seeing.start - first_row], &visible[seeing.end - 1 - first_row]);
            let blocks = first.start / BLOCK_TOKENS..last.end.div_ceil(BLOCK_TOKENS);
            let queries = scratch.queries.as_ptr().cast::<f32>();
            let mut group = Group {
                layout,
                args: self,
                first_row,
                num_rows,
                visible,
                scores: reserve(&mut scratch.scores, blocks.len() * num_rows * BLOCK_TOKENS),
                queries: queries.wrapping_add(first_row * query_len(layout)),
                queries_len: self.num_rows() * query_len(layout),
                blocks,
                ratings: None,
                last_block: (self.first_position + self.num_tokens - 1) / BLOCK_TOKENS,
                partials: Partials::new(std::ptr::null_mut(), layout.value_dim()),
            };
            work(&mut group, first_row, seeing);
        }
    }

    /// Of some positions, those that each row from `first_row` on sees.
    fn visible_from(&self, first_row: usize, positions: &Range<usize>) -> [Range<usize>; MAX_ROWS] {
        let heads = self.num_query_heads_per_kv;
        let (mut token, mut head) = (first_row / heads, first_row % heads);
        std::array::from_fn(|_| {
            let visible = self.visible_in(positions, token);
            head += 1;
            if head == heads {
                (token, head) = (token + 1, 0);
            }
            visible
        })
    }
}

/// Numbers that a row's queries take, at most.
const fn query_len(layout: &KvLayout) -> usize {
    layout.head_dim.next_multiple_of(layout.dtype.width())
}

/// Calls `put` with queries rounded to bfloat16: one by one, or two as the bits of one where these are multiplied at once.
/// An odd number's neighbour is 0.
fn put_bf16(isa: Isa, row: &[f32], put: impl Fn(usize, f32)) {
    const RUN: usize = 128;
    let at_once = multiplies_pairs(isa);
    for (run, numbers) in row.chunks(RUN).enumerate() {
        let mut halves = [0_u16; RUN];
        f32_to_bf16(isa, numbers, &mut halves[..numbers.len()]);
        for (i, pair) in halves[..numbers.len().next_multiple_of(2)].chunks_exact(2).enumerate() {
            let (first, second) = (u32::from(pair[0]), u32::from(pair[1]));
            let index = run * RUN / 2 + i;
            if at_once {
                put(index, f32::from_bits(first | second << 16));
            } else {
                put(2 * index, f32::from_bits(first << 16));
                put(2 * index + 1, f32::from_bits(second << 16));
            }
        }
    }
}

fn positions_of(chunk: usize) -> Range<usize> {
    chunk * CHUNK_TOKENS..(chunk + 1) * CHUNK_TOKENS
}

/// Rows (token and head) computed together: whole tokens when they fit, as they then see the same keys.
fn rows_at_once(isa: Isa, heads: usize) -> usize {
    let most = match isa.min(Isa::best()) {
        Isa::Scalar => 4,
        Isa::Avx2 => 6,
        Isa::Avx512 | Isa::Amx => MAX_ROWS,
    };
    if heads <= most { most / heads * heads } else { most }
}
