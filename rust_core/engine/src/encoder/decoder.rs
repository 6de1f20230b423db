//! A decoder's layers over whole texts, in `f32`: for models made from decoders that embed, rank or classify. There is no
//! KV cache, as nothing follows a text. One that is longer than a batch is computed in parts (`long.rs`).

use std::ops::Range;

use pyagent_kernels::elementwise::{self, RopeTable};
use pyagent_kernels::isa::Isa;

use super::config::DecoderConfig;
use super::forward::{AttentionHead, Batch, Memory, Own, Shared, Stages, fill, multiply_into};
use super::weights::DecoderWeights;
use crate::config::Activation;
use crate::model::{Gated, Layer, Mixer, Norm};

/// The layers, over a batch.
pub(super) struct Decoder<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) weights: &'a DecoderWeights,
    pub(super) isa: Isa,
    pub(super) batch: &'a Batch,
    /// The angles of layers that see everything and of those with a window.
    pub(super) rope: &'a [RopeTable; 2],
}

impl Stages for Decoder<'_> {
    fn num_heads(&self) -> usize {
        self.config.model.num_heads
    }

    fn head(&self, layer: usize, head: usize) -> AttentionHead {
        let DecoderConfig { model, is_causal } = self.config;
        let shared = head / (model.num_heads / model.num_kv_heads) * model.head_dim;
        let before = model.window(layer).map_or(usize::MAX, |window| window - 1);
        AttentionHead {
            key: model.query_size() + shared,
            value: model.query_size() + model.kv_size() + shared,
            scale: model.attention_scale,
            before,
            behind: if *is_causal { 0 } else { before },
            bias: self
                .weights
                .distances_of(layer)
                .map_or(std::ptr::null(), |distances| distances.of_head(head)),
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
            self.finish_layer(&self.weights.model.layers[layer - 1], hidden, context, own);
        }
        if layer == self.config.model.num_layers {
            return self.finish(hidden);
        }
        // SAFETY: by contract.
        unsafe { self.project(layer, hidden, rows.clone(), (memory.projected, rows.start), own) };
    }
}

impl Decoder<'_> {
    /// Writes queries, keys and values of some tokens, of which the first has the row `first`.
    ///
    /// # Safety
    /// The rows are the caller's in this stage. The thread's memory has room for the tokens.
    pub(super) unsafe fn project(
        &self,
        layer: usize,
        hidden: &[f32],
        tokens: Range<usize>,
        (projected, first): (Shared, usize),
        own: &mut Own,
    ) {
        let model = &self.config.model;
        let weights = &self.weights.model.layers[layer];
        let Mixer::Attention(attention) = &weights.mixer else {
            unreachable!("recurrent layers are refused when the model is opened")
        };
        self.fill_normalised(weights.attention_norm.as_ref().map(Norm::weight), hidden, own);
        let (query, key) = (model.query_size(), model.kv_size());
        let (Some(of_keys), Some(of_values)) = (&attention.key, &attention.value) else {
            unreachable!("layers without keys are refused when the model is opened")
        };
        let parts = [(&attention.query, 0), (of_keys, query), (of_values, query + key)];
        for (linear, start) in parts {
            let out = projected.at(first).wrapping_add(start);
            // SAFETY: these columns of the rows.
            unsafe { multiply_into(self.isa, linear, &own.input, out, projected.width) };
        }
        for (row, token) in (first..).zip(tokens) {
            // SAFETY: one of the rows, which is written.
            let projected = unsafe { projected.rows(row..row + 1) };
            let (queries, rest) = projected.split_at_mut(query);
            let position = self.batch.tokens[token].position;
            self.rotate(layer, attention.query_norm.as_deref(), queries, position);
            self.rotate(layer, attention.key_norm.as_deref(), &mut rest[..key], position);
        }
    }

    pub(super) fn embed(&self, rows: Range<usize>, hidden: &mut [f32]) {
        let model = &self.config.model;
        let tokens = &self.batch.tokens[rows];
        for (place, out) in tokens.iter().zip(hidden.chunks_exact_mut(model.hidden_size)) {
            self.weights.model.embedding.row(place.token, out);
            if model.embedding_scale != 1.0 {
                elementwise::scale(self.isa, out, model.embedding_scale);
            }
        }
    }

    /// After the last layer: the tokens' vectors.
    pub(super) fn finish(&self, hidden: &mut [f32]) {
        for row in hidden.chunks_exact_mut(self.config.model.hidden_size) {
            self.normalise(row, self.weights.model.final_norm.weight());
        }
    }

    /// Normalises heads where the family does, one by one or all together, and applies rotary positions where the layer
    /// has any.
    fn rotate(&self, layer: usize, norm: Option<&[f32]>, heads: &mut [f32], position: usize) {
        let model = &self.config.model;
        if let Some(norm) = norm {
            heads
                .chunks_exact_mut(norm.len())
                .for_each(|head| self.normalise(head, norm));
        }
        if model.rotary_layers[layer] {
            let (cos, sin) = self.rope[usize::from(model.window(layer).is_some())].row(position);
            for head in heads.chunks_exact_mut(model.head_dim) {
                elementwise::rope(self.isa, head, cos, sin, model.rope_style);
            }
        }
    }

    /// What follows attention: its output matrix and the feed-forward block, each added.
    pub(super) fn finish_layer(&self, layer: &Layer, hidden: &mut [f32], context: &[f32], own: &mut Own) {
        let isa = self.isa;
        let width = self.config.model.hidden_size;
        fill(isa, &own.context_input, context);
        let Some(output) = &layer.attention_output else {
            unreachable!("layers without attention are refused when the model is opened")
        };
        // SAFETY: the thread's own memory.
        unsafe { multiply_into(isa, output, &own.context_input, own.out.as_mut_ptr(), width) };
        self.add_block(layer.post_attention_norm.as_deref(), hidden, &mut own.out);
        self.fill_normalised(layer.ffn_norm.as_ref().map(Norm::weight), hidden, own);
        let [gated] = layer.ffn.gated() else {
            unreachable!("experts are refused when the model is opened")
        };
        self.feed_forward(gated, own);
        self.add_block(layer.post_ffn_norm.as_deref(), hidden, &mut own.out);
    }

    /// The feed-forward block of the thread's input, into its output.
    fn feed_forward(&self, Gated { gate, up, down, curve }: &Gated, own: &mut Own) {
        let (isa, model) = (self.isa, &self.config.model);
        let ffn = model.ffn_size;
        let num_numbers = own.input.tokens() * ffn;
        // SAFETY: the thread's own memory, which has room for the tile.
        unsafe {
            if let Some(gate) = gate {
                multiply_into(isa, gate, &own.input, own.gate.as_mut_ptr(), ffn);
            }
            multiply_into(isa, up, &own.input, own.out.as_mut_ptr(), ffn);
        }
        let (inner, gate) = (&mut own.out[..num_numbers], &own.gate[..num_numbers]);
        match model.activation {
            Activation::Silu => elementwise::silu_mul(isa, inner, gate),
            Activation::GeluTanh => elementwise::gelu_tanh_mul(isa, inner, gate),
            Activation::Relu => elementwise::relu(isa, inner),
            Activation::ReluSquared => elementwise::relu_squared(isa, inner),
            Activation::Xielu => curve.iter().for_each(|curve| curve.bend(isa, inner)),
            Activation::BareGelu => elementwise::gelu(isa, inner),
            Activation::BareGeluTanh => elementwise::gelu_tanh(isa, inner),
            Activation::ClampedSwiglu { .. } => unreachable!("only experts have it"),
        }
        fill(isa, &own.ffn_input, inner);
        // SAFETY: as above; the input was copied.
        unsafe { multiply_into(isa, down, &own.ffn_input, own.out.as_mut_ptr(), model.hidden_size) };
    }

    /// Adds a block's output to the stream, normalised where the family does.
    fn add_block(&self, norm: Option<&[f32]>, hidden: &mut [f32], out: &mut [f32]) {
        let width = self.config.model.hidden_size;
        for (hidden, out) in hidden.chunks_exact_mut(width).zip(out.chunks_exact_mut(width)) {
            if let Some(norm) = norm {
                self.normalise(out, norm);
            }
            elementwise::add(self.isa, hidden, out);
        }
    }

    /// Writes the stream as a product's input, normalised where the family does; the stream stays as it is.
    fn fill_normalised(&self, norm: Option<&[f32]>, hidden: &[f32], own: &mut Own) {
        let Some(norm) = norm else {
            return fill(self.isa, &own.input, hidden);
        };
        let (width, epsilon) = (norm.len(), self.config.model.norm_epsilon);
        let normalised = &mut own.out[..hidden.len()];
        for (row, out) in hidden.chunks_exact(width).zip(normalised.chunks_exact_mut(width)) {
            elementwise::rms_norm(self.isa, row, norm, epsilon, out);
        }
        fill(self.isa, &own.input, normalised);
    }

    fn normalise(&self, row: &mut [f32], norm: &[f32]) {
        elementwise::rms_norm_in_place(self.isa, row, norm, self.config.model.norm_epsilon);
    }
}
