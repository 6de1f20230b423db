//! BERT's layers: a norm follows each block, and positions are rows of a table.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;

use super::config::{BertConfig, EncoderActivation};
use super::forward::{AttentionHead, Batch, Memory, Own, Stages, add_bias, fill, multiply, multiply_into};
use super::weights::{BertWeights, EncoderLayer, Norm};
use crate::model::Linear;

/// The layers, over a batch.
pub(super) struct Bert<'a> {
    pub(super) config: &'a BertConfig,
    pub(super) num_layers: usize,
    pub(super) weights: &'a BertWeights,
    pub(super) isa: Isa,
    pub(super) batch: &'a Batch,
}

impl Stages for Bert<'_> {
    fn num_heads(&self) -> usize {
        self.config.num_heads
    }

    fn head(&self, _layer: usize, head: usize) -> AttentionHead {
        let width = self.hidden_size();
        let head_dim = width / self.config.num_heads;
        AttentionHead {
            key: width + head * head_dim,
            value: 2 * width + head * head_dim,
            scale: (head_dim as f32).powf(-0.5),
            before: usize::MAX,
            behind: usize::MAX,
        }
    }

    unsafe fn tile(&self, memory: &Memory, layer: usize, rows: Range<usize>, own: &mut Own) {
        // SAFETY: by contract.
        let hidden = unsafe { memory.hidden.rows(rows.clone()) };
        if layer == 0 {
            self.embed(rows.clone(), hidden);
        } else {
            // SAFETY: by contract; attention is over.
            let context = unsafe { memory.context.rows(rows.clone()) };
            self.finish_layer(&self.weights.layers[layer - 1], hidden, context, own);
        }
        if layer == self.num_layers {
            return;
        }
        let EncoderLayer { query, key, value, .. } = &self.weights.layers[layer];
        fill(self.isa, &own.input, hidden);
        for (part, linear) in [query, key, value].into_iter().enumerate() {
            let out = memory.projected.at(rows.start).wrapping_add(part * self.hidden_size());
            // SAFETY: these columns of the tile's rows.
            unsafe { multiply_into(self.isa, linear, &own.input, out, memory.projected.width) };
        }
    }
}

impl Bert<'_> {
    fn hidden_size(&self) -> usize {
        self.weights.embedding_norm.weight.len()
    }

    fn embed(&self, rows: Range<usize>, hidden: &mut [f32]) {
        let BertWeights {
            words,
            positions,
            types,
            embedding_norm,
            ..
        } = self.weights;
        let width = self.hidden_size();
        let mut row = vec![0.0; width];
        let tokens = &self.batch.tokens[rows];
        for (place, out) in tokens.iter().zip(hidden.chunks_exact_mut(width)) {
            words.row(place.token, out);
            if let Some(types) = types {
                elementwise::add(self.isa, out, &types[place.kind * width..][..width]);
            }
            positions.row(place.position, &mut row);
            elementwise::add(self.isa, out, &row);
            self.normalise(out, embedding_norm);
        }
    }

    /// What follows attention: its output matrix, and the feed-forward block, each added and normalised.
    fn finish_layer(&self, layer: &EncoderLayer, hidden: &mut [f32], context: &[f32], own: &mut Own) {
        let (isa, hidden_size, ffn_size) = (self.isa, self.hidden_size(), self.config.ffn_size);
        fill(isa, &own.context_input, context);
        // SAFETY: the thread's own memory.
        unsafe {
            let out = own.out.as_mut_ptr();
            multiply(isa, &layer.attention_output, &own.context_input, out, hidden_size);
        }
        self.add_block(&layer.attention_output, &layer.attention_norm, hidden, &own.out);
        fill(isa, &own.input, hidden);
        // SAFETY: as above.
        unsafe { multiply(isa, &layer.up, &own.input, own.out.as_mut_ptr(), ffn_size) };
        let num_rows = hidden.len() / hidden_size;
        for row in own.out[..num_rows * ffn_size].chunks_exact_mut(ffn_size) {
            add_bias(isa, &layer.up, row);
            match self.config.activation {
                EncoderActivation::Gelu => elementwise::gelu(isa, row),
                EncoderActivation::GeluTanh => elementwise::gelu_tanh(isa, row),
            }
        }
        fill(isa, &own.ffn_input, &own.out[..num_rows * ffn_size]);
        // SAFETY: as above; the input was copied.
        unsafe { multiply(isa, &layer.down, &own.ffn_input, own.out.as_mut_ptr(), hidden_size) };
        self.add_block(&layer.down, &layer.ffn_norm, hidden, &own.out);
    }

    /// Adds a block's output and bias to the stream, and normalises it.
    fn add_block(&self, linear: &Linear, norm: &Norm, hidden: &mut [f32], out: &[f32]) {
        let width = self.hidden_size();
        for (hidden, out) in hidden.chunks_exact_mut(width).zip(out.chunks_exact(width)) {
            add_bias(self.isa, linear, hidden);
            elementwise::add(self.isa, hidden, out);
            self.normalise(hidden, norm);
        }
    }

    fn normalise(&self, row: &mut [f32], norm: &Norm) {
        elementwise::layer_norm(self.isa, row, &norm.weight, &norm.bias, self.config.norm_epsilon);
    }
}
