//! Per-layer embeddings: before the first layer each token gets a vector for every layer, partly looked up by its id, partly
//! made of its embedding; at a layer's end a gate lets some of that layer's vector into the stream.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::Activations;
use pyagent_kernels::pack::BLOCK_COLS;

use super::{GATE_BLOCKS, Part, Pass, Plan, Tiling};
use crate::config::ModelConfig;
use crate::model::Weights;
use crate::workspace::{Forms, Own, Patch, Rows};

/// What stages of per-layer embeddings hand to each other.
pub struct PerLayerBuffers {
    /// Tokens' embeddings.
    embedded: Activations,
    /// Of each token, its vectors for all layers.
    vectors: Rows,
    /// What gates let through.
    inside: Activations,
    forms: [Forms; 2],
}

impl PerLayerBuffers {
    /// Empty buffers.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Self {
        let projection = weights.per_layer.iter().map(|inputs| &inputs.projection.weight);
        let layers = weights.layers.iter().filter_map(|layer| layer.per_layer.as_ref());
        Self {
            embedded: Activations::new(),
            vectors: Rows::new(config.num_layers * config.per_layer_size()),
            inside: Activations::new(),
            forms: [
                Forms::of(projection),
                Forms::of(layers.map(|per_layer| &per_layer.projection.weight)),
            ],
        }
    }

    /// Makes room for so many tokens.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        if config.per_layer_size() == 0 {
            return;
        }
        self.vectors.reserve(tokens);
        let sizes = [config.hidden_size, config.per_layer_size()];
        let buffers = [&mut self.embedded, &mut self.inside];
        for ((buffer, forms), cols) in buffers.into_iter().zip(self.forms).zip(sizes) {
            buffer.resize(tokens, cols, forms.is_quantised, forms.is_dense);
        }
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        self.embedded.bytes() + self.vectors.bytes() + self.inside.bytes()
    }
}

/// Layers whose vectors a piece makes at most.
fn most_layers(config: &ModelConfig) -> usize {
    (GATE_BLOCKS * BLOCK_COLS / config.per_layer_size().max(1)).max(1)
}

/// Columns of the widest tile that pieces use.
pub(super) fn most_columns(config: &ModelConfig) -> usize {
    most_layers(config).min(config.num_layers) * config.per_layer_size()
}

/// How the product that makes vectors of embeddings is cut: by layers.
pub(super) fn vectors_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    Tiling::new(
        plan.num_rows(),
        config.num_layers,
        most_layers(config),
        plan.num_threads,
    )
}

/// How a layer's gate is cut.
pub(super) fn gate_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let blocks = config.per_layer_size().div_ceil(BLOCK_COLS);
    Tiling::new(plan.num_rows(), blocks, GATE_BLOCKS, plan.num_threads)
}

impl Part<'_> {
    /// A token's vectors by its id, and its embedding for what is made of that.
    ///
    /// # Safety
    /// No other thread uses the row in this stage.
    pub(super) unsafe fn look_up(&self, row: usize, own: &mut Own) {
        let Pass { config, space, isa, .. } = *self.pass;
        let Some(inputs) = &self.pass.weights.per_layer else {
            return;
        };
        let (token, ..) = self.plan.rows[row];
        let embedding = &mut own.row[..config.hidden_size];
        self.embed(row, embedding);
        // SAFETY: as the caller's.
        unsafe {
            space.per_layer.embedded.write_row(isa, row, embedding);
            let vectors = space.per_layer.vectors.row(row);
            inputs.table.row(token as usize, vectors);
            elementwise::scale(isa, vectors, (config.per_layer_size() as f32).sqrt());
        }
    }

    /// Adds what embeddings make of it to some layers' vectors.
    ///
    /// # Safety
    /// These layers' vectors of these rows are this piece's; all were looked up.
    pub(super) unsafe fn make_vectors(&self, (rows, layers): (Range<usize>, Range<usize>), own: &mut Own) {
        let Pass { config, space, isa, .. } = *self.pass;
        let Some(inputs) = &self.pass.weights.per_layer else {
            return;
        };
        let size = config.per_layer_size();
        let columns = layers.start * size..layers.end * size;
        let mut made = Patch::own(&mut own.first, rows.clone(), columns.clone());
        // SAFETY: as the caller's.
        unsafe {
            self.multiply_columns(&inputs.projection, &space.per_layer.embedded, None, &mut made);
            let mut vectors = space.per_layer.vectors.patch(rows.clone(), columns);
            for row in rows {
                let (made, vectors) = (made.row(row), vectors.row(row));
                elementwise::scale(isa, made, (config.hidden_size as f32).powf(-0.5));
                elementwise::rms_norm_in_place(isa, made, &inputs.norm, config.norm_epsilon);
                elementwise::add(isa, vectors, made);
                elementwise::scale(isa, vectors, std::f32::consts::FRAC_1_SQRT_2);
            }
        }
    }

    /// What a layer's gate lets through of some columns of its vectors.
    ///
    /// # Safety
    /// These columns of these rows are this piece's; the stream is past the layer's other blocks.
    pub(super) unsafe fn gate_vectors(
        &self,
        layer: usize,
        (rows, blocks): (Range<usize>, Range<usize>),
        own: &mut Own,
    ) {
        let Pass { config, space, isa, .. } = *self.pass;
        let Some(per_layer) = &self.pass.weights.layers[layer].per_layer else {
            return;
        };
        let size = config.per_layer_size();
        let columns = blocks.start * BLOCK_COLS..(blocks.end * BLOCK_COLS).min(size);
        let of_layer = layer * size + columns.start..layer * size + columns.end;
        let mut gate = Patch::own(&mut own.first, rows.clone(), columns.clone());
        let mut passed = Patch::own(&mut own.second, rows.clone(), columns.clone());
        // SAFETY: as the caller's; vectors are only read.
        unsafe {
            self.multiply_columns(&per_layer.gate, &self.stream.hidden_input, None, &mut gate);
            for row in rows.clone() {
                let vectors = space.per_layer.vectors.shared_row(row);
                passed.row(row).copy_from_slice(&vectors[of_layer.clone()]);
                self.activate(passed.row(row), gate.row(row), None);
            }
            let inside = &space.per_layer.inside;
            inside.write_tile(isa, rows, columns, passed.origin(), passed.stride());
        }
    }

    /// What the gates of the layer let through.
    pub(super) fn passed_vectors(&self) -> &Activations {
        &self.pass.space.per_layer.inside
    }
}
