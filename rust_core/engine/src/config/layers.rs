//! What a decoder's layers are made of: two blocks each, or one.

use super::{ModelConfig, periodic};

/// The blocks of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// What brings tokens together, then a feed-forward block.
    Both,
    /// Attention, or a recurrent layer, alone.
    Mixer,
    /// A feed-forward block, or experts, alone.
    FeedForward,
}

/// The blocks of layers that are halves of a file's: what brings tokens together alone, then both.
pub(super) fn halves(num_layers: usize) -> Vec<Blocks> {
    let kinds = periodic(num_layers, 2).into_iter();
    kinds
        .map(|is_first| if is_first { Blocks::Mixer } else { Blocks::Both })
        .collect()
}

impl ModelConfig {
    /// What the layers are that bring tokens together, and how many of each, where some are recurrent; none where others have
    /// no such layer, or two.
    pub fn layer_kinds(&self) -> Vec<(&'static str, usize)> {
        let is_whole = !self.has_paired_layers() && (0..self.num_layers).all(|layer| self.has_mixer(layer));
        let Some(recurrent) = self.recurrent.as_ref().filter(|_| is_whole) else {
            return Vec::new();
        };
        let attention = if self.latent.is_some() {
            "latent attention"
        } else {
            "attention"
        };
        let num_recurrent = (0..self.num_layers)
            .filter(|&layer| self.recurrent(layer).is_some())
            .count();
        let kinds = [
            (recurrent.name(), num_recurrent),
            (attention, self.num_layers - num_recurrent),
        ];
        kinds.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Whether layer `layer` brings tokens together.
    pub fn has_mixer(&self, layer: usize) -> bool {
        self.blocks[layer] != Blocks::FeedForward
    }

    /// Whether layer `layer` has attention.
    pub fn has_attention(&self, layer: usize) -> bool {
        self.has_mixer(layer) && self.recurrent(layer).is_none()
    }

    /// Whether layer `layer` has a feed-forward block, or experts.
    pub fn has_ffn(&self, layer: usize) -> bool {
        self.blocks[layer] != Blocks::Mixer
    }

    /// Whether layer `layer` has experts.
    pub fn has_experts(&self, layer: usize) -> bool {
        self.experts.is_some() && self.has_ffn(layer) && !self.dense_layers[layer]
    }

    /// Whether there is a block: of each layer first what brings tokens together, then what does not, then what per-layer
    /// embeddings give.
    pub fn has_block(&self, block: usize) -> bool {
        match self.place_of(block) {
            (layer, 0) => self.has_mixer(layer),
            (layer, 1) => self.has_ffn(layer),
            _ => true,
        }
    }

    /// A block's layer, and its place in it.
    pub fn place_of(&self, block: usize) -> (usize, usize) {
        let per_layer = self.blocks_per_layer();
        (block / per_layer, block % per_layer)
    }

    /// The first block from `block` on that there is; the number of all where there is none.
    pub fn next_block(&self, block: usize) -> usize {
        let end = self.blocks_per_layer() * self.num_layers;
        (block..end).find(|&block| self.has_block(block)).unwrap_or(end)
    }

    /// The last block before `block` that there is.
    pub fn block_before(&self, block: usize) -> Option<usize> {
        (0..block).rev().find(|&block| self.has_block(block))
    }
}
