//! The decoder's forward pass: one batch of tokens through all layers.
//!
//! All threads of the pool run `forward` together; each stage shares its rows out and ends in a barrier. Who computes a
//! row never changes its value: every output is one lane of a reduction in fixed order.

use std::ops::Range;

use pyagent_kernels::attention::{self, AttentionArgs, AttentionScratch};
use pyagent_kernels::elementwise::{self, RopeTable};
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::pool::Worker;

use crate::config::{Activation, ModelConfig};
use crate::kv::KvMemory;
use crate::model::{Layer, Linear, Weights};
use crate::workspace::{Rows, Workspace};

/// Query tokens that one piece of attention work covers.
const ATTENTION_TILE: usize = 16;

/// Tokens of one sequence to compute, at consecutive positions.
pub struct Segment<'a> {
    /// The sequence's KV blocks, covering every position up to the last token's.
    pub table: &'a [u32],
    /// Position of the first token.
    pub first_position: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// How many of the last tokens give logits.
    pub num_outputs: usize,
}

/// A batch laid out in rows: which token is where.
pub struct Plan<'a> {
    segments: &'a [Segment<'a>],
    /// Of each row: its token, segment and position.
    rows: Vec<(u32, usize, usize)>,
    /// First row of each segment.
    starts: Vec<usize>,
    /// Rows that give logits.
    outputs: Vec<usize>,
    /// Attention work: (segment, kv head, first token of the tile).
    tiles: Vec<(usize, usize, usize)>,
}

impl<'a> Plan<'a> {
    /// Lays a batch out.
    pub fn new(segments: &'a [Segment<'a>], num_kv_heads: usize) -> Self {
        let mut plan = Self {
            segments,
            rows: Vec::new(),
            starts: Vec::new(),
            outputs: Vec::new(),
            tiles: Vec::new(),
        };
        for (index, segment) in segments.iter().enumerate() {
            let start = plan.rows.len();
            let count = segment.tokens.len();
            plan.starts.push(start);
            plan.rows.extend(
                segment
                    .tokens
                    .iter()
                    .enumerate()
                    .map(|(t, &token)| (token, index, segment.first_position + t)),
            );
            plan.outputs.extend(start + count - segment.num_outputs..start + count);
            for first in (0..count).step_by(ATTENTION_TILE) {
                plan.tiles.extend((0..num_kv_heads).map(|head| (index, head, first)));
            }
        }
        plan
    }

    /// Tokens in the batch.
    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows of logits.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }
}

/// What a forward pass reads and writes.
pub struct Pass<'a> {
    /// The model's shape.
    pub config: &'a ModelConfig,
    /// The model's weights.
    pub weights: &'a Weights,
    /// Keys and values; written at the batch's positions.
    pub kv: &'a KvMemory,
    /// Buffers, prepared for the plan.
    pub space: &'a Workspace,
    /// Rotary tables that reach the plan's last position: of layers that see everything, and of sliding-window layers.
    pub rope: &'a [RopeTable; 2],
    /// The instruction set.
    pub isa: Isa,
}

impl Pass<'_> {
    /// Computes the batch; its logits end in `space.logits`. Called by every thread of the pool.
    ///
    /// # Safety
    /// The plan's tokens are below the vocabulary's size, its tables cover its positions with blocks that exist, no
    /// block is written by two segments, and `space` was prepared for the plan.
    pub unsafe fn run(&self, worker: &Worker, plan: &Plan<'_>, scratch: &mut AttentionScratch) {
        // SAFETY: every stage touches only the rows handed to it, between two barriers.
        unsafe {
            self.embed(worker, plan);
            for (index, layer) in self.weights.layers.iter().enumerate() {
                self.attention(worker, plan, index, layer, scratch);
                self.feed_forward(worker, plan, index, layer);
            }
            self.output(worker, plan);
        }
    }

    /// Embeds the tokens and normalises them for the first layer.
    unsafe fn embed(&self, worker: &Worker, plan: &Plan<'_>) {
        let space = self.space;
        worker.share(plan.num_rows(), |row| {
            let (token, ..) = plan.rows[row];
            // SAFETY: this thread owns `row` until the barrier.
            unsafe {
                let residual = space.residual.row(row);
                self.weights.embedding.row(token as usize, residual);
                if self.config.embedding_scale != 1.0 {
                    residual
                        .iter_mut()
                        .for_each(|value| *value *= self.config.embedding_scale);
                }
                self.normalise(
                    residual,
                    &self.weights.layers[0].attention_norm,
                    space.delta.row(row),
                    &space.hidden_input,
                    row,
                );
            }
        });
    }

    unsafe fn attention(
        &self,
        worker: &Worker,
        plan: &Plan<'_>,
        index: usize,
        layer: &Layer,
        scratch: &mut AttentionScratch,
    ) {
        let space = self.space;
        let rows = plan.num_rows();
        let (query, key, value) = (&space.query, &space.key, &space.value);
        // SAFETY: as `run`.
        unsafe {
            let matrices = [
                (&layer.query.weight, query),
                (&layer.key.weight, key),
                (&layer.value.weight, value),
            ];
            self.multiply(worker, &matrices, &space.hidden_input, rows);
            self.rotate_and_store(worker, plan, index, layer);
            self.attend(worker, plan, index, scratch);
            worker.share(rows, |row| {
                space.heads_input.write_row(self.isa, row, space.heads.row(row))
            });
            self.multiply(
                worker,
                &[(&layer.attention_output.weight, &space.delta)],
                &space.heads_input,
                rows,
            );
            let post_norm = layer.post_attention_norm.as_deref();
            self.close_block(worker, rows, &layer.attention_output, post_norm, Some(&layer.ffn_norm));
        }
    }

    /// Adds biases, normalises heads where the family does, applies rotary positions and stores keys and values.
    unsafe fn rotate_and_store(&self, worker: &Worker, plan: &Plan<'_>, index: usize, layer: &Layer) {
        let (space, config) = (self.space, self.config);
        let is_local = config.window(index).is_some();
        let base = self.kv.layer_base(index);
        let block_tokens = attention::BLOCK_TOKENS;
        worker.share(plan.num_rows(), |row| {
            let (_, segment, position) = plan.rows[row];
            // SAFETY: this thread owns `row`, and the KV slot of its position, until the barrier.
            unsafe {
                let (query, key, value) = (space.query.row(row), space.key.row(row), space.value.row(row));
                for (linear, values) in [
                    (&layer.query, &mut *query),
                    (&layer.key, &mut *key),
                    (&layer.value, &mut *value),
                ] {
                    add_bias(self.isa, linear, values);
                }
                let (cos, sin) = self.rope[usize::from(is_local)].row(position);
                for (values, norm) in [(query, &layer.query_norm), (&mut *key, &layer.key_norm)] {
                    for head in values.chunks_exact_mut(config.head_dim) {
                        if let Some(norm) = norm {
                            elementwise::rms_norm_in_place(self.isa, head, norm, config.norm_epsilon);
                        }
                        elementwise::rope(self.isa, head, cos, sin, config.rope_style);
                    }
                }
                let block = plan.segments[segment].table[position / block_tokens];
                attention::store_kv(
                    self.isa,
                    &self.kv.layout,
                    base,
                    block,
                    position % block_tokens,
                    key,
                    value,
                );
            }
        });
    }

    unsafe fn attend(&self, worker: &Worker, plan: &Plan<'_>, index: usize, scratch: &mut AttentionScratch) {
        let (space, config) = (self.space, self.config);
        let heads_per_kv = config.num_heads / config.num_kv_heads;
        worker.share(plan.tiles.len(), |tile| {
            let (segment_index, kv_head, first) = plan.tiles[tile];
            let segment = &plan.segments[segment_index];
            let offset =
                (plan.starts[segment_index] + first) * config.query_size() + kv_head * heads_per_kv * config.head_dim;
            // SAFETY: this tile's queries and outputs are its own; the KV it reads was stored before the last barrier.
            unsafe {
                let args = AttentionArgs {
                    layer_base: self.kv.layer_base(index),
                    table: segment.table,
                    kv_head,
                    num_query_heads_per_kv: heads_per_kv,
                    first_position: segment.first_position + first,
                    num_tokens: ATTENTION_TILE.min(segment.tokens.len() - first),
                    window: config.window(index),
                    scale: config.attention_scale,
                    softcap: None,
                    q: space.query.base().add(offset),
                    q_stride: config.query_size(),
                    out: space.heads.base().add(offset),
                    out_stride: config.query_size(),
                };
                attention::attend(self.isa, &self.kv.layout, &args, scratch);
            }
        });
    }

    unsafe fn feed_forward(&self, worker: &Worker, plan: &Plan<'_>, index: usize, layer: &Layer) {
        let space = self.space;
        let rows = plan.num_rows();
        // SAFETY: as `run`.
        unsafe {
            let matrices = [(&layer.gate.weight, &space.gate), (&layer.up.weight, &space.up)];
            self.multiply(worker, &matrices, &space.hidden_input, rows);
            worker.share(rows, |row| {
                let (gate, up, inner) = (space.gate.row(row), space.up.row(row), space.inner.row(row));
                add_bias(self.isa, &layer.gate, gate);
                add_bias(self.isa, &layer.up, up);
                match self.config.activation {
                    Activation::Silu => elementwise::silu_mul(self.isa, gate, up, inner),
                    Activation::GeluTanh => elementwise::gelu_tanh_mul(self.isa, gate, up, inner),
                }
                space.ffn_input.write_row(self.isa, row, inner);
            });
            self.multiply(worker, &[(&layer.down.weight, &space.delta)], &space.ffn_input, rows);
            let next_norm = self
                .weights
                .layers
                .get(index + 1)
                .map(|next| next.attention_norm.as_slice());
            self.close_block(worker, rows, &layer.down, layer.post_ffn_norm.as_deref(), next_norm);
        }
    }

    /// Adds a block's output to the residual stream and normalises the sum for the next block.
    unsafe fn close_block(
        &self,
        worker: &Worker,
        rows: usize,
        linear: &Linear,
        post_norm: Option<&[f32]>,
        next_norm: Option<&[f32]>,
    ) {
        let space = self.space;
        worker.share(rows, |row| {
            // SAFETY: this thread owns `row` until the barrier.
            unsafe {
                let (residual, delta) = (space.residual.row(row), space.delta.row(row));
                add_bias(self.isa, linear, delta);
                if let Some(norm) = post_norm {
                    elementwise::rms_norm_in_place(self.isa, delta, norm, self.config.norm_epsilon);
                }
                elementwise::add(self.isa, residual, delta);
                if let Some(norm) = next_norm {
                    self.normalise(residual, norm, delta, &space.hidden_input, row);
                }
            }
        });
    }

    unsafe fn output(&self, worker: &Worker, plan: &Plan<'_>) {
        let space = self.space;
        worker.share(plan.outputs.len(), |output| {
            let row = plan.outputs[output];
            // SAFETY: this thread owns this output and its row until the barrier.
            unsafe {
                let (residual, delta) = (space.residual.row(row), space.delta.row(row));
                self.normalise(residual, &self.weights.final_norm, delta, &space.output_input, output);
            }
        });
        // SAFETY: as `run`.
        unsafe {
            self.multiply(
                worker,
                &[(self.weights.output_matrix(), &space.logits)],
                &space.output_input,
                plan.outputs.len(),
            )
        };
    }

    /// RMS norm of `values` into `scratch`, handed to a matrix as row `row` of its input.
    ///
    /// # Safety
    /// No other thread writes this row of `input` until the next barrier.
    unsafe fn normalise(&self, values: &[f32], weight: &[f32], scratch: &mut [f32], input: &Activations, row: usize) {
        elementwise::rms_norm(self.isa, values, weight, self.config.norm_epsilon, scratch);
        // SAFETY: the caller keeps rows apart.
        unsafe { input.write_row(self.isa, row, scratch) };
    }

    /// Multiplies one input by several matrices, sharing their row groups out.
    ///
    /// # Safety
    /// `input` holds `rows` rows, and no thread uses the outputs until the barrier.
    unsafe fn multiply(&self, worker: &Worker, matrices: &[(&PackedMatrix, &Rows)], input: &Activations, rows: usize) {
        if rows == 0 {
            return;
        }
        let total: usize = matrices.iter().map(|(matrix, _)| matrix.num_groups()).sum();
        let chunk = groups_per_chunk(total, worker.num_threads(), rows);
        let chunks: usize = matrices
            .iter()
            .map(|(matrix, _)| matrix.num_groups().div_ceil(chunk))
            .sum();
        worker.share(chunks, |mut index| {
            for (matrix, out) in matrices {
                let count = matrix.num_groups().div_ceil(chunk);
                if index < count {
                    let groups = index * chunk..((index + 1) * chunk).min(matrix.num_groups());
                    // SAFETY: this thread owns these groups' rows of the output until the barrier.
                    unsafe {
                        matmul::matmul(
                            self.isa,
                            matrix,
                            groups,
                            input,
                            Range { start: 0, end: rows },
                            out.base(),
                            out.width(),
                        )
                    };
                    return;
                }
                index -= count;
            }
        });
    }
}

/// Row groups one thread takes at a time: several pieces per thread, so that a thread the operating system holds up
/// does not hold up the rest, but not so small that taking them costs.
fn groups_per_chunk(total: usize, threads: usize, rows: usize) -> usize {
    let pieces = if rows == 1 { 4 } else { 8 };
    (total / (threads * pieces)).clamp(1, 64)
}

fn add_bias(isa: Isa, linear: &Linear, values: &mut [f32]) {
    if let Some(bias) = &linear.bias {
        elementwise::add(isa, values, bias);
    }
}
