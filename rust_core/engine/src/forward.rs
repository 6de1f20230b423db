//! The decoder's forward pass: one batch of tokens through all layers.
//!
//! All threads of the pool run it together; each stage shares its work out and ends in a barrier, of which a layer has
//! five: projections (with rotary positions and the KV store), attention, its output, the feed-forward block's inside,
//! its output. Who computes a row never changes its value: every output is one lane of a reduction in fixed order.

mod attention;

use std::ops::Range;
use std::sync::Arc;

use attention::AttentionPlan;
pub(crate) use attention::most_split_rows;
use pyagent_kernels::attention::{BLOCK_TOKENS, KvLayout, expect_kv, store_kv};
use pyagent_kernels::elementwise::{self, RopeTable};
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::{BLOCK_COLS, PackedMatrix, ROWS_PER_GROUP};
use pyagent_kernels::pool::Worker;

use crate::config::{Activation, ModelConfig};
use crate::kv::KvAdmission;
use crate::model::{Layer, Linear, Weights};
use crate::workspace::{Own, Patch, Rows, Stream, Workspace};

/// Rows that one piece of a product covers at most: what is made of them stays in the caches for the next stage.
const PRODUCT_TILE: usize = 64;
/// Blocks of the feed-forward block's inside in a piece at most, likewise.
const GATE_BLOCKS: usize = 16;
/// Rows that fill a tile of registers: for fewer, reading the weights once for each thread costs more than it saves.
const LEAST_OWN_ROWS: usize = 8;
/// Pieces of a product for each thread.
const PIECES_PER_THREAD: usize = 8;
/// Row groups of a matrix in a piece at most.
const MOST_GROUPS: usize = 64;
/// For up to this many rows, every thread computing all norms is quicker than a barrier.
pub(crate) const FEW_ROWS: usize = 4;

/// Tokens of one sequence to compute, at consecutive positions.
pub struct Segment<'a> {
    /// The sequence's KV pages, a table for each group of layers, covering every position up to the last token's.
    /// Blocks that no token of the segment sees may be [`crate::kv::NO_PAGE`].
    pub tables: &'a [Arc<Vec<u32>>],
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
    attention: AttentionPlan,
}

impl<'a> Plan<'a> {
    /// Lays a batch out for so many threads.
    pub fn new(segments: &'a [Segment<'a>], config: &ModelConfig, threads: usize) -> Self {
        let mut plan = Self {
            segments,
            rows: Vec::new(),
            starts: Vec::new(),
            outputs: Vec::new(),
            attention: AttentionPlan::new(segments, attention::num_units(config), threads),
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
        }
        plan
    }

    /// Tokens in the batch.
    pub fn num_rows(&self) -> usize {
        self.rows.len()
    }

    /// Query tokens times chunks of their context, where these are computed apart.
    pub fn num_split_rows(&self) -> usize {
        self.attention.num_split_rows()
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
    pub kv: &'a KvAdmission,
    /// Buffers, prepared for the plan.
    pub space: &'a Workspace,
    /// Rotary tables that reach the plan's last position: of layers that see everything, and of sliding-window layers.
    pub rope: &'a [RopeTable; 2],
    /// The instruction set.
    pub isa: Isa,
}

/// Rows of a piece of a product at most, in a batch of `rows` tokens.
pub(crate) fn most_piece_rows(rows: usize) -> usize {
    rows.min(PRODUCT_TILE)
}

/// Columns of what a thread computes and uses up in one piece of a stage, at most.
pub(crate) fn most_piece_columns(config: &ModelConfig) -> usize {
    let gate = config.ffn_size.min(GATE_BLOCKS * BLOCK_COLS);
    gate.max(config.kv_size()).max(attention::unit_width(config))
}

/// How many residual streams a batch of `rows` tokens keeps: one per thread for a few, else one for all.
pub fn num_streams(rows: usize, threads: usize) -> usize {
    if rows <= FEW_ROWS { threads } else { 1 }
}

impl Pass<'_> {
    /// Computes the batch; its logits end in `space.logits`. Called by every thread of the pool.
    ///
    /// # Safety
    /// The plan's tokens are below the vocabulary's size, [`KvAdmission::check`] found its tables right, no page is written
    /// by two segments, and `space` was prepared for the plan with [`num_streams`].
    pub unsafe fn run(&self, worker: &Worker, plan: &Plan<'_>) {
        let is_own = num_streams(plan.num_rows(), worker.num_threads()) > 1;
        let own = &mut *self.space.own(worker.index());
        let stream = &self.space.streams[if is_own { worker.index() } else { 0 }];
        let part = Part {
            pass: self,
            worker,
            plan,
            stream,
            is_own,
        };
        // SAFETY: every stage touches only the rows and columns handed to it, between two barriers.
        unsafe {
            part.embed(&mut own.row);
            for (index, layer) in self.weights.layers.iter().enumerate() {
                part.project(index, layer, own);
                part.attend(index, own);
                part.multiply(
                    &layer.attention_output.weight,
                    &self.space.delta,
                    &self.space.heads_input,
                    plan.num_rows(),
                );
                part.close_block(
                    &layer.attention_output,
                    layer.post_attention_norm.as_deref(),
                    Some(&layer.ffn_norm),
                    &mut own.row,
                );
                part.gate(layer, own);
                part.multiply(
                    &layer.down.weight,
                    &self.space.delta,
                    &self.space.ffn_input,
                    plan.num_rows(),
                );
                let next_norm = self
                    .weights
                    .layers
                    .get(index + 1)
                    .map(|next| next.attention_norm.as_slice());
                part.close_block(&layer.down, layer.post_ffn_norm.as_deref(), next_norm, &mut own.row);
            }
            part.output(&mut own.row);
        }
    }
}

/// One thread's part in a forward pass.
struct Part<'a> {
    pass: &'a Pass<'a>,
    worker: &'a Worker<'a>,
    plan: &'a Plan<'a>,
    stream: &'a Stream,
    /// Whether the stream is this thread's own, so that it computes every row of it.
    is_own: bool,
}

impl Part<'_> {
    /// Calls `work` for each row of the stream that is this thread's to compute.
    fn each_row(&self, rows: usize, work: impl FnMut(usize)) {
        if self.is_own {
            (0..rows).for_each(work);
        } else {
            self.worker.share(rows, work);
        }
    }

    /// Embeds the tokens and normalises them for the first layer.
    unsafe fn embed(&self, scratch: &mut [f32]) {
        let Pass { config, weights, .. } = self.pass;
        self.each_row(self.plan.num_rows(), |row| {
            let (token, ..) = self.plan.rows[row];
            // SAFETY: this thread owns `row` of the stream until the barrier.
            unsafe {
                let residual = self.stream.residual.row(row);
                weights.embedding.row(token as usize, residual);
                if config.embedding_scale != 1.0 {
                    elementwise::scale(self.pass.isa, residual, config.embedding_scale);
                }
                self.normalise(
                    residual,
                    &weights.layers[0].attention_norm,
                    &self.stream.hidden_input,
                    row,
                    scratch,
                );
            }
        });
    }

    /// Queries, keys and values, head by head: multiplied, biased, normalised where the family does, rotated, stored.
    unsafe fn project(&self, index: usize, layer: &Layer, own: &mut Own) {
        let Pass { config, space, .. } = *self.pass;
        // A key-value head weighs as much as two query heads: spread between them, so that equal runs are equal work.
        let run = config.num_heads / config.num_kv_heads + 1;
        let heads_before = |unit: usize| unit / run * (run - 1) + (unit % run).saturating_sub(1);
        let columns = |heads: Range<usize>| heads.start * config.head_dim..heads.end * config.head_dim;
        let num_units = config.num_heads + config.num_kv_heads;
        self.share_product(self.plan.num_rows(), num_units, num_units, |rows, units| {
            let heads = heads_before(units.start)..heads_before(units.end);
            let kv_heads = units.start.div_ceil(run)..units.end.div_ceil(run);
            // SAFETY: this thread owns these heads' columns of these rows, and their KV slots, until the barrier.
            unsafe {
                self.each_slot(
                    index,
                    rows.clone(),
                    kv_heads.clone(),
                    |layout, _, block, slot, kv_head| {
                        expect_kv(layout, block, slot, kv_head);
                    },
                );
                let mut query = space.query.patch(rows.clone(), columns(heads));
                self.multiply_columns(&layer.query, &self.stream.hidden_input, &mut query);
                self.rotate_heads(index, layer.query_norm.as_deref(), &mut query);
                let mut key = Patch::own(&mut own.first, rows.clone(), columns(kv_heads.clone()));
                let mut value = Patch::own(&mut own.second, rows, columns(kv_heads));
                self.multiply_columns(&layer.key, &self.stream.hidden_input, &mut key);
                self.multiply_columns(&layer.value, &self.stream.hidden_input, &mut value);
                self.rotate_heads(index, layer.key_norm.as_deref(), &mut key);
                self.store_heads(index, key, value);
            }
        });
    }

    /// Stores keys and values of whole heads.
    ///
    /// # Safety
    /// Their KV slots are this thread's until the next barrier.
    unsafe fn store_heads(&self, index: usize, mut key: Patch<'_>, mut value: Patch<'_>) {
        let Pass { config, isa, .. } = *self.pass;
        let kv_heads = key.columns().start / config.head_dim..key.columns().end / config.head_dim;
        self.each_slot(index, key.rows(), kv_heads, |layout, row, block, slot, kv_head| {
            let columns = kv_head * config.head_dim..(kv_head + 1) * config.head_dim;
            let (key, value) = (key.part(row, columns.clone()), value.part(row, columns));
            // SAFETY: as the caller's.
            unsafe { store_kv(isa, layout, block, slot, kv_head, key, value) };
        });
    }

    /// Calls `work` with the block and the slot of each row, for each key-value head.
    fn each_slot(
        &self,
        index: usize,
        rows: Range<usize>,
        kv_heads: Range<usize>,
        mut work: impl FnMut(&KvLayout, usize, *mut u8, usize, usize),
    ) {
        let kv = self.pass.kv;
        for row in rows {
            let (_, segment, position) = self.plan.rows[row];
            let blocks = kv.layer(index, self.plan.segments[segment].tables);
            // SAFETY: the table covers the position by contract.
            let block = unsafe { blocks.block(position / BLOCK_TOKENS) };
            for kv_head in kv_heads.clone() {
                work(&kv.pages.layout, row, block, position % BLOCK_TOKENS, kv_head);
            }
        }
    }

    /// Normalises heads where the family does, and applies rotary positions.
    fn rotate_heads(&self, index: usize, norm: Option<&[f32]>, heads: &mut Patch<'_>) {
        let Pass { config, isa, .. } = *self.pass;
        let rope = &self.pass.rope[usize::from(config.window(index).is_some())];
        for row in heads.rows() {
            let (cos, sin) = rope.row(self.plan.rows[row].2);
            for values in heads.row(row).chunks_exact_mut(config.head_dim) {
                if let Some(norm) = norm {
                    elementwise::rms_norm_in_place(isa, values, norm, config.norm_epsilon);
                }
                elementwise::rope(isa, values, cos, sin, config.rope_style);
            }
        }
    }

    /// The feed-forward block's inside: gate and up, activated and multiplied, as the down matrix's input.
    unsafe fn gate(&self, layer: &Layer, own: &mut Own) {
        let Pass { config, space, isa, .. } = *self.pass;
        let num_blocks = config.ffn_size.div_ceil(BLOCK_COLS);
        self.share_product(self.plan.num_rows(), num_blocks, GATE_BLOCKS, |rows, blocks| {
            let columns = blocks.start * BLOCK_COLS..(blocks.end * BLOCK_COLS).min(config.ffn_size);
            let mut gate = Patch::own(&mut own.first, rows.clone(), columns.clone());
            let mut up = Patch::own(&mut own.second, rows.clone(), columns.clone());
            // SAFETY: this thread owns these columns of these rows until the barrier.
            unsafe {
                self.multiply_columns(&layer.gate, &self.stream.hidden_input, &mut gate);
                self.multiply_columns(&layer.up, &self.stream.hidden_input, &mut up);
                for row in rows.clone() {
                    let (gate, up) = (gate.row(row), up.row(row));
                    match config.activation {
                        Activation::Silu => elementwise::silu_mul(isa, up, gate),
                        Activation::GeluTanh => elementwise::gelu_tanh_mul(isa, up, gate),
                    }
                }
                space.ffn_input.write_tile(isa, rows, columns, up.origin(), up.stride());
            }
        });
    }

    /// Adds a block's output to the residual stream and normalises the sum for the next block.
    unsafe fn close_block(
        &self,
        linear: &Linear,
        post_norm: Option<&[f32]>,
        next_norm: Option<&[f32]>,
        scratch: &mut [f32],
    ) {
        let Pass { config, space, isa, .. } = *self.pass;
        self.each_row(self.plan.num_rows(), |row| {
            // SAFETY: this thread owns `row` of the stream until the barrier; the block's output is only read.
            unsafe {
                let residual = self.stream.residual.row(row);
                scratch.copy_from_slice(space.delta.shared_row(row));
                if let Some(bias) = &linear.bias {
                    elementwise::add(isa, scratch, bias);
                }
                if let Some(norm) = post_norm {
                    elementwise::rms_norm_in_place(isa, scratch, norm, config.norm_epsilon);
                }
                elementwise::add(isa, residual, scratch);
                if let Some(norm) = next_norm {
                    self.normalise(residual, norm, &self.stream.hidden_input, row, scratch);
                }
            }
        });
    }

    /// The logits of the rows that give them.
    unsafe fn output(&self, scratch: &mut [f32]) {
        let Pass { weights, space, .. } = self.pass;
        let outputs = &self.plan.outputs;
        self.each_row(outputs.len(), |output| {
            // SAFETY: this thread owns this output of the stream until the barrier.
            unsafe {
                let residual = self.stream.residual.row(outputs[output]);
                self.normalise(
                    residual,
                    &weights.final_norm,
                    &self.stream.output_input,
                    output,
                    scratch,
                );
            }
        });
        // SAFETY: as `run`.
        unsafe {
            self.multiply(
                weights.output_matrix(),
                &space.logits,
                &self.stream.output_input,
                outputs.len(),
            )
        };
    }

    /// RMS norm of `values`, handed to a matrix as row `row` of its input.
    ///
    /// # Safety
    /// No other thread uses row `row` of the stream until the next barrier.
    unsafe fn normalise(&self, values: &[f32], weight: &[f32], input: &Activations, row: usize, scratch: &mut [f32]) {
        elementwise::rms_norm(self.pass.isa, values, weight, self.pass.config.norm_epsilon, scratch);
        // SAFETY: the caller keeps rows apart.
        unsafe { input.write_row(self.pass.isa, row, scratch) };
    }

    /// Multiplies `rows` rows of an input by a matrix, sharing its row groups out.
    ///
    /// # Safety
    /// `input` holds `rows` rows, and no thread uses `out` until the barrier.
    unsafe fn multiply(&self, matrix: &PackedMatrix, out: &Rows, input: &Activations, rows: usize) {
        if rows == 0 {
            return;
        }
        self.share_product(rows, matrix.num_groups(), MOST_GROUPS, |rows, groups| {
            // SAFETY: this thread owns these groups' columns of these rows of the output until the barrier.
            unsafe { matmul::matmul(self.pass.isa, matrix, groups, input, rows, out.base(), out.width()) };
        });
    }

    /// Multiplies a tile's rows of an input by the matrix rows of its columns, and adds their bias. The columns start at
    /// a group of matrix rows.
    ///
    /// # Safety
    /// `input` holds the rows.
    unsafe fn multiply_columns(&self, linear: &Linear, input: &Activations, out: &mut Patch<'_>) {
        let (isa, columns) = (self.pass.isa, out.columns());
        let groups = columns.start / ROWS_PER_GROUP..columns.end.div_ceil(ROWS_PER_GROUP);
        let (rows, origin, stride) = (out.rows(), out.origin(), out.stride());
        // SAFETY: by contract; what is written is the tile's.
        unsafe { matmul::matmul(isa, &linear.weight, groups, input, rows, origin, stride) };
        let Some(bias) = &linear.bias else { return };
        for row in out.rows() {
            elementwise::add(isa, out.row(row), &bias[columns.clone()]);
        }
    }

    /// Shares a product out in pieces: some rows by some of `num_units` equal units of columns, at most `most_units`.
    fn share_product(
        &self,
        num_rows: usize,
        num_units: usize,
        most_units: usize,
        mut work: impl FnMut(Range<usize>, Range<usize>),
    ) {
        // With rows enough each thread has some of its own in every stage, so that what one stage gives the next stays in
        // the caches of one core; weights are read by all.
        let own = (num_rows / LEAST_OWN_ROWS).clamp(1, self.worker.num_threads());
        let tiles = num_rows.div_ceil(PRODUCT_TILE).max(own);
        // Several pieces per thread, so that one the operating system holds up does not hold up the rest.
        let wanted = (self.worker.num_threads() * PIECES_PER_THREAD).div_ceil(tiles);
        let columns = wanted.max(num_units.div_ceil(most_units)).min(num_units);
        self.worker.share(tiles * columns, |piece| {
            let (tile, column) = (piece / columns, piece % columns);
            work(part(num_rows, tiles, tile), part(num_units, columns, column));
        });
    }
}

/// Part `index` of `count` nearly equal parts of `0..total`.
fn part(total: usize, count: usize, index: usize) -> Range<usize> {
    index * total / count..(index + 1) * total / count
}
