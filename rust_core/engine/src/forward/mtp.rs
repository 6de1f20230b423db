//! A head that drafts further tokens (MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2): a layer behind the decoder's, whose input
//! at a position is made of that position's token and of the decoder's output for the token before. That of a file of its own
//! ([`super::eagle`]) is computed as if it were behind a decoder without layers, and has something else for that output.
//!
//! Its keys and values at a position depend on the tokens up to that position alone, as all others do; position 0 has none,
//! and no token sees it. A step of the decoder stores them for its tokens, and needs nothing else of the layer for that.
//! Drafting is a pass of its own, of a token for each sequence, with the head's own output in place of the decoder's from the
//! second draft on.

use std::ops::Range;
use std::sync::Arc;

use pyagent_kernels::attention::BLOCK_TOKENS;
use pyagent_kernels::matmul::Activations;
use pyagent_kernels::pack::{PackedMatrix, ROWS_PER_GROUP};

use super::{Part, Pass, Plan, Segment, Stage};
use crate::config::ModelConfig;
use crate::kv::KvMemory;
use crate::model::{HeadEntry, MtpWeights, Weights};
use crate::workspace::{Forms, Own, Rows, Stream};

/// What the head's stages hand to each other.
pub struct MtpBuffers {
    /// The head's own stream, beside the decoder's.
    pub stream: Stream,
    /// The decoder's output for each token of a step, or what stands for it.
    pub output: Rows,
    /// The head's output for each token of a pass that drafts.
    pub drafted: Rows,
    /// A token's embedding, and the output for the token before.
    pub joined: Activations,
    /// What the matrix reads that makes what stands for the decoder's output.
    pub fused: Activations,
    forms: Forms,
    fused_forms: Forms,
    fused_size: usize,
}

impl MtpBuffers {
    /// Empty buffers.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Self {
        let head = weights.mtp.as_ref();
        let fusion = head.and_then(|head| match &head.entry {
            HeadEntry::Fused(fusion) => Some(&fusion.matrix.weight),
            HeadEntry::Joined(_) => None,
        });
        let inputs = weights.layers.iter().skip(config.num_layers);
        let inputs = inputs.flat_map(|layer| layer.mixer.inputs());
        let readers: Vec<_> = match fusion {
            Some(_) => inputs.map(|linear| &linear.weight).collect(),
            None => head.map(MtpWeights::entry_matrix).into_iter().collect(),
        };
        Self {
            stream: Stream::new(config),
            output: Rows::new(config.hidden_size),
            drafted: Rows::new(config.hidden_size),
            joined: Activations::new(),
            fused: Activations::new(),
            forms: Forms::of(readers),
            fused_forms: Forms::of(fusion),
            fused_size: fusion.map_or(0, PackedMatrix::cols),
        }
    }

    /// Makes room for so many tokens, if there is a head.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        if config.has_mtp {
            self.output.reserve(tokens);
            let columns = 2 * config.hidden_size;
            self.joined
                .resize(tokens, columns, self.forms.is_quantised, self.forms.is_dense);
            let Forms { is_quantised, is_dense } = self.fused_forms;
            self.fused.resize(tokens, self.fused_size, is_quantised, is_dense);
        }
    }

    /// Makes room for drafts of so many sequences. What was drafted before is kept where there is room.
    pub fn reserve_drafts(&mut self, config: &ModelConfig, sequences: usize) {
        if config.has_mtp {
            self.drafted.reserve(sequences);
        }
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        let inputs = self.joined.bytes() + self.fused.bytes();
        self.stream.bytes() + self.output.bytes() + self.drafted.bytes() + inputs
    }
}

/// Numbers of a token in rows of its own, and columns of the head's input, if there is a head.
pub(crate) fn mtp_sizes(config: &ModelConfig) -> Option<(usize, usize)> {
    config.has_mtp.then_some((config.hidden_size, 2 * config.hidden_size))
}

/// Where the decoder's output for the token before a row's is.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// Nowhere: it is the first token.
    Nothing,
    /// In the block that has the token.
    Record(usize),
    /// In the same step.
    Row(usize),
    /// It is the head's own, for that row of the pass before.
    Drafted(usize),
}

/// A pass that drafts.
#[derive(Debug, Default)]
pub(super) struct Drafting {
    /// Of each row, the row of the pass before that it goes on from; none where it goes on from the decoder's output.
    before: Vec<Option<usize>>,
}

impl Plan<'_> {
    /// Makes it a pass of the head alone, over one token of each sequence: each goes on from a row of the pass before, or
    /// from what the decoder's last step left.
    pub(crate) fn draft(&mut self, before: Vec<Option<usize>>) {
        self.drafting = Some(Drafting { before });
    }

    /// Whether it is a pass of the head alone.
    pub(super) fn is_drafting(&self) -> bool {
        self.drafting.is_some()
    }

    fn before(&self, row: usize) -> Before {
        let (_, segment, position) = self.rows[row];
        match &self.drafting {
            Some(Drafting { before }) if before[row].is_some() => before[row].map_or(Before::Nothing, Before::Drafted),
            None if row > self.starts[segment] => Before::Row(row - 1),
            _ => position
                .checked_sub(1)
                .map_or(Before::Nothing, |before| Before::Record(before / BLOCK_TOKENS)),
        }
    }
}

impl Stage {
    /// Whether it is one of the head's, which has a stream of its own.
    pub(super) fn is_of_mtp(self, config: &ModelConfig, plan: &Plan<'_>) -> bool {
        match self {
            Self::FuseInput | Self::Fuse => true,
            Self::MtpInput | Self::MtpJoin | Self::MtpStream(_) | Self::MtpOutput | Self::KeepRecords => true,
            Self::Project(layer) | Self::Compress(layer) => config.is_mtp(layer),
            _ => plan.is_drafting(),
        }
    }
}

impl Pass<'_> {
    /// The stages after a step's last that store the head's keys and values; none where there is no head.
    pub(super) fn mtp_stages(&self) -> impl Iterator<Item = Stage> + use<> {
        let is_latent = self.config.latent.is_some();
        let stages = self.config.mtp_layer().map(|layer| {
            let outputs: &[Stage] = match self.mtp().entry {
                HeadEntry::Joined(_) => &[Stage::KeepOutputs],
                HeadEntry::Fused(_) => &[Stage::FuseInput, Stage::Fuse],
            };
            let stored = [
                Some(Stage::Project(layer)),
                is_latent.then_some(Stage::Compress(layer)),
                Some(Stage::KeepRecords),
            ];
            let outputs = outputs.iter().copied().chain(self.entry_stages());
            outputs.chain(stored.into_iter().flatten())
        });
        stages.into_iter().flatten()
    }

    /// The stages of a step of a decoder that store keys and values of a head of another file.
    pub(crate) fn storing_stages(&self, plan: &Plan<'_>) -> (Vec<Stage>, Vec<usize>) {
        self.counted(plan, self.mtp_stages().collect())
    }

    /// The stages before the head's layer.
    fn entry_stages(&self) -> impl Iterator<Item = Stage> + use<> {
        let stages: &[Stage] = match self.mtp().entry {
            HeadEntry::Joined(_) => &[Stage::MtpInput, Stage::MtpJoin, Stage::MtpStream(0)],
            HeadEntry::Fused(_) => &[Stage::MtpInput],
        };
        stages.iter().copied()
    }

    /// The stages of a pass that drafts.
    pub(crate) fn drafting_stages(&self, plan: &Plan<'_>) -> (Vec<Stage>, Vec<usize>) {
        let layer = self.config.num_layers;
        let block = self.config.blocks_per_layer() * layer;
        let route = self.config.has_experts(layer).then_some(Stage::Route(layer));
        let stages = self
            .entry_stages()
            .chain(self.mixer_stages(plan, layer, false))
            .chain([Stage::Block(block), Stage::MtpStream(1)])
            .chain(route)
            .chain([
                Stage::Gate(layer),
                Stage::Block(block + 1),
                Stage::MtpOutput,
                Stage::Output,
            ]);
        self.counted(plan, stages.collect())
    }

    /// Whether a layer's keys and values are stored and nothing else: those of the head, but where it drafts.
    pub(super) fn stores_alone(&self, plan: &Plan<'_>, layer: usize) -> bool {
        self.config.is_mtp(layer) && !plan.is_drafting()
    }

    pub(super) fn mtp(&self) -> &MtpWeights {
        self.weights.mtp.as_ref().expect("a model with a head that drafts")
    }
}

impl Part<'_> {
    /// The decoder's output for a row, normalised as for the output matrix.
    ///
    /// # Safety
    /// The row of the stream is complete, and its output is this thread's in this stage.
    pub(super) unsafe fn keep_output(&self, row: usize) {
        let Pass {
            weights,
            isa,
            config,
            space,
            ..
        } = *self.pass;
        // SAFETY: by contract.
        unsafe {
            let (residual, output) = (self.stream.residual.shared_row(row), space.mtp.output.row(row));
            weights.final_norm.apply(isa, residual, config.norm_epsilon, output);
        }
    }

    /// Whether a row's keys and values in a layer are there already: the head's where a text is gone on with from a part of
    /// a cached block, whose record is of a later token. The row's token was computed before, and is computed again for the
    /// next one's sake.
    ///
    /// # Safety
    /// Nobody writes records in this stage.
    pub(super) unsafe fn has_slot(&self, layer: usize, row: usize) -> bool {
        if !self.pass.config.is_mtp(layer) {
            return false;
        }
        let Before::Record(block) = self.plan.before(row) else {
            return false;
        };
        let (_, segment, position) = self.plan.rows[row];
        let tables = self.plan.segments[segment].tables;
        // SAFETY: by contract.
        unsafe { self.pass.kv.record_tokens(tables, block) != position }
    }

    /// The head's input for a row: its token's embedding and the output for the token before, each normalised.
    ///
    /// # Safety
    /// Outputs are complete and nobody writes them, nor records, in this stage; the row is this thread's.
    pub(super) unsafe fn join_input(&self, row: usize, own: &mut Own) {
        let Pass { isa, config, space, .. } = *self.pass;
        let (mtp, hidden, epsilon) = (self.pass.mtp(), config.hidden_size, config.norm_epsilon);
        let (values, rest) = own.row.split_at_mut(hidden);
        let pair = &mut rest[..2 * hidden];
        self.embed(row, values);
        mtp.token_norm.apply(isa, values, epsilon, &mut pair[..hidden]);
        // SAFETY: by contract.
        unsafe {
            match self.plan.before(row) {
                Before::Nothing => values.fill(0.0),
                Before::Row(row) => values.copy_from_slice(space.mtp.output.shared_row(row)),
                Before::Drafted(row) => values.copy_from_slice(space.mtp.drafted.shared_row(row)),
                Before::Record(block) => {
                    let tables = self.plan.segments[self.plan.rows[row].1].tables;
                    values.copy_from_slice(self.pass.kv.record(tables, block));
                }
            }
            mtp.stream_norm.apply(isa, values, epsilon, &mut pair[hidden..]);
            space.mtp.joined.write_row(isa, row, pair);
            if let (HeadEntry::Fused(fusion), true) = (&mtp.entry, self.plan.is_drafting()) {
                let start = if fusion.is_residual_normalised {
                    &pair[hidden..]
                } else {
                    values
                };
                self.stream.residual.row(row).copy_from_slice(start);
            }
        }
    }

    /// The head's stream at its beginning, some columns of some rows.
    ///
    /// # Safety
    /// The input is complete, and these columns of these rows are this piece's.
    pub(super) unsafe fn join(&self, (rows, groups): (Range<usize>, Range<usize>)) {
        let Pass { config, space, .. } = *self.pass;
        let HeadEntry::Joined(join) = &self.pass.mtp().entry else {
            return;
        };
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(config.hidden_size);
        // SAFETY: by contract.
        unsafe {
            let mut out = self.stream.residual.patch(rows, columns);
            self.multiply_columns(join, &space.mtp.joined, None, &mut out);
        }
    }

    /// A row of the head's stream before a block of its layer, normalised for it.
    ///
    /// # Safety
    /// The blocks before are complete, and the row is this thread's.
    pub(super) unsafe fn advance_mtp(&self, place: usize, row: usize, scratch: &mut [f32]) {
        let layer = &self.pass.weights.layers[self.pass.config.num_layers];
        let norm = [&layer.attention_norm, &layer.ffn_norm][place];
        // SAFETY: by contract.
        unsafe {
            let residual = self.stream.residual.row(row);
            if place > 0 {
                self.add_block(self.pass.num_blocks() + place - 1, row, residual, scratch);
            }
            if let Some(norm) = norm {
                self.normalise(residual, norm, &self.stream.hidden_input, row, scratch);
            }
        }
    }

    /// The head's output for a row, kept for the next pass.
    ///
    /// # Safety
    /// As [`Self::advance_mtp`].
    pub(super) unsafe fn finish_mtp(&self, row: usize, scratch: &mut [f32]) {
        let Pass { isa, config, space, .. } = *self.pass;
        // SAFETY: by contract.
        unsafe {
            let residual = self.stream.residual.row(row);
            self.add_block(self.pass.num_blocks() + 1, row, residual, scratch);
            let output = space.mtp.drafted.row(row);
            self.pass
                .mtp()
                .output_norm
                .apply(isa, residual, config.norm_epsilon, output);
            self.stream.output_input.write_row(isa, row, output);
            if let HeadEntry::Fused(fusion) = &self.pass.mtp().entry
                && !fusion.hands_on_normalised
            {
                output.copy_from_slice(residual);
            }
        }
    }

    /// Keeps the outputs for a segment's known tokens in their blocks.
    ///
    /// # Safety
    /// Outputs are complete; the blocks of the segment's tokens are this thread's.
    pub(super) unsafe fn keep_records(&self, segment: usize) {
        let (plan, space) = (self.plan, self.pass.space);
        let Segment {
            tables,
            first_position,
            tokens,
            num_drafts,
            ..
        } = plan.segments[segment];
        let rows = plan.starts[segment]..plan.starts[segment] + tokens.len() - num_drafts;
        // SAFETY: by contract.
        unsafe { keep_records(self.pass.kv, &space.mtp.output, tables, first_position, rows) };
    }
}

/// Keeps the outputs for some rows, whose tokens are at consecutive positions, in the blocks of these: of each block its last
/// token's.
///
/// # Safety
/// The rows are complete, and nobody else uses the blocks' records.
pub(crate) unsafe fn keep_records(
    kv: &KvMemory,
    outputs: &Rows,
    tables: &[Arc<Vec<u32>>],
    first_position: usize,
    rows: impl ExactSizeIterator<Item = usize>,
) {
    let num_rows = rows.len();
    for (place, row) in rows.enumerate() {
        let position = first_position + place;
        if place + 1 == num_rows || (position + 1).is_multiple_of(BLOCK_TOKENS) {
            // SAFETY: by contract.
            unsafe {
                let output = outputs.shared_row(row);
                kv.keep_record(tables, position / BLOCK_TOKENS, output, position + 1);
            }
        }
    }
}
