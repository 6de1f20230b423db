//! The decoder's forward pass: one batch of tokens through all layers.
//!
//! A pass is a list of stages, whose pieces are computed by whoever is free. A layer has five: projections (with rotary
//! positions and the KV store), attention, its output, the feed-forward block's inside, its output; one more where heads
//! are normalised together, two where a layer has a part of per-layer embeddings; and for more than a few rows two that add an output to the stream. Who computes a row never changes its value: every output is one lane of
//! a reduction in fixed order.

mod adapters;
mod assistant;
mod attention;
mod channels;
mod delta;
mod drafts;
mod eagle;
mod experts;
mod indexer;
mod kimi;
mod latent;
mod lightning;
mod medusa;
mod mlp;
mod mtp;
mod per_layer;
mod plan;
mod probe;
mod projection;
mod recurrent;
mod selective;
mod sequence;
mod stage;
mod tiling;

use std::ops::Range;

pub(crate) use adapters::most_adapter_bytes;
pub use assistant::{AssistantBuffers, AssistantPass, AssistantStage, Role};
pub(crate) use attention::most_split_rows;
pub(crate) use channels::{ChannelBuffers, channel_sizes};
pub(crate) use drafts::num_kept_rows;
pub use eagle::{HeadPass, Taps};
pub use experts::ExpertLoads;
pub(crate) use experts::{Routing, most_slots};
pub(crate) use indexer::{IndexerBuffers, indexer_sizes, num_ratings};
pub(crate) use kimi::{KimiBuffers, kimi_sizes};
pub(crate) use latent::{LatentBuffers, latent_sizes};
pub use medusa::{MedusaBuffers, MedusaPass};
pub(crate) use mtp::{MtpBuffers, keep_records, mtp_sizes};
pub(crate) use per_layer::PerLayerBuffers;
pub(crate) use plan::Target;
pub use plan::{Plan, Scoring, Segment};
pub(crate) use probe::{LensTokens, write_norms};
pub use probe::{Neuron, Probe, Probed, TopTokens};
use pyagent_kernels::elementwise::{self, RopeTable};
use pyagent_kernels::isa::Isa;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::{BLOCK_COLS, ROWS_PER_GROUP};
use pyagent_kernels::thread_pool::Piece;
pub(crate) use recurrent::{mixed_size, output_size};
pub(crate) use sequence::most_piece_state;
pub use stage::Stage;
use tiling::{PIECES_PER_THREAD, PRODUCT_TILE, Tiling, part};

use crate::adapters::Site;
use crate::config::ModelConfig;
use crate::kv::KvMemory;
use crate::model::{FeedForward, Gated, Linear, Mixer, Norm, Shared, Weights};
use crate::workspace::{Own, Patch, Stream, Workspace};

/// Blocks of the feed-forward block's inside in a piece at most, likewise.
const GATE_BLOCKS: usize = 16;
/// Row groups of a matrix in a piece at most.
const MOST_GROUPS: usize = 64;
/// For up to this many rows, every thread computing all norms is quicker than a stage of its own for them.
pub(crate) const FEW_ROWS: usize = 4;

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
    /// Of each layer, the norm of each neuron's column of the down matrix; none where no row is probed for neurons.
    pub write_norms: &'a [Vec<f32>],
    /// What the pass has to do with an assistant.
    pub role: Role<'a>,
    /// The instruction set.
    pub isa: Isa,
}

/// Rows of a piece of a product at most, in a batch of `rows` tokens.
pub(crate) fn most_piece_rows(rows: usize) -> usize {
    rows.min(PRODUCT_TILE)
}

/// Columns of what a thread computes and uses up in one piece of a stage, at most.
pub(crate) fn most_piece_columns(config: &ModelConfig) -> usize {
    let shared = config.experts.map_or(0, |experts| experts.shared_size);
    let widest = config.ffn_size.max(config.dense_size()).max(shared);
    let gate = widest.min(GATE_BLOCKS * BLOCK_COLS);
    gate.max(experts::most_output_columns(config))
        .max(config.kv_size())
        .max(attention::most_unit_width(config))
        .max(per_layer::most_columns(config))
        .max(recurrent::most_columns(config))
        .max(latent::most_columns(config))
}

/// How many residual streams of a decoder a batch of `rows` tokens keeps: one per thread for a few, else one for all.
pub(crate) fn num_streams(config: &ModelConfig, rows: usize, threads: usize) -> usize {
    match config.num_layers {
        0 => 0, // a head has one of its own
        _ if is_few(rows) => threads,
        _ => 1,
    }
}

/// Rows that the outputs of a batch's blocks take: where each thread adds them up for itself, they are all kept, as one
/// that was away needs those of the blocks it missed.
pub(crate) fn num_delta_rows(config: &ModelConfig, rows: usize) -> usize {
    if is_few(rows) {
        (config.blocks_per_layer() * config.num_layers).max(1) * rows
    } else {
        rows
    }
}

fn is_few(rows: usize) -> bool {
    rows <= FEW_ROWS
}

/// The stages after the last layer.
fn output_stages(is_shared: bool) -> impl Iterator<Item = Stage> {
    is_shared
        .then_some(Stage::OutputNorm)
        .into_iter()
        .chain([Stage::Output])
}

impl Pass<'_> {
    /// The stages of a batch, and how many pieces each has.
    pub fn stages(&self, plan: &Plan<'_>) -> (Vec<Stage>, Vec<usize>) {
        let is_shared = !is_few(plan.num_rows());
        let is_norm_wide = self.config.architecture.is_qk_norm_wide();
        let stream = |blocks| is_shared.then(|| Stage::Stream(self.config.next_block(blocks)));
        let layer = |layer: usize| {
            let attention = self.config.blocks_per_layer() * layer;
            let ffn = attention + 1;
            let adapt = |site| plan.adapters.stage(layer, site).into_iter();
            let mixer = adapt(Site::Attention).chain(self.mixer_stages(plan, layer, is_norm_wide));
            let first = mixer
                .chain(adapt(Site::AttentionOutput))
                .chain([Stage::Block(attention)]);
            let route = self.config.has_experts(layer).then_some(Stage::Route(layer));
            let gate = route
                .into_iter()
                .chain(adapt(Site::FeedForward))
                .chain([Stage::Gate(layer)]);
            let second = gate.chain(adapt(Site::Down)).chain([Stage::Block(ffn)]);
            let third = self.weights.layers[layer].per_layer.iter();
            let third = third.flat_map(move |_| {
                [
                    Some(Stage::GateVectors(layer)),
                    Some(Stage::Block(ffn + 1)),
                    stream(ffn + 2),
                ]
            });
            let (first, second) = (first.chain(stream(attention + 1)), second.chain(stream(ffn + 1)));
            let first = first.filter(move |_| self.config.has_mixer(layer));
            let second = second.filter(move |_| self.config.has_ffn(layer));
            let taps = self.tap_stages(layer + 1);
            first.chain(second).chain(third.flatten()).chain(taps)
        };
        let layers = (0..self.config.num_layers).flat_map(layer);
        let vectors = self
            .weights
            .per_layer
            .iter()
            .flat_map(|_| [Stage::LookUp, Stage::Vectors]);
        let stages = vectors.chain(self.entry_stage()).chain(stream(0));
        let stages = stages.chain(self.tap_stages(0)).chain(layers);
        let has_logits = |stage: &Stage| !(self.has_clusters() && matches!(stage, Stage::Output));
        let stages = stages.chain(output_stages(is_shared).filter(has_logits));
        let stages = stages.chain(self.exit_stages()).chain(self.mtp_stages());
        self.counted(plan, stages.collect())
    }

    /// The last stages of a batch alone, to compute logits of other rows when all stages are over.
    pub(crate) fn output_stages(&self, plan: &Plan<'_>) -> (Vec<Stage>, Vec<usize>) {
        self.counted(plan, output_stages(!is_few(plan.num_rows())).collect())
    }

    fn counted(&self, plan: &Plan<'_>, stages: Vec<Stage>) -> (Vec<Stage>, Vec<usize>) {
        let num_pieces = stages.iter().map(|&stage| self.num_pieces(plan, stage)).collect();
        (stages, num_pieces)
    }

    fn num_pieces(&self, plan: &Plan<'_>, stage: Stage) -> usize {
        match stage {
            Stage::LookUp
            | Stage::Stream(_)
            | Stage::NormaliseHeads(_)
            | Stage::Compress(_)
            | Stage::HandOnGates(_)
            | Stage::Settle(_)
            | Stage::NormaliseScan(_)
            | Stage::TakeKept(_)
            | Stage::Tap(_)
            | Stage::KeepOutputs
            | Stage::FuseInput
            | Stage::MtpInput
            | Stage::MtpStream(_)
            | Stage::MtpOutput => plan.num_rows(),
            Stage::KeepRecords => plan.segments.len(),
            Stage::RatePositions(_) => plan.rating.num_pieces(),
            Stage::Assistant(stage) => self.num_assistant_pieces(plan, stage),
            Stage::KeepDrafts(_) => plan.num_drafts(),
            Stage::OutputNorm => plan.num_outputs(),
            Stage::Attend(layer) => plan.attention[self.config.head_kind(layer)].num_pieces(),
            Stage::Adapt(_, site) => plan.adapters.num_pieces(site),
            Stage::Convolve(_) => recurrent::num_convolution_pieces(plan, self.config),
            Stage::Scan(_) => recurrent::num_scan_pieces(plan, self.config),
            Stage::Gate(layer) if self.config.has_experts(layer) => experts::num_gate_pieces(plan, self.config),
            _ => self.tiling(plan, stage).num_pieces(),
        }
    }

    /// How the product of a stage is cut.
    fn tiling(&self, plan: &Plan<'_>, stage: Stage) -> Tiling {
        let config = self.config;
        let (num_rows, num_units, most_units) = match stage {
            Stage::Project(layer) if config.latent.is_some() && self.stores_alone(plan, layer) => {
                return latent::storing_tiling(plan, config);
            }
            Stage::Project(layer) if config.recurrent(layer).is_some() || config.latent.is_some() => {
                return recurrent::projection_tiling(plan, config);
            }
            Stage::Project(layer) => {
                let num_heads = if self.stores_alone(plan, layer) {
                    0
                } else {
                    config.num_heads
                };
                let heads = num_heads + self.own_kv_heads(layer);
                (plan.num_rows(), heads, heads)
            }
            Stage::Vectors => return per_layer::vectors_tiling(plan, config),
            Stage::GateVectors(_) => return per_layer::gate_tiling(plan, config),
            Stage::Select(_) => return channels::selecting_tiling(plan, config),
            Stage::Absorb(_) => return latent::absorb_tiling(plan, config),
            Stage::Expand(_) => return latent::expand_tiling(plan, config),
            Stage::AskIndexer(_) => return indexer::asking_tiling(plan, config),
            Stage::Route(_) => return experts::router_tiling(plan, config),
            Stage::Block(block) if self.experts(block).is_some() => return experts::output_tiling(plan, config),
            Stage::Gate(layer) => {
                let blocks = config.dense_size_of(layer).div_ceil(BLOCK_COLS);
                (plan.num_rows(), blocks, GATE_BLOCKS)
            }
            Stage::Output => {
                let groups = self.weights.output_matrix().num_groups();
                (plan.num_outputs(), groups, MOST_GROUPS)
            }
            _ => (
                plan.num_rows(),
                config.hidden_size.div_ceil(ROWS_PER_GROUP),
                MOST_GROUPS,
            ),
        };
        Tiling::new(num_rows, num_units, most_units, plan.num_threads)
    }

    /// Computes a piece of a stage; after all of them the batch's logits are in `space.logits`.
    ///
    /// # Safety
    /// The plan's tokens are below the vocabulary's size, [`KvMemory::check`] found its tables right, no page is written
    /// by two segments, and `space` was prepared for the plan. The stages are run in their order.
    pub unsafe fn compute(&self, plan: &Plan<'_>, stage: Stage, piece: Piece) {
        let own = &mut *self.space.own(piece.thread);
        let is_of_mtp = stage.is_of_mtp(self.config, plan);
        let is_few = is_few(plan.num_rows()) && !is_of_mtp;
        let stream = match is_of_mtp {
            true => &self.space.mtp.stream,
            false => &self.space.streams[if is_few { piece.thread } else { 0 }],
        };
        let part = Part {
            pass: self,
            plan,
            stream,
            keeps_residuals: !is_few,
        };
        // SAFETY: every stage touches only the rows and columns of the piece; a thread's own stream is its own.
        unsafe {
            match stage {
                _ if !is_few => {}
                Stage::Project(layer) | Stage::Absorb(layer) | Stage::Adapt(layer, Site::Attention) => {
                    part.catch_up(own, self.config.blocks_per_layer() * layer);
                }
                Stage::Route(layer) | Stage::Gate(layer) | Stage::Adapt(layer, Site::FeedForward) => {
                    part.catch_up(own, self.config.blocks_per_layer() * layer + 1);
                }
                Stage::GateVectors(layer) => part.catch_up(own, self.config.blocks_per_layer() * layer + 2),
                Stage::Output | Stage::KeepOutputs => part.catch_up(own, self.num_blocks()),
                Stage::Tap(place) => part.catch_up(own, self.blocks_before_tap(place)),
                Stage::Assistant(stage) if stage.is_after_layers() => part.catch_up(own, self.num_blocks()),
                _ => {}
            }
            let ranges = |stage| self.tiling(plan, stage).ranges(piece.index);
            match stage {
                Stage::LookUp => part.look_up(piece.index, own),
                Stage::Vectors => part.make_vectors(ranges(stage), own),
                Stage::GateVectors(layer) => part.gate_vectors(layer, ranges(stage), own),
                Stage::Stream(blocks) => {
                    part.advance(piece.index, self.config.block_before(blocks), blocks, &mut own.row)
                }
                Stage::Project(layer) => match &self.weights.layers[layer].mixer {
                    Mixer::Attention(attention) => part.project(layer, attention, ranges(stage), own),
                    Mixer::Latent(latent) => part.project_latent(layer, latent, ranges(stage)),
                    Mixer::Recurrent(recurrent) => part.project_mixer(recurrent, ranges(stage)),
                    Mixer::Absent => {}
                },
                Stage::Compress(layer) => part.compress(layer, piece.index),
                Stage::Absorb(layer) => part.absorb(layer, ranges(stage), own),
                Stage::Expand(layer) => part.expand(layer, ranges(stage), own),
                Stage::AskIndexer(layer) => part.ask_indexer(layer, ranges(stage)),
                Stage::RatePositions(layer) => part.rate_positions(layer, piece, own),
                Stage::KeepDrafts(layer) => part.keep_draft(layer, piece.index),
                Stage::TakeKept(layer) => part.take_kept(layer, piece.index),
                Stage::Convolve(layer) => part.convolve(layer, piece.index, own),
                Stage::HandOnGates(_) => part.hand_on_gates(piece.index),
                Stage::Select(layer) => part.select(layer, ranges(stage)),
                Stage::Settle(layer) => part.settle(layer, piece.index),
                Stage::Scan(layer) => part.scan(layer, piece.index, own),
                Stage::NormaliseScan(layer) => part.normalise_scan(layer, piece.index),
                Stage::NormaliseHeads(layer) => part.normalise_heads(layer, piece.index),
                Stage::Attend(layer) => part.attend(layer, piece.index, own),
                Stage::Adapt(layer, site) => part.reduce(layer, site, piece.index),
                Stage::Block(block) => match self.experts(block) {
                    None => part.block(block, ranges(stage)),
                    Some((experts, shared)) => part.add_experts((experts, shared), block, ranges(stage).1, own),
                },
                Stage::Route(layer) => part.route(layer, piece.index),
                Stage::Gate(layer) => match &self.weights.layers[layer].ffn {
                    FeedForward::Absent => {}
                    FeedForward::Dense(gated) => {
                        part.gate(gated, part.inside(layer), Some(layer), None, ranges(stage), own)
                    }
                    FeedForward::Experts { experts, shared, .. } => {
                        part.gate_experts(experts, shared.as_deref(), piece.index, own);
                    }
                },
                Stage::OutputNorm => part.normalise_output(piece.index, &mut own.row),
                Stage::Output => part.output(ranges(stage)),
                Stage::Tap(place) => part.tap(place, piece.index),
                Stage::KeepOutputs => part.keep_output(piece.index),
                Stage::FuseInput => part.fuse_input(piece.index),
                Stage::Fuse => part.fuse(ranges(stage)),
                Stage::MtpInput => part.join_input(piece.index, own),
                Stage::MtpJoin => part.join(ranges(stage)),
                Stage::MtpStream(place) => part.advance_mtp(place, piece.index, &mut own.row),
                Stage::MtpOutput => part.finish_mtp(piece.index, &mut own.row),
                Stage::KeepRecords => part.keep_records(piece.index),
                Stage::Assistant(stage) => part.assist(stage, piece.index),
            }
        }
    }

    /// A block's matrix, unless it is of experts, and its norm where the family has one.
    fn block(&self, block: usize) -> (Option<&Linear>, Option<&[f32]>) {
        let (layer, place) = self.config.place_of(block);
        let layer = &self.weights.layers[layer];
        match (place, &layer.ffn) {
            (0, _) => (layer.attention_output.as_ref(), layer.post_attention_norm.as_deref()),
            (2, _) => {
                let per_layer = layer.per_layer.as_ref();
                let projection = per_layer.map(|per_layer| &per_layer.projection);
                (projection, per_layer.map(|per_layer| per_layer.norm.as_slice()))
            }
            (_, FeedForward::Dense(gated)) => (Some(&gated.down), layer.post_ffn_norm.as_deref()),
            (_, FeedForward::Experts { .. } | FeedForward::Absent) => (None, layer.post_ffn_norm.as_deref()),
        }
    }

    /// A block's experts, if it is of experts, and the one that all tokens share.
    fn experts(&self, block: usize) -> Option<(&[Gated], Option<&Shared>)> {
        let (layer, place) = self.config.place_of(block);
        match &self.weights.layers[layer].ffn {
            FeedForward::Experts { experts, shared, .. } if place == 1 => Some((experts, shared.as_deref())),
            _ => None,
        }
    }

    /// The norm before the block that follows so many, where the family has one; the last is followed by the output's.
    fn norm_after(&self, blocks: usize) -> Option<&Norm> {
        let (layer, place) = self.config.place_of(blocks);
        let layer = self.weights.layers[..self.config.num_layers].get(layer)?;
        match place {
            0 => layer.attention_norm.as_ref(),
            1 => layer.ffn_norm.as_ref(),
            _ => None,
        }
    }

    /// Blocks of all layers.
    fn num_blocks(&self) -> usize {
        self.config.blocks_per_layer() * self.config.num_layers
    }

    /// Key-value heads that a layer makes: none where it reads another's.
    fn own_kv_heads(&self, layer: usize) -> usize {
        if self.config.makes_kv(layer) {
            self.config.kv_heads_of(layer)
        } else {
            0
        }
    }
}

/// A thread's view of a pass.
struct Part<'a> {
    pass: &'a Pass<'a>,
    plan: &'a Plan<'a>,
    /// The thread's own, or that of all.
    stream: &'a Stream,
    /// Whether probed rows keep what they are after each layer: not where every thread computes them.
    keeps_residuals: bool,
}

impl Part<'_> {
    /// Brings the thread's own stream past the blocks it has not added yet, and normalises it for the next matrix.
    unsafe fn catch_up(&self, own: &mut Own, blocks: usize) {
        if own.num_blocks == Some(blocks) {
            return;
        }
        // SAFETY: these blocks' outputs are complete, and kept; the stream is this thread's.
        unsafe {
            for row in 0..self.plan.num_rows() {
                self.advance(row, own.num_blocks, blocks, &mut own.row);
            }
            if blocks == self.pass.num_blocks() {
                for output in 0..self.plan.num_outputs() {
                    self.normalise_output(output, &mut own.row);
                }
            }
        }
        own.num_blocks = Some(blocks);
    }

    /// Brings a row of the stream from after `from` blocks (from nothing: its token is embedded) to after `to`, and
    /// normalises it for the next: before the last block's output is added, where the two lie beside each other.
    unsafe fn advance(&self, row: usize, from: Option<usize>, to: usize, scratch: &mut [f32]) {
        // SAFETY: this thread has the row to itself; blocks' outputs are only read.
        unsafe {
            let residual = self.stream.residual.row(row);
            if from.is_none() && !self.enter(row, residual) {
                self.embed(row, residual);
                self.place(row, residual, scratch);
            }
            let first = from.unwrap_or(0);
            let beside = self.pass.config.block_beside(to).map_or(to, |block| block.max(first));
            (first..beside).for_each(|block| self.pass_block(block, row, residual, scratch));
            self.normalise_separately(to, row, residual, scratch);
            match self.pass.norm_after(to) {
                Some(norm) => self.normalise(residual, norm, &self.stream.hidden_input, row, scratch),
                None if to < self.pass.num_blocks() => {
                    self.stream.hidden_input.write_row(self.pass.isa, row, residual);
                }
                None => {}
            }
            (beside..to).for_each(|block| self.pass_block(block, row, residual, scratch));
        }
    }

    /// Brings a row of the stream past a block, and past its layer where that ends.
    ///
    /// # Safety
    /// As [`Self::add_block`].
    unsafe fn pass_block(&self, block: usize, row: usize, residual: &mut [f32], scratch: &mut [f32]) {
        if self.pass.config.has_block(block) {
            // SAFETY: by contract.
            unsafe { self.add_block(block, row, residual, scratch) };
        }
        let (layer, next) = self.pass.config.place_of(block + 1);
        if next == 0 {
            self.finish_layer(layer - 1, row, residual);
        }
    }

    /// What is done to a row of the stream at a layer's end.
    fn finish_layer(&self, layer: usize, row: usize, residual: &mut [f32]) {
        let scale = self.pass.weights.layers[layer].scale;
        if scale != 1.0 {
            elementwise::scale(self.pass.isa, residual, scale);
        }
        if self.keeps_residuals {
            self.keep_residual(row, layer, residual);
        }
    }

    fn embed(&self, row: usize, residual: &mut [f32]) {
        let config = self.pass.config;
        let (token, ..) = self.plan.rows[row];
        self.pass.embedding().row(token as usize, residual);
        if config.embedding_scale != 1.0 {
            elementwise::scale(self.pass.isa, residual, config.embedding_scale);
        }
        if config.architecture.normalises_embedding() {
            let norm = &self.pass.weights.final_norm;
            norm.apply_in_place(self.pass.isa, residual, config.norm_epsilon);
        }
    }

    /// Adds what is learned of the token's position, and normalises the sum, in families that do so.
    fn place(&self, row: usize, residual: &mut [f32], scratch: &mut [f32]) {
        let Pass {
            config, weights, isa, ..
        } = *self.pass;
        if let (Some(table), Some(offset)) = (&weights.positions, config.architecture.position_offset()) {
            let (.., position) = self.plan.rows[row];
            let learned = &mut scratch[..config.hidden_size];
            table.row(position + offset, learned);
            elementwise::add(isa, residual, learned);
        }
        if let Some(norm) = &weights.embedding_norm {
            norm.apply_in_place(isa, residual, config.norm_epsilon);
        }
    }

    /// Adds a block's output to a row of the stream, or to the norm of it that the block read.
    unsafe fn add_block(&self, block: usize, row: usize, residual: &mut [f32], scratch: &mut [f32]) {
        let Pass { config, space, isa, .. } = *self.pass;
        if let (Some([kept, _]), Some(norm)) = (config.normed_stream(block), self.pass.norm_after(block)) {
            norm.apply_in_place(isa, residual, config.norm_epsilon);
            elementwise::scale(isa, residual, kept);
        }
        let (linear, norm) = self.pass.block(block);
        let (scratch, beside) = scratch.split_at_mut(config.hidden_size);
        // SAFETY: the block's output is complete, and only read.
        scratch.copy_from_slice(unsafe { space.delta.shared_row(self.delta_row(block) + row) });
        // SAFETY: likewise.
        unsafe { self.join_separate(block, row, scratch, beside) };
        if let Some(bias) = linear.and_then(|linear| linear.bias.as_deref()) {
            elementwise::add(isa, scratch, bias);
        }
        if let Some(norm) = norm {
            elementwise::rms_norm_in_place(isa, scratch, norm, config.norm_epsilon);
        }
        let factor = config.output_scale(block);
        if factor != 1.0 {
            elementwise::scale(isa, scratch, factor);
        }
        elementwise::add(isa, residual, scratch);
    }

    /// The first row of a block's output.
    fn delta_row(&self, block: usize) -> usize {
        let rows = self.plan.num_rows();
        let is_few = is_few(rows) && !self.plan.is_drafting();
        if is_few { block * rows } else { 0 }
    }

    /// Normalises a row that gives logits.
    unsafe fn normalise_output(&self, output: usize, scratch: &mut [f32]) {
        // SAFETY: this thread has this output of the stream to itself.
        unsafe {
            let residual = self.stream.residual.row(self.plan.outputs[output]);
            let norm = &self.pass.weights.final_norm;
            self.normalise(residual, norm, &self.stream.output_input, output, scratch);
        }
    }

    /// Logits.
    unsafe fn output(&self, (rows, groups): (Range<usize>, Range<usize>)) {
        let Pass {
            config,
            weights,
            space,
            isa,
            ..
        } = *self.pass;
        let (input, logits) = (&self.stream.output_input, &space.logits);
        let first = logits.base().wrapping_add(self.plan.first_output * logits.width());
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(logits.width());
        // SAFETY: these groups' columns of these rows of the logits are this piece's.
        unsafe {
            matmul::matmul(
                isa,
                weights.output_matrix(),
                groups,
                input,
                rows.clone(),
                first,
                logits.width(),
            )
        };
        let bias = weights.output_bias.as_ref();
        if config.logit_softcap.is_none() && config.logit_divisor == 1.0 && bias.is_none() {
            return;
        }
        for row in rows {
            let start = first.wrapping_add(row * logits.width() + columns.start);
            // SAFETY: as above, and they are written.
            let values = unsafe { std::slice::from_raw_parts_mut(start, columns.len()) };
            if let Some(bias) = bias {
                elementwise::add(isa, values, &bias[columns.clone()]);
            }
            values.iter_mut().for_each(|value| *value /= config.logit_divisor);
            let Some(cap) = config.logit_softcap else { continue };
            values.iter_mut().for_each(|value| *value = cap * (*value / cap).tanh());
        }
    }

    /// Norm of `values`, handed to a matrix as row `row` of its input.
    ///
    /// # Safety
    /// No other thread uses row `row` of the stream in this stage.
    unsafe fn normalise(&self, values: &[f32], norm: &Norm, input: &Activations, row: usize, scratch: &mut [f32]) {
        let scratch = &mut scratch[..values.len()];
        norm.apply(self.pass.isa, values, self.pass.config.norm_epsilon, scratch);
        // SAFETY: the caller keeps rows apart.
        unsafe { input.write_row(self.pass.isa, row, scratch) };
    }

    /// Multiplies a tile's rows of an input by the matrix rows of its columns, and adds their bias. The columns start at
    /// a group of matrix rows. With `vectors`, they say which of the input's rows each of the tile's is.
    ///
    /// # Safety
    /// `input` holds the rows.
    unsafe fn multiply_columns(
        &self,
        linear: &Linear,
        input: &Activations,
        vectors: Option<&[u32]>,
        out: &mut Patch<'_>,
    ) {
        let (isa, columns) = (self.pass.isa, out.columns());
        let groups = columns.start / ROWS_PER_GROUP..columns.end.div_ceil(ROWS_PER_GROUP);
        let (rows, origin, stride) = (out.rows(), out.origin(), out.stride());
        // SAFETY: by contract; what is written is the tile's.
        unsafe {
            match vectors {
                None => matmul::matmul(isa, &linear.weight, groups, input, rows, origin, stride),
                Some(vectors) => {
                    matmul::matmul_gathered(isa, &linear.weight, groups, input, vectors, rows, origin, stride);
                }
            }
        }
        let Some(bias) = &linear.bias else { return };
        for row in out.rows() {
            elementwise::add(isa, out.row(row), &bias[columns.clone()]);
        }
    }
}
