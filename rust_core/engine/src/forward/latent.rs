//! Latent attention in the absorbed form (DeepSeek-V2, arXiv 2405.04434): a head's query is made one of a latent, scores
//! and what is attended to are of latents alone, and the head's values are made of that.
//!
//! The form is the same for prompts and for single tokens, so that no bit depends on how a text came to be computed.

use std::ops::Range;

use pyagent_kernels::attention::store_kv;
use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::{BLOCK_COLS, PackedMatrix, ROWS_PER_GROUP};

use super::{MOST_GROUPS, Part, Pass, Plan, Tiling};
use crate::config::latent::NORM_EPSILON;
use crate::config::{Latent, ModelConfig};
use crate::model::{LatentWeights, Mixer, Weights};
use crate::workspace::{Forms, Own, Patch};

/// Heads in a piece at most.
const MOST_HEADS: usize = 8;
/// Heads that share the reading of latents, where they divide all: those that fill a kernel's registers, or half.
const SHARING_HEADS: [usize; 2] = [8, 4];

/// What a layer's stages hand to each other. Of heads, a row for each head and token: a head's tokens follow each other.
pub struct LatentBuffers {
    /// Compressed queries.
    queries: Activations,
    /// The part of heads' queries without positions.
    plain: Activations,
    /// What heads attended to.
    attended: Activations,
    forms: [Forms; 3],
}

impl LatentBuffers {
    /// Empty buffers.
    pub fn new(weights: &Weights) -> Self {
        let layers = weights.layers.iter();
        let layers = || {
            layers.clone().filter_map(|layer| match &layer.mixer {
                Mixer::Latent(latent) => Some(latent.as_ref()),
                _ => None,
            })
        };
        Self {
            queries: Activations::new(),
            plain: Activations::new(),
            attended: Activations::new(),
            forms: [
                Forms::of(layers().flat_map(LatentWeights::of_queries)),
                Forms::of(layers().flat_map(|latent| &latent.key_up)),
                Forms::of(layers().flat_map(|latent| &latent.value_up)),
            ],
        }
    }

    /// Makes room for so many tokens.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        let Some(latent) = &config.latent else { return };
        let sizes = buffer_sizes(config, latent, tokens);
        let buffers = [&mut self.queries, &mut self.plain, &mut self.attended];
        for ((buffer, forms), (rows, cols)) in buffers.into_iter().zip(self.forms).zip(sizes) {
            buffer.resize(rows, cols, forms.is_quantised, forms.is_dense);
        }
    }

    /// Compressed queries.
    pub(super) fn queries(&self) -> &Activations {
        &self.queries
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        [&self.queries, &self.plain, &self.attended]
            .map(Activations::bytes)
            .iter()
            .sum()
    }
}

/// Rows and columns of the buffers in a step of so many tokens.
fn buffer_sizes(config: &ModelConfig, latent: &Latent, tokens: usize) -> [(usize, usize); 3] {
    let rows = tokens.saturating_mul(config.num_heads);
    [
        (tokens, latent.query_rank.unwrap_or(0)),
        (rows, latent.plain_dims),
        (rows, latent.rank),
    ]
}

/// Rows and columns of what a step of so many tokens takes, if the model has latent attention.
pub(crate) fn latent_sizes(config: &ModelConfig, tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    let sizes = config.latent.map(|latent| buffer_sizes(config, &latent, tokens));
    sizes.into_iter().flatten()
}

/// Query heads that are computed together.
pub(super) fn sharing_heads(num_heads: usize) -> usize {
    let fits = |heads: &usize| num_heads.is_multiple_of(*heads);
    SHARING_HEADS.into_iter().find(fits).unwrap_or(num_heads)
}

/// Heads whose values fill whole blocks of a quantised input.
fn heads_per_block(config: &ModelConfig, latent: &Latent) -> usize {
    match config.num_heads {
        _ if latent.value_dims.is_multiple_of(BLOCK_COLS) => 1,
        heads if heads.is_multiple_of(2) => 2,
        heads => heads,
    }
}

/// Columns of the widest tile that pieces use.
pub(super) fn most_columns(config: &ModelConfig) -> usize {
    config.latent.map_or(0, |latent| {
        let heads = heads_per_block(config, &latent).max(MOST_HEADS);
        heads.min(config.num_heads) * latent.key_dims().max(latent.value_dims)
    })
}

/// How the projections of a layer that stores keys and values alone are cut: by columns of latents and rotated keys.
pub(super) fn storing_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let columns = config.latent.map_or(0, |latent| latent.cached_dims());
    Tiling::new(plan.num_rows(), columns / ROWS_PER_GROUP, MOST_GROUPS, plan.num_threads)
}

/// How the making of latents' queries is cut: by heads.
pub(super) fn absorb_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    Tiling::new(plan.num_rows(), config.num_heads, MOST_HEADS, plan.num_threads)
}

/// How the making of values is cut: by heads whose values fill whole blocks.
pub(super) fn expand_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let unit = config.latent.map_or(1, |latent| heads_per_block(config, &latent));
    let most = (MOST_HEADS / unit).max(1);
    Tiling::new(plan.num_rows(), config.num_heads / unit, most, plan.num_threads)
}

impl Part<'_> {
    fn latent(&self, layer: usize) -> Option<(Latent, &LatentWeights)> {
        match (&self.pass.weights.layers[layer].mixer, self.pass.config.latent) {
            (Mixer::Latent(weights), Some(latent)) => Some((latent, weights)),
            _ => None,
        }
    }

    /// Some columns of compressed queries, latents and rotated keys, for some rows. Where a layer stores keys and values
    /// alone, the columns are counted from the latents' on.
    ///
    /// # Safety
    /// These columns of these rows are this piece's.
    pub(super) unsafe fn project_latent(
        &self,
        layer: usize,
        weights: &LatentWeights,
        (rows, groups): (Range<usize>, Range<usize>),
    ) {
        let down = weights.query_down.as_ref().map(|(down, _)| (down, 0));
        let start = down.map_or(0, |(down, _)| down.weight.rows());
        let before = match self.pass.stores_alone(self.plan, layer) {
            true => start / ROWS_PER_GROUP,
            false => 0,
        };
        let groups = groups.start + before..groups.end + before;
        let index_start = self.pass.config.latent.map_or(0, |latent| latent.index_start());
        let indexer = weights.indexer.iter();
        let indexer = indexer.flat_map(|indexer| {
            let after_key = index_start + indexer.key.weight.rows();
            [(&indexer.key, index_start), (&indexer.weight, after_key)]
        });
        let linears = down.into_iter().chain([(&weights.latent, start)]).chain(indexer);
        // SAFETY: by contract.
        unsafe { self.project_beside(linears, (rows, groups)) };
    }

    /// Normalises a row's compressed query and its latent, rotates its key, and stores latent and key.
    ///
    /// # Safety
    /// The layer's projections are over, and no other thread uses the row or its KV slot in this stage.
    pub(super) unsafe fn compress(&self, layer: usize, row: usize) {
        let Pass { space, isa, .. } = *self.pass;
        let Some((latent, weights)) = self.latent(layer) else {
            return;
        };
        // SAFETY: by contract.
        unsafe {
            let compressed = &mut space.mixed.row(row)[..latent.compressed_dims()];
            let (compressed, index) = compressed.split_at_mut(latent.index_start());
            let (query, cached) = compressed.split_at_mut(latent.query_rank.unwrap_or(0));
            let queries = weights.query_down.as_ref();
            if let Some((_, norm)) = queries.filter(|_| !self.pass.stores_alone(self.plan, layer)) {
                elementwise::rms_norm_in_place(isa, query, norm, NORM_EPSILON);
                space.latent.queries.write_row(isa, row, query);
            }
            let (values, key) = cached.split_at_mut(latent.rank);
            elementwise::rms_norm_in_place(isa, values, &weights.latent_norm, NORM_EPSILON);
            self.rotate_row(layer, row, key);
            self.each_slot(layer, row..row + 1, 0..1, |layout, _, block, slot, head| {
                store_kv(isa, layout, block, slot, head, cached, &[]);
            });
            if let (Some(indexer), Some(weights)) = (latent.indexer, &weights.indexer) {
                self.store_index_key(layer, row, weights, &mut index[..indexer.key_dims]);
            }
        }
    }

    /// Kimi Linear's keys have no positions: there nothing is rotated.
    fn rotate_row(&self, layer: usize, row: usize, values: &mut [f32]) {
        let Pass { config, isa, rope, .. } = *self.pass;
        if !config.rotary_layers[layer] {
            return;
        }
        let (cos, sin) = rope[0].row(self.plan.rows[row].2);
        elementwise::rope(isa, values, cos, sin, config.rope_style);
    }

    /// Some heads' queries for some rows, made queries of latents.
    ///
    /// # Safety
    /// The rows are compressed; these heads of these rows are this piece's.
    pub(super) unsafe fn absorb(&self, layer: usize, (rows, heads): (Range<usize>, Range<usize>), own: &mut Own) {
        let Pass { config, space, isa, .. } = *self.pass;
        let Some((latent, weights)) = self.latent(layer) else {
            return;
        };
        let (width, cached) = (latent.key_dims(), latent.cached_dims());
        let mut queries = Patch::own(&mut own.first, rows.clone(), heads.start * width..heads.end * width);
        let input = match weights.query_down {
            Some(_) => &space.latent.queries,
            None => &self.stream.hidden_input,
        };
        // SAFETY: by contract.
        unsafe {
            self.multiply_columns(&weights.query, input, None, &mut queries);
            self.grow_queries(layer, &mut queries);
            for head in heads {
                for row in rows.clone() {
                    let query = queries.part(row, head * width..(head + 1) * width);
                    let (plain, key) = query.split_at_mut(latent.plain_dims);
                    self.rotate_row(layer, row, key);
                    space.latent.plain.write_row(isa, self.head_row(head, row), plain);
                    let start = head * cached + latent.rank;
                    let mut rotated = space.query.patch(row..row + 1, start..start + key.len());
                    rotated.row(row).copy_from_slice(key);
                }
                let out = space.query.base().wrapping_add(head * cached);
                let stride = config.query_size();
                self.multiply_head(
                    &weights.key_up[head],
                    &space.latent.plain,
                    head,
                    rows.clone(),
                    (out, stride),
                );
            }
        }
    }

    /// Where a head's part of a token's row is in buffers of heads.
    fn head_row(&self, head: usize, row: usize) -> usize {
        head * self.plan.num_rows() + row
    }

    /// Multiplies a head's rows of an input; `out` is where those of row 0 would go, and the numbers from a row to the next.
    ///
    /// # Safety
    /// `input` holds the rows; what is written is the caller's.
    unsafe fn multiply_head(
        &self,
        matrix: &PackedMatrix,
        input: &Activations,
        head: usize,
        rows: Range<usize>,
        (out, stride): (*mut f32, usize),
    ) {
        let first = self.head_row(head, 0);
        let out = out.wrapping_sub(first * stride);
        let rows = first + rows.start..first + rows.end;
        // SAFETY: by contract.
        unsafe { matmul::matmul(self.pass.isa, matrix, 0..matrix.num_groups(), input, rows, out, stride) };
    }

    /// Hands on what heads attended to.
    ///
    /// # Safety
    /// These heads of these rows are this piece's.
    pub(super) unsafe fn hand_on_latents(&self, latent: &Latent, attended: &mut Patch<'_>) {
        let columns = attended.columns();
        for row in attended.rows() {
            for start in columns.clone().step_by(latent.rank) {
                let values = attended.part(row, start..start + latent.rank);
                let place = self.head_row(start / latent.rank, row);
                // SAFETY: by contract.
                unsafe { self.pass.space.latent.attended.write_row(self.pass.isa, place, values) };
            }
        }
    }

    /// Some heads' values for some rows, of the latents they attended to: the output matrix's input.
    ///
    /// # Safety
    /// Attention is over; these heads of these rows are this piece's.
    pub(super) unsafe fn expand(&self, layer: usize, (rows, units): (Range<usize>, Range<usize>), own: &mut Own) {
        let Pass { config, space, isa, .. } = *self.pass;
        let Some((latent, weights)) = self.latent(layer) else {
            return;
        };
        let (unit, width) = (heads_per_block(config, &latent), latent.value_dims);
        let heads = units.start * unit..units.end * unit;
        let values = Patch::own(&mut own.first, rows.clone(), heads.start * width..heads.end * width);
        let (origin, stride) = (values.origin(), values.stride());
        // SAFETY: by contract.
        unsafe {
            for head in heads {
                let out = (origin.wrapping_add(head * width), stride);
                self.multiply_head(&weights.value_up[head], &space.latent.attended, head, rows.clone(), out);
            }
            space.heads_inputs[0].write_tile(isa, rows, values.columns(), origin, stride);
        }
    }
}
