//! A head that drafts further tokens (MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2): one more layer, behind the decoder's.

use std::ops::Range;

use super::{Blocks, ModelConfig};

impl ModelConfig {
    /// Takes a head: a layer with attention to all positions, and the feed-forward block, or experts, of the others.
    #[must_use]
    pub(crate) fn with_mtp(mut self) -> Self {
        self.has_mtp = true;
        self.blocks.push(Blocks::Both);
        self.rotary_layers.push(true);
        for kinds in [
            &mut self.dense_layers,
            &mut self.sliding_layers,
            &mut self.recurrent_layers,
        ] {
            kinds.push(false);
        }
        self
    }

    /// Leaves the head, if there is one.
    #[must_use]
    pub fn without_mtp(mut self) -> Self {
        if self.has_mtp {
            self.has_mtp = false;
            self.blocks.pop();
            for kinds in [
                &mut self.rotary_layers,
                &mut self.dense_layers,
                &mut self.sliding_layers,
                &mut self.recurrent_layers,
            ] {
                kinds.pop();
            }
        }
        self
    }

    /// Makes a decoder of one layer a head without a decoder, whose attention reads a token beside the output before it.
    #[must_use]
    pub(crate) fn into_head(mut self) -> Self {
        (self.num_layers, self.has_mtp, self.reads_both) = (0, true, true);
        self
    }

    /// Numbers that a layer's attention reads of a token.
    pub(crate) fn attention_input_size(&self, layer: usize) -> usize {
        let num_parts = 1 + usize::from(self.reads_both && self.is_mtp(layer));
        num_parts * self.hidden_size
    }

    /// The head's layer, if there is one.
    pub fn mtp_layer(&self) -> Option<usize> {
        self.has_mtp.then_some(self.num_layers)
    }

    /// Whether a layer is the head's.
    pub fn is_mtp(&self, layer: usize) -> bool {
        self.mtp_layer() == Some(layer)
    }

    /// The decoder's layers, and the head's.
    pub(crate) fn all_layers(&self) -> Range<usize> {
        0..self.num_layers + usize::from(self.has_mtp)
    }
}
