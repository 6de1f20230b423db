//! Dual chunk attention (An et al. 2024, arXiv 2402.17463): a text is cut into chunks, and keys of a token's own chunk, of
//! the one before and of all earlier ones each meet a query of their own.
//!
//! Only scores differ: what else attention does knows nothing of it. Ends of chunks may lie within a block, which is then
//! scored by both queries; each of its keys keeps the score of its own.

use std::ops::Range;

use super::kernel::{Group, MAX_ROWS, score_blocks};
use super::stored::Stored;
use super::{AttentionArgs, BLOCK_TOKENS};
use crate::lanes::{LANES, Lanes};

/// Queries of a token: for its own chunk, the one before, and all earlier ones.
const NUM_QUERIES: usize = 3;

/// Where the queries for chunks before the tokens' own lie. All query tokens of a call are of one chunk.
#[derive(Clone, Copy, Debug)]
pub struct EarlierChunks {
    /// Positions of a chunk, counted from position 0.
    pub len: usize,
    /// Numbers from a token's queries to those for the chunk before, and from these to those for all earlier ones. None
    /// are read for chunks that there are not.
    pub q_offset: usize,
}

impl AttentionArgs<'_> {
    /// Queries that each token has.
    pub(super) fn num_queries(&self) -> usize {
        let chunks_before = |earlier: EarlierChunks| self.first_position / earlier.len;
        1 + self.earlier.map_or(0, chunks_before).min(NUM_QUERIES - 1)
    }

    /// Numbers from a token's queries to its queries `query`.
    pub(super) fn query_offset(&self, query: usize) -> usize {
        self.earlier.map_or(0, |earlier| query * earlier.q_offset)
    }

    /// The positions whose keys meet queries `query`; those of the own chunk have no end.
    fn met_by(&self, query: usize) -> Range<usize> {
        let start = |chunks_before: usize| {
            let own = |earlier: EarlierChunks| (self.first_position / earlier.len, earlier.len);
            let (own, len) = self.earlier.map_or((0, 0), own);
            own.saturating_sub(chunks_before) * len
        };
        match query {
            0 => start(0)..usize::MAX,
            1 => start(1)..start(0),
            _ => 0..start(1),
        }
    }
}

/// Scores of every key in the group's blocks by the query that it meets.
///
/// # Safety
/// As [`super::kernel::attend`].
#[inline(always)]
pub(super) unsafe fn score_chunks<L: Lanes, S: Stored, const ROWS: usize, const KEYS: usize>(group: &Group<'_>) {
    for query in (0..group.args.num_queries()).rev() {
        let positions = group.args.met_by(query);
        let first = (positions.start / BLOCK_TOKENS).max(group.blocks.start);
        let end = positions.end.div_ceil(BLOCK_TOKENS).min(group.blocks.end);
        if first >= end {
            continue;
        }
        // Keys of the first block that met the query before.
        let num_kept = positions.start.saturating_sub(first * BLOCK_TOKENS);
        // SAFETY: the caller's promise; the blocks are some of the group's.
        unsafe {
            let scores = group.scores.add((first - group.blocks.start) * ROWS * LANES);
            let mut kept = [0.0; MAX_ROWS * LANES];
            if num_kept > 0 {
                std::ptr::copy_nonoverlapping(scores, kept.as_mut_ptr(), ROWS * LANES);
            }
            score_blocks::<L, S, ROWS, KEYS>(&Group {
                blocks: first..end,
                visible: group.visible.clone(),
                scores,
                queries: group.queries.add(query * group.queries_len),
                ..*group
            });
            for row in (0..ROWS).filter(|_| num_kept > 0) {
                std::ptr::copy_nonoverlapping(kept[row * LANES..].as_ptr(), scores.add(row * LANES), num_kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        AttentionScratch, CHUNK_TOKENS, KvLayout, KvType, LayerBlocks, attend, attend_chunk, chunk_len, merge_chunks,
        store_kv,
    };
    use super::*;
    use crate::isa::Isa;

    const HEAD_DIM: usize = 32;
    const HEADS: usize = 3;
    const ROW: usize = NUM_QUERIES * HEADS * HEAD_DIM;

    fn number(seed: usize) -> f32 {
        let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 40) as f32 / (1_u32 << 23) as f32) - 1.0
    }

    fn numbers(seed: usize, len: usize) -> Vec<f32> {
        (0..len).map(|i| number(seed * 4_099 + i)).collect()
    }

    /// A text's keys and values, and its last tokens' queries.
    struct Text {
        layout: KvLayout,
        memory: Vec<u32>,
        pages: Vec<u32>,
        queries: Vec<f32>,
        first: usize,
        len: usize,
    }

    impl Text {
        fn new(dtype: KvType, first: usize, num_tokens: usize, len: usize) -> Self {
            let layout = KvLayout {
                num_kv_heads: 1,
                head_dim: HEAD_DIM,
                values_in_keys: None,
                index_dim: 0,
                dtype,
            };
            let num_blocks = (first + num_tokens).div_ceil(BLOCK_TOKENS);
            let mut memory = vec![0_u32; num_blocks * layout.block_bytes() / 4];
            for position in 0..first + num_tokens {
                let (key, value) = (numbers(position, HEAD_DIM), numbers(position + 7_000, HEAD_DIM));
                let block = memory[position / BLOCK_TOKENS * layout.block_bytes() / 4..].as_mut_ptr();
                // SAFETY: the block is in the memory.
                unsafe {
                    store_kv(
                        Isa::best(),
                        &layout,
                        block.cast(),
                        position % BLOCK_TOKENS,
                        0,
                        &key,
                        &value,
                    )
                };
            }
            Self {
                layout,
                memory,
                pages: (0..num_blocks as u32).collect(),
                queries: numbers(90_000, num_tokens * ROW),
                first,
                len,
            }
        }

        fn args<'a>(&'a self, out: &mut [f32]) -> AttentionArgs<'a> {
            AttentionArgs {
                kv: LayerBlocks {
                    base: self.memory.as_ptr().cast::<u8>().cast_mut(),
                    page_bytes: self.layout.block_bytes(),
                    pages: &self.pages,
                    pages_per_block: 1,
                    page_in_block: 0,
                },
                kv_head: 0,
                num_query_heads_per_kv: HEADS,
                first_position: self.first,
                num_tokens: self.queries.len() / ROW,
                first_seen: 0,
                end_seen: usize::MAX,
                window: None,
                is_window_chunk: false,
                scale: 0.3,
                softcap: None,
                bias: None,
                sinks: None,
                q: self.queries.as_ptr(),
                q_stride: ROW,
                out: out.as_mut_ptr(),
                out_stride: HEADS * HEAD_DIM,
                earlier: Some(EarlierChunks {
                    len: self.len,
                    q_offset: HEADS * HEAD_DIM,
                }),
            }
        }

        fn out(&self) -> Vec<f32> {
            vec![0.0; self.queries.len() / NUM_QUERIES]
        }

        /// The formula, in double precision, of keys and values as they are stored in `f32`.
        fn expected(&self) -> Vec<f64> {
            let mut all = Vec::new();
            for row in 0..self.queries.len() / ROW * HEADS {
                let (token, head) = (row / HEADS, row % HEADS);
                let position = self.first + token;
                let score = |other: usize| {
                    let query = (position / self.len - other / self.len).min(NUM_QUERIES - 1);
                    let start = token * ROW + (query * HEADS + head) * HEAD_DIM;
                    let products = self.queries[start..].iter().zip(numbers(other, HEAD_DIM));
                    0.3 * products.map(|(q, k)| f64::from(*q) * f64::from(k)).sum::<f64>()
                };
                let weights: Vec<f64> = (0..=position).map(|other| score(other).exp()).collect();
                let sum: f64 = weights.iter().sum();
                all.extend((0..HEAD_DIM).map(|d| {
                    let value = |other| f64::from(numbers(other + 7_000, HEAD_DIM)[d]);
                    weights
                        .iter()
                        .enumerate()
                        .map(|(other, weight)| weight * value(other))
                        .sum::<f64>()
                        / sum
                }));
            }
            all
        }
    }

    /// By the formula, on every set the same bits and of every type, whole and in parts: where chunks end in blocks and at
    /// their borders, several in one, and where the attention's own chunks hold all three kinds of keys.
    #[test]
    fn keys_of_each_chunk_meet_the_query_that_was_turned_for_it() {
        for (first, num_tokens, len) in [
            (130, 3, 43),
            (87, 9, 32),
            (303, 5, 101),
            (290, 2, 7),
            (600, 4, 256),
            (530, 6, 268),
        ] {
            for dtype in KvType::ALL {
                let text = Text::new(dtype, first, num_tokens, len);
                let mut best = text.out();
                // SAFETY: the blocks hold the text; there is a row of queries and of results for each token.
                unsafe {
                    attend(
                        Isa::best(),
                        &text.layout,
                        &text.args(&mut best),
                        &mut AttentionScratch::default(),
                    )
                };
                let worst = best
                    .iter()
                    .zip(text.expected())
                    .map(|(got, expected)| (f64::from(*got) - expected).abs());
                let tolerance = if dtype == KvType::F32 { 1e-5 } else { 0.03 };
                assert!(worst.fold(0.0, f64::max) < tolerance, "{dtype:?} {first} {len}");
                for isa in Isa::available() {
                    let (mut whole, mut parts) = (text.out(), text.out());
                    let args = text.args(&mut parts);
                    let of_chunk = chunk_len(HEAD_DIM, num_tokens * HEADS);
                    let mut results = vec![0.0; (first + num_tokens).div_ceil(CHUNK_TOKENS) * of_chunk];
                    let mut scratch = AttentionScratch::default();
                    // SAFETY: likewise; the results have room for each chunk.
                    unsafe {
                        attend(isa, &text.layout, &text.args(&mut whole), &mut scratch);
                        for chunk in args.chunks() {
                            let results = results[chunk * of_chunk..].as_mut_ptr();
                            attend_chunk(isa, &text.layout, &args, chunk, results, &mut scratch);
                        }
                        merge_chunks(isa, &text.layout, &args, results.as_ptr(), &mut scratch);
                    }
                    assert!(whole == best && parts == best, "{isa:?} {dtype:?} {first} {len}");
                }
            }
        }
    }
}
