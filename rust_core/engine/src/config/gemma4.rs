//! What Gemma 4's layers have of their own: two shapes of heads, layers that read another's keys and values, embeddings
//! for each layer, and experts beside a dense block.

use super::{ModelConfig, invalid};
use crate::weights::ModelFileError;

/// The two kinds' heads, the layers without keys and values of their own, and per-layer embeddings.
///
/// A model's `head_dim` and `num_kv_heads` are those of its sliding-window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemma4 {
    /// Key-value heads of layers that see everything.
    pub global_kv_heads: usize,
    /// Width of a head of layers that see everything; all of it is rotated, most of it by an angle of 0.
    pub global_head_dim: usize,
    /// How many of the last layers read the keys and values of the last layer of their kind before them.
    pub num_kv_shared_layers: usize,
    /// Whether no layer has any: they read those of another model.
    pub makes_no_kv: bool,
    /// Width inside the feed-forward block of those layers, where it is another; 0 where it is not.
    pub wide_size: usize,
    /// Whether layers that see everything have no matrix for values: these are the keys before their norm.
    pub has_keys_for_values: bool,
    /// Numbers of a layer's part of a per-layer embedding; 0 where there is none.
    pub per_layer_size: usize,
}

/// Numbers of a layer's part of a per-layer embedding at most.
const MOST_PER_LAYER: usize = 1 << 16;
/// Width of a feed-forward block at most.
const MOST_SIZE: usize = 1 << 22;
/// Width of a head at most, and heads.
const MOST_HEADS: usize = 4_096;

impl ModelConfig {
    /// Key-value heads of a layer, or of the layer whose keys and values it reads.
    pub fn kv_heads_of(&self, layer: usize) -> usize {
        self.of_global(layer)
            .map_or(self.num_kv_heads, |of_global| of_global.global_kv_heads)
    }

    /// Width of a layer's heads.
    pub fn head_dim_of(&self, layer: usize) -> usize {
        self.of_global(layer)
            .map_or(self.head_dim, |of_global| of_global.global_head_dim)
    }

    /// Values in one token's queries, of a layer.
    pub fn query_size_of(&self, layer: usize) -> usize {
        self.num_heads * self.head_dim_of(layer)
    }

    /// Values in one token's keys, or values, of a layer.
    pub fn kv_size_of(&self, layer: usize) -> usize {
        self.kv_heads_of(layer) * self.head_dim_of(layer)
    }

    /// Numbers that are rotated of a head of layers that see everything.
    pub fn global_rotary_dims(&self) -> usize {
        self.gemma4
            .map_or(self.rotary_dims, |of_global| of_global.global_head_dim)
    }

    /// Which of the two shapes of heads a layer has: 1 where it sees everything and its heads are of another shape.
    pub fn head_kind(&self, layer: usize) -> usize {
        usize::from(self.of_global(layer).is_some())
    }

    fn of_global(&self, layer: usize) -> Option<&super::Gemma4> {
        self.gemma4.as_ref().filter(|_| !self.sliding_layers[layer])
    }

    /// The layer whose keys and values a layer reads, if not its own.
    pub fn kv_source(&self, layer: usize) -> Option<usize> {
        if self.is_cross(layer) {
            return Some(layer - 1);
        }
        let first = self.first_kv_shared_layer();
        if layer < first {
            return None;
        }
        self.last_kv_layer(self.sliding_layers[layer])
    }

    /// The last layer with keys and values of its own, of those with a window or of those that see everything.
    pub(crate) fn last_kv_layer(&self, is_sliding: bool) -> Option<usize> {
        self.sliding_layers
            .iter()
            .take(self.first_kv_shared_layer())
            .rposition(|kind| *kind == is_sliding)
    }

    /// Whether a layer makes keys and values.
    pub(crate) fn makes_kv(&self, layer: usize) -> bool {
        self.kv_source(layer).is_none() && !self.gemma4.is_some_and(|gemma4| gemma4.makes_no_kv)
    }

    /// The first of the layers that read another's keys and values; behind all where none does.
    fn first_kv_shared_layer(&self) -> usize {
        let shared = self.gemma4.map_or(0, |gemma4| gemma4.num_kv_shared_layers);
        match shared {
            0 => usize::MAX,
            shared => self.num_layers.saturating_sub(shared),
        }
    }

    /// Whether a layer has no matrix for values: these are its keys before their norm.
    pub fn are_values_keys(&self, layer: usize) -> bool {
        self.of_global(layer).is_some_and(|gemma4| gemma4.has_keys_for_values)
    }

    /// Whether a layer's feed-forward block is of another width than the first layers'.
    pub fn is_wide(&self, layer: usize) -> bool {
        self.gemma4.is_some_and(|gemma4| gemma4.wide_size > 0) && self.kv_source(layer).is_some()
    }

    /// Numbers of a layer's part of a per-layer embedding; 0 where there is none.
    pub fn per_layer_size(&self) -> usize {
        self.gemma4.map_or(0, |gemma4| gemma4.per_layer_size)
    }

    /// Blocks of a layer that add to the stream: attention, the feed-forward block, and what per-layer embeddings give.
    pub fn blocks_per_layer(&self) -> usize {
        if self.per_layer_size() > 0 { 3 } else { 2 }
    }

    /// Whether a layer has experts beside a dense block, each with norms of its own.
    pub fn has_separate_experts(&self) -> bool {
        self.gemma4.is_some() && self.experts.is_some()
    }

    /// Refuses what no layer can have; the lists of layers' kinds are known to be whole.
    pub(super) fn check_gemma4(&self) -> Result<(), ModelFileError> {
        let Some(gemma4) = self.gemma4 else { return Ok(()) };
        let limits = [
            (
                "key/value heads of global layers",
                gemma4.global_kv_heads,
                1,
                MOST_HEADS,
            ),
            ("head size of global layers", gemma4.global_head_dim, 2, MOST_HEADS),
            (
                "layers with shared keys",
                gemma4.num_kv_shared_layers,
                0,
                self.num_layers - 1,
            ),
            ("wide feed-forward size", gemma4.wide_size, 0, MOST_SIZE),
            ("per-layer embedding size", gemma4.per_layer_size, 0, MOST_PER_LAYER),
        ];
        for (what, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(invalid(format!("{what}: {value}; expected {low} to {high}")));
            }
        }
        if !self.num_heads.is_multiple_of(gemma4.global_kv_heads) {
            return Err(invalid(format!(
                "{} query heads cannot share {} key/value heads of global layers evenly",
                self.num_heads, gemma4.global_kv_heads
            )));
        }
        let unit = pyagent_kernels::pack::ROWS_PER_GROUP;
        if !gemma4.global_head_dim.is_multiple_of(unit) {
            return Err(invalid(format!(
                "head size {} of global layers is not supported; expected a multiple of {unit}",
                gemma4.global_head_dim
            )));
        }
        if self.sliding_window.is_none() {
            return Err(invalid("the width of sliding windows is not told".to_owned()));
        }
        if self.sliding_layers.last() == Some(&true) {
            return Err(invalid(
                "the last layer has a window; expected one that sees everything".to_owned(),
            ));
        }
        if gemma4.wide_size > 0 && self.experts.is_some() {
            return Err(invalid(
                "wide feed-forward blocks beside experts are not implemented".to_owned(),
            ));
        }
        let first = self.num_layers - gemma4.num_kv_shared_layers;
        if let Some(layer) = (first..self.num_layers).find(|layer| self.kv_source(*layer).is_none()) {
            return Err(invalid(format!(
                "layer {layer} shares keys and values, but no layer of its kind before layer {first} has any"
            )));
        }
        Ok(())
    }
}
