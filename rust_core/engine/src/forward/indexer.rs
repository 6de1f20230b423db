//! Sparse attention (DeepSeek-V3.2): which earlier positions a layer's tokens attend to.
//!
//! A token that sees no more positions than the indexer picks attends to all, as without one. For each later token index
//! heads rate all positions up to its own, and the best are kept in ascending order, for this layer's attention and for
//! that of layers after it without an indexer. What is picked depends on the ratings of one token alone.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyagent_kernels::attention::{self, AttentionArgs, CHUNK_TOKENS, store_kv};
use pyagent_kernels::elementwise;
use pyagent_kernels::thread_pool::Piece;

use super::{Part, Pass, Plan, Tiling, part};
use crate::config::latent::NORM_EPSILON;
use crate::config::{Indexer, ModelConfig};
use crate::model::{IndexerWeights, Mixer};
use crate::workspace::{Own, Rows};

/// Index heads in a piece at most.
const MOST_HEADS: usize = 16;
/// Chunks that one piece rates at least, where a token's are shared out.
const LEAST_CHUNKS: usize = 4;
/// With so many tokens for each thread, none of them is shared out.
const TOKENS_PER_THREAD: usize = 4;

/// The pieces of a batch's ratings.
#[derive(Default)]
pub(crate) struct RatingPlan {
    /// Rows of the batch that attend to positions that are picked, and their positions.
    rows: Vec<(usize, usize)>,
    /// Index of such a row, and the chunks of its text.
    pieces: Vec<(usize, Range<usize>)>,
    /// Of each such row: its pieces, and how many are done in this layer.
    counts: Vec<(usize, AtomicUsize)>,
    /// Whether rows have ratings of their own; otherwise threads have.
    are_shared_out: bool,
    /// Numbers of a row of ratings.
    width: usize,
    num_threads: usize,
}

impl RatingPlan {
    /// Of rows of tokens, segments and positions.
    pub(super) fn new(rows: &[(u32, usize, usize)], config: &ModelConfig, num_threads: usize) -> Self {
        let Some(num_picked) = config.num_picked() else {
            return Self::default();
        };
        let positions = rows.iter().map(|(.., position)| *position).enumerate();
        let rows: Vec<_> = positions.filter(|(_, position)| *position >= num_picked).collect();
        let last = rows.iter().map(|(_, position)| *position).max();
        let mut plan = Self {
            are_shared_out: rows.len() < TOKENS_PER_THREAD * num_threads,
            width: last.map_or(0, |last| rating_width(last + 1)),
            num_threads,
            ..Self::default()
        };
        for (index, (_, position)) in rows.iter().enumerate() {
            let num_chunks = position / CHUNK_TOKENS + 1;
            let count = match plan.are_shared_out {
                true => (num_chunks / LEAST_CHUNKS).clamp(1, TOKENS_PER_THREAD * num_threads),
                false => 1,
            };
            let chunks = (0..count).map(|piece| (index, part(num_chunks, count, piece)));
            plan.pieces.extend(chunks);
            plan.counts.push((count, AtomicUsize::new(0)));
        }
        plan.rows = rows;
        plan
    }

    pub(super) fn num_pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Ratings held at once.
    pub(crate) fn num_ratings(&self) -> usize {
        let rows = if self.are_shared_out {
            self.rows.len()
        } else {
            self.num_threads
        };
        rows * self.width
    }
}

/// Ratings of a row: of whole chunks.
fn rating_width(positions: usize) -> usize {
    positions.next_multiple_of(CHUNK_TOKENS)
}

/// The most ratings that a step of so many tokens, over so many positions, holds at once.
pub(crate) fn num_ratings(config: &ModelConfig, tokens: usize, positions: usize, threads: usize) -> usize {
    match config.num_picked() {
        Some(num_picked) if positions > num_picked => {
            let shared_out = tokens.min(TOKENS_PER_THREAD.saturating_mul(threads));
            shared_out.max(threads).saturating_mul(rating_width(positions))
        }
        _ => 0,
    }
}

/// Numbers of a token's index queries, and positions that it picks.
pub(crate) fn indexer_sizes(config: &ModelConfig) -> [usize; 2] {
    let indexer = config.latent.and_then(|latent| latent.indexer);
    indexer.map_or([0; 2], |indexer| {
        [indexer.num_heads * indexer.key_dims, indexer.num_picked]
    })
}

/// What the indexer's stages hand to each other, and to attention.
pub struct IndexerBuffers {
    queries: Rows,
    /// Positions, as whole numbers of 32 bits.
    picked: Rows,
    ratings: Rows,
}

impl IndexerBuffers {
    /// Empty buffers.
    pub fn new(config: &ModelConfig) -> Self {
        let [queries, picked] = indexer_sizes(config);
        Self {
            queries: Rows::new(queries),
            picked: Rows::new(picked),
            ratings: Rows::new(1),
        }
    }

    /// Makes room for so many tokens.
    pub fn reserve(&mut self, tokens: usize) {
        self.queries.reserve(tokens);
        self.picked.reserve(tokens);
    }

    /// Makes room for so many ratings.
    pub fn reserve_ratings(&mut self, ratings: usize) {
        self.ratings.reserve(ratings);
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        self.queries.bytes() + self.picked.bytes() + self.ratings.bytes()
    }

    /// The positions that a row picked.
    ///
    /// # Safety
    /// Its layer's ratings are over.
    pub(super) unsafe fn picked(&self, row: usize) -> &[u32] {
        // SAFETY: by contract nobody writes the row; a place holds 32 bits of any kind.
        unsafe {
            let row = self.picked.shared_row(row);
            std::slice::from_raw_parts(row.as_ptr().cast(), row.len())
        }
    }
}

/// How the making of index queries is cut: by heads.
pub(super) fn asking_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let heads = config
        .latent
        .and_then(|latent| latent.indexer)
        .map_or(0, |indexer| indexer.num_heads);
    Tiling::new(plan.num_rows(), heads, MOST_HEADS, plan.num_threads)
}

impl Part<'_> {
    fn indexer(&self, layer: usize) -> Option<(Indexer, &IndexerWeights)> {
        match &self.pass.weights.layers[layer].mixer {
            Mixer::Latent(latent) => self.pass.config.indexer(layer).zip(latent.indexer.as_ref()),
            _ => None,
        }
    }

    /// Normalises and rotates a row's index key, and stores it.
    ///
    /// # Safety
    /// As [`Self::compress`].
    pub(super) unsafe fn store_index_key(&self, layer: usize, row: usize, weights: &IndexerWeights, key: &mut [f32]) {
        let Pass { isa, .. } = *self.pass;
        let Some((indexer, _)) = self.indexer(layer) else {
            return;
        };
        weights.key_norm.apply_in_place(isa, key, NORM_EPSILON);
        self.rotate_for_indexer(&indexer, row, key);
        self.each_slot(layer, row..row + 1, 0..1, |layout, _, block, slot, _| {
            let Some(index) = layout.index() else { return };
            // SAFETY: by contract; index keys lie in the block.
            unsafe { store_kv(isa, &index, block.add(layout.index_at()), slot, 0, key, &[]) };
        });
    }

    fn rotate_for_indexer(&self, indexer: &Indexer, row: usize, values: &mut [f32]) {
        let (cos, sin) = self.pass.rope[0].row(self.plan.rows[row].2);
        elementwise::rope(self.pass.isa, values, cos, sin, indexer.rope_style);
    }

    /// Some index heads' queries for some rows.
    ///
    /// # Safety
    /// The rows are compressed; these heads of these rows are this piece's.
    pub(super) unsafe fn ask_indexer(&self, layer: usize, (rows, heads): (Range<usize>, Range<usize>)) {
        let space = self.pass.space;
        let Some((indexer, weights)) = self.indexer(layer) else {
            return;
        };
        let columns = heads.start * indexer.key_dims..heads.end * indexer.key_dims;
        // SAFETY: by contract.
        unsafe {
            let mut queries = space.indexer.queries.patch(rows.clone(), columns);
            self.multiply_columns(&weights.query, space.latent.queries(), None, &mut queries);
            for row in rows {
                for query in queries.row(row).chunks_exact_mut(indexer.key_dims) {
                    self.rotate_for_indexer(&indexer, row, query);
                }
            }
        }
    }

    /// Ratings of some of a row's positions; the last piece of a row picks the best.
    ///
    /// # Safety
    /// The layer's index keys and queries are there.
    pub(super) unsafe fn rate_positions(&self, layer: usize, piece: Piece, own: &mut Own) {
        let Pass {
            config, space, kv, isa, ..
        } = *self.pass;
        let (plan, Some((indexer, _))) = (&self.plan.rating, self.indexer(layer)) else {
            return;
        };
        let (index, chunks) = &plan.pieces[piece.index];
        let (row, position) = plan.rows[*index];
        let place = if plan.are_shared_out { *index } else { piece.thread };
        let ratings = space.indexer.ratings.base().wrapping_add(place * plan.width);
        let layout = kv.pages.layout(self.pass.kv_layer(layer));
        let tables = self.plan.segments[self.plan.rows[row].1].tables;
        let queries = &space.indexer.queries;
        let args = AttentionArgs {
            kv: kv.layer(self.pass.kv_layer(layer), tables),
            kv_head: 0,
            num_query_heads_per_kv: indexer.num_heads,
            first_position: position,
            num_tokens: 1,
            window: None,
            is_window_chunk: false,
            first_seen: 0,
            end_seen: usize::MAX,
            scale: 1.0, // a factor of all changes no order
            softcap: None,
            bias: None,
            sinks: None,
            q: queries.base().wrapping_add(row * queries.width()),
            q_stride: queries.width(),
            out: std::ptr::null_mut(),
            out_stride: 0,
            earlier: None,
        };
        // SAFETY: by contract; these chunks of these ratings are this piece's, and whoever is last sees what the others have
        // written.
        unsafe {
            let start = config.latent.map_or(0, |latent| latent.index_start()) + indexer.key_dims;
            let weights = &space.mixed.shared_row(row)[start..start + indexer.num_heads];
            attention::rate(isa, layout, &args, weights, chunks.clone(), ratings, &mut own.attention);
            let (count, done) = &plan.counts[*index];
            if done.fetch_add(1, Ordering::AcqRel) + 1 == *count {
                done.store(0, Ordering::Relaxed);
                let picked = space.indexer.picked.row(row);
                let picked = std::slice::from_raw_parts_mut(picked.as_mut_ptr().cast(), picked.len());
                attention::pick(std::slice::from_raw_parts(ratings, position + 1), picked);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A GLM-5 whose tokens attend to 100 positions.
    fn config() -> ModelConfig {
        let fields = json!({
            "model_type": "glm_moe_dsa", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
            "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
            "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
            "kv_lora_rank": 48, "q_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
            "max_position_embeddings": 4_096, "rms_norm_eps": 1e-5, "hidden_act": "silu", "index_topk": 100,
            "index_n_heads": 16, "index_head_dim": 32,
        });
        ModelConfig::from_hugging_face(fields.as_object().expect("an object"), None).expect("a model that is supported")
    }

    /// No step holds more ratings than are counted before anything is loaded, and some step holds as many.
    #[test]
    fn ratings_are_no_more_than_are_counted() {
        let (config, positions) = (config(), 1_000);
        for threads in [1, 2, 7] {
            let mut most = 0;
            for tokens in [1, 2, 3, 4, 7, 8, 27, 28, 29, 64] {
                let rows: Vec<_> = (positions - tokens..positions)
                    .map(|position| (0, 0, position))
                    .collect();
                let held = RatingPlan::new(&rows, &config, threads).num_ratings();
                let counted = num_ratings(&config, tokens, positions, threads);
                assert!(
                    (1..=counted).contains(&held),
                    "{tokens} tokens, {threads} threads: {held} of {counted}"
                );
                most = most.max(held);
            }
            assert!(
                2 * most > num_ratings(&config, 64, positions, threads),
                "{threads} threads: {most}"
            );
            assert_eq!(num_ratings(&config, 64, 100, threads), 0);
            let seen: Vec<_> = (0..100).map(|position| (0, 0, position)).collect();
            assert_eq!(RatingPlan::new(&seen, &config, threads).num_ratings(), 0);
        }
    }
}
