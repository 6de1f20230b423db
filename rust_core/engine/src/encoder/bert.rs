//! The layers of BERT and of what came of it: norms follow the blocks or come before them, positions are rows of a table or
//! turn queries and keys, and the feed-forward block has a gate or none.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;

use pyagent_kernels::elementwise::RopeStyle;

use super::bert_config::{BertConfig, EncoderActivation};
use super::forward::{AttentionHead, Batch, Memory, Own, Place, Stages, add_bias, fill, multiply, multiply_into};
use super::layer_names::Part;
use super::tasks::LayerTasks;
use super::weights::{BertWeights, DenseBlock, EncoderLayer, FeedForward, Norm};

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

    fn head(&self, layer: usize, head: usize) -> AttentionHead {
        let width = self.hidden_size();
        let head_dim = width / self.config.num_heads;
        let reach = self.config.reach(layer).unwrap_or(usize::MAX);
        AttentionHead {
            key: width + head * head_dim,
            value: 2 * width + head * head_dim,
            scale: (head_dim as f32).powf(-0.5),
            before: reach,
            behind: reach,
            bias: self
                .weights
                .distances
                .as_ref()
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
            let tokens = &self.batch.tokens[rows.clone()];
            self.finish_layer(&self.weights.layers[layer - 1], tokens, hidden, context, own);
        }
        if layer == self.num_layers {
            if let Some(norm) = &self.weights.final_norm {
                hidden
                    .chunks_exact_mut(self.hidden_size())
                    .for_each(|row| self.normalise(row, norm));
            }
            return;
        }
        let EncoderLayer { query, key, value, .. } = &self.weights.layers[layer];
        self.fill_input(self.weights.layers[layer].attention_norm.as_ref(), hidden, own);
        let parts = [(Part::Query, query), (Part::Key, key), (Part::Value, value)];
        for (index, (part, linear)) in parts.into_iter().enumerate() {
            let out = memory.projected.at(rows.start).wrapping_add(index * self.hidden_size());
            let stride = memory.projected.width;
            // SAFETY: these columns of the tile's rows.
            unsafe { multiply_into(self.isa, linear, &own.input, out, stride) };
            if let Some(tasks) = &self.weights.layers[layer].tasks {
                let tokens = &self.batch.tokens[rows.clone()];
                // SAFETY: as above.
                unsafe { tasks.add(self.isa, part, tokens, &own.input, out, stride, &mut own.low) };
            }
        }
        self.normalise_queries_and_keys(layer, memory, rows.clone());
        if let Some(tables) = &self.weights.rope {
            let table = &tables[usize::from(self.config.reach(layer).is_some())];
            for row in rows {
                // SAFETY: the tile's row, which is written.
                let projected = unsafe { memory.projected.rows(row..row + 1) };
                let (cos, sin) = table.row(self.batch.tokens[row].position);
                let heads = projected[..2 * self.hidden_size()].chunks_exact_mut(table.rotary_dims());
                heads.for_each(|head| elementwise::rope(self.isa, head, cos, sin, RopeStyle::Neox));
            }
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
            task_tables,
            ..
        } = self.weights;
        let width = self.hidden_size();
        let (mut row, mut low) = (vec![0.0; width], Vec::new());
        let tokens = &self.batch.tokens[rows];
        for (place, out) in tokens.iter().zip(hidden.chunks_exact_mut(width)) {
            words.row(place.token, out);
            if let Some(types) = types {
                elementwise::add(self.isa, out, &types[place.kind * width..][..width]);
            }
            if let Some((of_words, of_types)) = task_tables {
                of_words.add(self.isa, place.task, place.token, out, &mut low);
                if let Some(of_types) = of_types {
                    of_types.add(self.isa, place.task, place.kind, out, &mut low);
                }
            }
            if let Some(positions) = positions {
                positions.row(place.position, &mut row);
                elementwise::add(self.isa, out, &row);
            }
            self.normalise(out, embedding_norm);
        }
    }

    /// Normalises the queries and the keys of a tile, of layers that do, each over all heads.
    fn normalise_queries_and_keys(&self, layer: usize, memory: &Memory, rows: Range<usize>) {
        let EncoderLayer {
            query_norm: Some(query),
            key_norm: Some(key),
            ..
        } = &self.weights.layers[layer]
        else {
            return;
        };
        let width = self.hidden_size();
        // SAFETY: the tile's rows, which are written.
        let projected = unsafe { memory.projected.rows(rows) };
        for row in projected.chunks_exact_mut(3 * width) {
            self.normalise(&mut row[..width], query);
            self.normalise(&mut row[width..2 * width], key);
        }
    }

    /// What follows attention: its output matrix, and the feed-forward block, each added, with norms after or before.
    fn finish_layer(&self, layer: &EncoderLayer, tokens: &[Place], hidden: &mut [f32], context: &[f32], own: &mut Own) {
        let (isa, hidden_size) = (self.isa, self.hidden_size());
        let is_pre_norm = self.config.is_pre_norm;
        fill(isa, &own.context_input, context);
        // SAFETY: the thread's own memory.
        unsafe {
            let out = own.out.as_mut_ptr();
            multiply(isa, &layer.attention_output, &own.context_input, out, hidden_size);
            if let Some(tasks) = &layer.tasks {
                let input = &own.context_input;
                tasks.add(
                    isa,
                    Part::AttentionOutput,
                    tokens,
                    input,
                    out,
                    hidden_size,
                    &mut own.low,
                );
            }
        }
        let after = |norm| if is_pre_norm { None } else { norm };
        if layer.second_norm.is_some() {
            own.gate[..hidden.len()].copy_from_slice(hidden);
        }
        self.add_block(
            layer.attention_output.bias.as_deref(),
            after(layer.attention_norm.as_ref()),
            hidden,
            &own.out,
        );
        if let Some(norm) = &layer.second_norm {
            elementwise::add(isa, hidden, &own.gate[..hidden.len()]);
            hidden
                .chunks_exact_mut(hidden_size)
                .for_each(|row| self.normalise(row, norm));
        }
        self.fill_input(Some(&layer.ffn_norm), hidden, own);
        match &layer.feed_forward {
            FeedForward::Dense(block) => self.feed_forward(block, layer.tasks.as_ref(), tokens, own),
            FeedForward::Experts(experts) => experts.compute(isa, own, (hidden_size, self.config.ffn_size)),
        }
        self.add_block(
            layer.feed_forward.bias(),
            after(Some(&layer.ffn_norm)),
            hidden,
            &own.out,
        );
    }

    /// The feed-forward block of the thread's input, into its output, without the last bias. What is made of a row's inner
    /// numbers is made while they are in the nearest cache.
    fn feed_forward(&self, layer: &DenseBlock, tasks: Option<&LayerTasks>, tokens: &[Place], own: &mut Own) {
        let (isa, ffn_size) = (self.isa, self.config.ffn_size);
        let num_numbers = own.input.tokens() * ffn_size;
        // SAFETY: the thread's own memory, which has room for the tile.
        unsafe {
            let out = own.out.as_mut_ptr();
            multiply(isa, &layer.up, &own.input, out, ffn_size);
            if let Some(tasks) = tasks {
                tasks.add(isa, Part::Up, tokens, &own.input, out, ffn_size, &mut own.low);
            }
        };
        if let Some(gate) = &layer.gate {
            // SAFETY: as above.
            unsafe { multiply(isa, gate, &own.input, own.gate.as_mut_ptr(), ffn_size) };
        }
        for (token, row) in own.out[..num_numbers].chunks_exact_mut(ffn_size).enumerate() {
            add_bias(isa, &layer.up, row);
            if let Some(linear) = &layer.gate {
                let gate = &mut own.gate[token * ffn_size..][..ffn_size];
                add_bias(isa, linear, gate);
                activate(isa, self.config.activation, gate);
                elementwise::mul(isa, row, gate);
            } else {
                activate(isa, self.config.activation, row);
            }
            // SAFETY: the thread's own memory, which has the tile's rows.
            unsafe { own.ffn_input.write_row(isa, token, row) };
        }
        // SAFETY: as above; the input was copied.
        unsafe {
            let (out, stride) = (own.out.as_mut_ptr(), self.hidden_size());
            multiply(isa, &layer.down, &own.ffn_input, out, stride);
            if let Some(tasks) = tasks {
                tasks.add(isa, Part::Down, tokens, &own.ffn_input, out, stride, &mut own.low);
            }
        };
    }

    /// Adds a block's output and bias to the stream, and normalises it where a norm follows.
    fn add_block(&self, bias: Option<&[f32]>, norm: Option<&Norm>, hidden: &mut [f32], out: &[f32]) {
        let width = self.hidden_size();
        for (hidden, out) in hidden.chunks_exact_mut(width).zip(out.chunks_exact(width)) {
            if let Some(bias) = bias {
                elementwise::add(self.isa, hidden, bias);
            }
            elementwise::add(self.isa, hidden, out);
            if let Some(norm) = norm {
                self.normalise(hidden, norm);
            }
        }
    }

    /// Writes the stream as a product's input, normalised where norms come before the blocks; the stream stays as it is.
    fn fill_input(&self, norm: Option<&Norm>, hidden: &[f32], own: &mut Own) {
        let Some(norm) = norm.filter(|_| self.config.is_pre_norm) else {
            return fill(self.isa, &own.input, hidden);
        };
        let normalised = &mut own.out[..hidden.len()];
        normalised.copy_from_slice(hidden);
        for row in normalised.chunks_exact_mut(self.hidden_size()) {
            self.normalise(row, norm);
        }
        fill(self.isa, &own.input, normalised);
    }

    fn normalise(&self, row: &mut [f32], norm: &Norm) {
        elementwise::layer_norm(self.isa, row, &norm.weight, &norm.bias, self.config.norm_epsilon);
    }
}

/// Applies an activation.
pub(super) fn activate(isa: Isa, activation: EncoderActivation, row: &mut [f32]) {
    match activation {
        EncoderActivation::Gelu => elementwise::gelu(isa, row),
        EncoderActivation::GeluTanh => elementwise::gelu_tanh(isa, row),
        EncoderActivation::Silu => elementwise::silu(isa, row),
    }
}
