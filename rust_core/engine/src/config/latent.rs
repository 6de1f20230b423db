//! The shape of latent attention (DeepSeek-V2, arXiv 2405.04434; GLM-4.7-Flash): keys and values of all heads are made
//! of one row of a token, its latent, beside which there is one rotated key that all heads share.
//!
//! It is computed in the absorbed form, in which the cache holds latents alone: one key-value head whose keys are a
//! latent and the rotated key, and whose values are the latent.

use pyagent_kernels::elementwise::RopeStyle;
use pyagent_kernels::pack::ROWS_PER_GROUP;

use super::invalid;
use crate::weights::ModelFileError;

/// The epsilon of the norms of latents and compressed queries: the reference gives these none of the model's own.
pub(crate) const NORM_EPSILON: f32 = 1e-6;

/// Numbers of a head or latent at most.
const MOST_SIZE: usize = 4_096;
/// Positions that an indexer picks at most.
const MOST_PICKED: usize = 1 << 20;

/// Sparse attention (DeepSeek-V3.2): a few small heads of a token rate earlier tokens by a key of their own, and the best
/// of these take part in its attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// Heads that rate.
    pub num_heads: usize,
    /// Numbers of such a head, and of a token's index key.
    pub key_dims: usize,
    /// How many tokens take part.
    pub num_picked: usize,
    /// How pairs of the rotated numbers lie, which are the first.
    pub rope_style: RopeStyle,
}

impl Indexer {
    /// Refuses sizes that no kernel takes, for heads of which so many numbers are rotated.
    fn check(&self, latent: &Latent) -> Result<(), ModelFileError> {
        let limits = [
            ("heads of the indexer", self.num_heads, 1, MOST_SIZE),
            ("numbers of an index key", self.key_dims, latent.rotary_dims, MOST_SIZE),
            ("tokens that the indexer picks", self.num_picked, 1, MOST_PICKED),
        ];
        let is_outside = |(_, value, least, most): &(_, usize, usize, usize)| !(*least..=*most).contains(value);
        if let Some((what, value, least, most)) = limits.into_iter().find(is_outside) {
            return Err(invalid(format!("{what} are {value}; expected {least} to {most}")));
        }
        let sizes = [
            ("an indexer", self.num_heads, "heads"),
            ("an index key", self.key_dims, "numbers"),
        ];
        let is_odd = |(_, size, _): &(_, usize, _)| !size.is_multiple_of(ROWS_PER_GROUP);
        if let Some((what, size, of)) = sizes.into_iter().find(is_odd) {
            return Err(invalid(format!(
                "{what} has {size} {of}, which is not supported; expected a multiple of {ROWS_PER_GROUP}"
            )));
        }
        match latent.query_rank {
            None => Err(invalid(
                "an indexer needs compressed queries, and there are none".to_owned(),
            )),
            Some(_) => Ok(()),
        }
    }
}

/// The sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Numbers of a latent.
    pub rank: usize,
    /// Numbers that queries are compressed to, where they are.
    pub query_rank: Option<usize>,
    /// Numbers of a head's keys that are made of the latent.
    pub plain_dims: usize,
    /// Numbers of the rotated key.
    pub rotary_dims: usize,
    /// Numbers of a head's values.
    pub value_dims: usize,
    /// Sparse attention's indexer, where the family has one.
    pub indexer: Option<Indexer>,
}

impl Latent {
    /// Numbers of a head's keys.
    pub fn key_dims(&self) -> usize {
        self.plain_dims + self.rotary_dims
    }

    /// Numbers of a token in the cache.
    pub fn cached_dims(&self) -> usize {
        self.rank + self.rotary_dims
    }

    /// Where an index key begins among the numbers that a layer's input is first multiplied into: behind a compressed query, a
    /// latent and a rotated key.
    pub fn index_start(&self) -> usize {
        self.query_rank.unwrap_or(0) + self.cached_dims()
    }

    /// Numbers that a layer's input is first multiplied into: those, an index key and the weights of index heads.
    pub fn compressed_dims(&self) -> usize {
        let of_indexer = self.indexer.map_or(0, |indexer| indexer.key_dims + indexer.num_heads);
        self.index_start() + of_indexer
    }

    /// Refuses sizes that no kernel takes.
    pub(super) fn check(self) -> Result<Self, ModelFileError> {
        if let Some(indexer) = &self.indexer {
            indexer.check(&self)?;
        }
        let limits = [
            ("numbers of a latent", self.rank, MOST_SIZE),
            ("numbers of a key without positions", self.plain_dims, MOST_SIZE),
            ("numbers of a rotated key", self.rotary_dims, MOST_SIZE),
            ("numbers of a value", self.value_dims, MOST_SIZE),
            ("numbers of a compressed query", self.query_rank.unwrap_or(1), 1 << 20),
        ];
        if let Some((what, value, most)) = limits.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            return Err(invalid(format!("{what} are {value}; expected 1 to {most}")));
        }
        let sizes = [
            ("a latent", self.rank),
            ("a latent and a rotated key", self.cached_dims()),
            ("a head's keys", self.key_dims()),
            ("a head's values", self.value_dims),
            ("a compressed query", self.query_rank.unwrap_or(0)),
        ];
        match sizes.into_iter().find(|(_, size)| !size.is_multiple_of(ROWS_PER_GROUP)) {
            Some((what, size)) => Err(invalid(format!(
                "{what} has {size} numbers, which is not supported; expected a multiple of {ROWS_PER_GROUP}"
            ))),
            None => Ok(self),
        }
    }
}

/// What YaRN's sharpness makes of the scale of scores: its square, where a file gives it a weight for them.
pub(super) fn sharpened(key_dims: usize, factor: f64, weight: f64) -> f32 {
    let sharpness = if factor > 1.0 {
        1.0 + 0.1 * weight * factor.ln()
    } else {
        1.0
    };
    ((key_dims as f64).powf(-0.5) * sharpness * sharpness) as f32
}
