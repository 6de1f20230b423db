//! Experts beside a dense block, as Gemma 4 has them: each reads the stream through a norm of its own, and its output has one
//! before the two are added.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::Activations;

use crate::forward::{Part, Pass};

impl Part<'_> {
    /// What a layer's router reads.
    pub(super) fn router_input(&self) -> &Activations {
        match self.pass.config.has_separate_experts() {
            true => &self.stream.router_input,
            false => &self.stream.hidden_input,
        }
    }

    /// What a feed-forward block reads: one of the experts', or the one that all tokens have.
    pub(in crate::forward) fn block_inside_input(&self, is_expert: bool) -> &Activations {
        match self.pass.config.has_separate_experts() && is_expert {
            true => &self.stream.expert_input,
            false => &self.stream.hidden_input,
        }
    }

    /// Multiplies a token's weights of experts by the experts' factors, where these have any.
    pub(super) fn scale_weights(&self, layer: usize, weights: &mut [f32]) {
        if let Some(separate) = &self.pass.weights.layers[layer].separate_experts {
            elementwise::mul(self.pass.isa, weights, &separate.scales);
        }
    }

    /// Normalises a row of the stream, after so many blocks, for the experts and the router of the block that follows.
    ///
    /// # Safety
    /// As [`Self::normalise`].
    pub(in crate::forward) unsafe fn normalise_separately(
        &self,
        blocks: usize,
        row: usize,
        residual: &[f32],
        scratch: &mut [f32],
    ) {
        let (layer, place) = self.pass.config.place_of(blocks);
        let layer = self.pass.weights.layers.get(layer).filter(|_| place == 1);
        let Some(separate) = layer.and_then(|layer| layer.separate_experts.as_ref()) else {
            return;
        };
        let inputs = [
            (&separate.input_norm, &self.stream.expert_input),
            (&separate.router_norm, &self.stream.router_input),
        ];
        for (norm, input) in inputs {
            // SAFETY: by contract.
            unsafe { self.normalise(residual, norm, input, row, scratch) };
        }
    }

    /// Keeps some columns of a row that the dense block beside the experts gives.
    ///
    /// # Safety
    /// No other thread uses these columns of the row in this stage.
    pub(super) unsafe fn keep_dense(&self, block: usize, row: usize, columns: Range<usize>, values: &[f32]) {
        let row = self.delta_row(block) + row;
        // SAFETY: by contract.
        let mut kept = unsafe { self.pass.space.dense_delta.patch(row..row + 1, columns) };
        kept.row(row).copy_from_slice(values);
    }

    /// Normalises what a block's experts gave, and adds what the dense block beside them gave, normalised; nothing in a block
    /// without such experts. `beside` is as long as a row.
    ///
    /// # Safety
    /// Both are complete, and nobody writes them.
    pub(in crate::forward) unsafe fn join_separate(
        &self,
        block: usize,
        row: usize,
        experts: &mut [f32],
        beside: &mut [f32],
    ) {
        let Pass { config, space, isa, .. } = *self.pass;
        let (layer, place) = self.pass.config.place_of(block);
        let Some(separate) = self.pass.weights.layers[layer]
            .separate_experts
            .as_ref()
            .filter(|_| place == 1)
        else {
            return;
        };
        elementwise::rms_norm_in_place(isa, experts, &separate.output_norm, config.norm_epsilon);
        // SAFETY: by contract.
        let dense = unsafe { space.dense_delta.shared_row(self.delta_row(block) + row) };
        elementwise::rms_norm(isa, dense, &separate.dense_norm, config.norm_epsilon, beside);
        elementwise::add(isa, experts, beside);
    }
}
