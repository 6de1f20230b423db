//! Dual chunk attention (An et al. 2024, arXiv 2402.17463), which Qwen2.5-1M and Qwen3-2507 read long texts with: no query
//! meets a key from further away than the model was trained on.
//!
//! Chunks, places and the growth of scores are those of vLLM's `DualChunkRotaryEmbedding` and `DualChunkFlashAttention`,
//! but for one thing: there all tokens of a prompt grow by its length, here each by its own position, which is the same
//! for tokens that follow one by one. What a text's start is would otherwise depend on its end.

use std::ops::Range;

use pyagent_kernels::elementwise::RopeScaling;
use serde_json::{Map, Value};

use super::hugging_face::{JsonConfig, refuse_unknown};
use super::{ModelConfig, invalid};
use crate::weights::ModelFileError;

/// The field of a `config.json`.
pub(super) const FIELD: &str = "dual_chunk_attention_config";

/// Families whose published files may have it.
const FAMILIES: [&str; 4] = ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"];

/// What is read of it, and what says how sparse attention may approximate the dense, which is computed here.
const READ: &str = "chunk_size local_size original_max_position_embeddings sparse_attention_config \
    sparse_attention_enabled sparse_attention_threshold sparse_attention_last_q";

/// Where nothing is said.
const CHUNK_SIZE: usize = 8_192;
const LOCAL_SIZE: usize = 1_024;

/// How much scores grow by the logarithm of a text's length.
const GROWTH: f64 = 0.1;

/// Queries of a token: for keys of its own chunk, of the one before, and of all earlier ones.
const NUM_QUERIES: usize = 3;

/// Keys turn by their place in a chunk; a query by its own place, or as if it were so many positions further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualChunks {
    /// Positions of a chunk.
    pub chunk_len: usize,
    /// The furthest place that a query turns by.
    pub furthest: usize,
    /// Positions from which on scores grow; 0 where they do not.
    pub original: usize,
}

impl DualChunks {
    /// The place by which a position's query for keys of so many chunks before its own turns; its key turns by that for
    /// the own chunk.
    pub fn query_place(&self, position: usize, chunks_before: usize) -> usize {
        let place = position % self.chunk_len;
        match chunks_before {
            0 => place,
            1 => (place + self.chunk_len).min(self.furthest),
            _ => (2 * self.chunk_len - 1).min(self.furthest),
        }
    }

    /// The queries besides the one for its own chunk that a position has keys for, by how many chunks they are before it.
    pub fn earlier_queries(&self, position: usize) -> Range<usize> {
        1..(1 + position / self.chunk_len).min(NUM_QUERIES)
    }

    /// The factor on a position's query and on its key.
    pub fn growth(&self, position: usize) -> f32 {
        if position < self.original || self.original == 0 {
            return 1.0;
        }
        (1.0 + GROWTH * ((position + 1) as f64 / self.original as f64).ln()) as f32
    }

    fn of_fields(fields: &Map<String, Value>) -> Result<Self, ModelFileError> {
        refuse_unknown(fields, &[READ], "dual_chunk_attention_config.")?;
        let fields = JsonConfig(fields, None);
        let size = |key, default| Ok::<usize, ModelFileError>(fields.optional_size(key)?.unwrap_or(default));
        let (furthest, local) = (size("chunk_size", CHUNK_SIZE)?, size("local_size", LOCAL_SIZE)?);
        if local >= furthest || furthest > 1 << 28 {
            return Err(invalid(format!(
                "config.json: '{FIELD}' has chunks of {furthest} positions, {local} of them local; expected more than \
                 are local, and {} at most",
                1 << 28
            )));
        }
        Ok(Self {
            chunk_len: furthest - local,
            furthest,
            original: size("original_max_position_embeddings", 0)?,
        })
    }
}

impl JsonConfig<'_> {
    /// Whether a family's files may tell of chunks.
    pub(super) fn dual_chunk_fields(name: &str) -> &'static str {
        if FAMILIES.contains(&name) { FIELD } else { "" }
    }

    /// How a text is cut, where one may be longer than a chunk.
    pub(super) fn dual_chunks(&self) -> Result<Option<DualChunks>, ModelFileError> {
        let Some(fields) = self.object(FIELD) else {
            return Ok(None);
        };
        let dual = DualChunks::of_fields(fields)?;
        let most = self.size("max_position_embeddings")?;
        let most = self.1.map_or(most, |longest| longest.min(most));
        Ok((most > dual.chunk_len).then_some(dual))
    }
}

impl ModelConfig {
    /// Queries of a token, each for keys of other chunks.
    pub fn num_queries(&self) -> usize {
        self.dual_chunks.map_or(1, |_| NUM_QUERIES)
    }

    /// Places by which positions before `end` turn: all of them, or those of chunks.
    pub fn num_places(&self, end: usize) -> usize {
        self.dual_chunks.map_or(end, |dual| end.min(dual.furthest + 1))
    }

    /// Refuses what chunks are not known to go together with.
    pub(super) fn check_dual_chunks(&self) -> Result<(), ModelFileError> {
        let has_scaling = self.rope_scaling != RopeScaling::None;
        let beside = [
            ("rope scaling", has_scaling),
            ("sliding windows", self.sliding_window.is_some()),
        ];
        match beside
            .into_iter()
            .find(|(_, is_there)| *is_there && self.dual_chunks.is_some())
        {
            Some((what, _)) => Err(invalid(format!(
                "config.json: '{FIELD}' beside {what} is not implemented; take one of them out"
            ))),
            None => Ok(()),
        }
    }
}
