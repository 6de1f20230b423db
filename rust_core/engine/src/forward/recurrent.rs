//! Recurrent layers: their projections and their convolutions, in place of attention's stages; delta rules, state spaces and
//! lightning attention are beside.
//!
//! A piece has some channels, or a key head, of one sequence's tokens, and takes them one after the other: the sequence's
//! state is read and written in its pages. So the number of pieces is that of sequences times parts of a layer, and what a
//! token becomes depends on the tokens before it alone.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul;
use pyagent_kernels::pack::{BLOCK_COLS, ROWS_PER_GROUP};
use pyagent_kernels::recurrent::{CELL_CHANNELS, Convolution, convolve};

use super::sequence::Sequence;
use super::{MOST_GROUPS, PIECES_PER_THREAD, Part, Pass, Plan, Stage, Tiling, kimi, part};
use crate::config::{ModelConfig, Recurrent};
use crate::kv::StateRun;
use crate::model::{Linear, Mixer, RecurrentWeights};
use crate::workspace::{Own, Patch};

/// Blocks of channels in a piece of a convolution at most.
pub(super) const MOST_BLOCKS: usize = 8;

/// Columns of the widest tile that a recurrent layer's pieces use.
pub(super) fn most_columns(config: &ModelConfig) -> usize {
    match &config.recurrent {
        None => 0,
        Some(Recurrent::ShortConvolution { .. } | Recurrent::Mamba1(_)) => MOST_BLOCKS * BLOCK_COLS,
        Some(Recurrent::Mamba2(_) | Recurrent::Lightning(_)) => 0,
        Some(Recurrent::DeltaNet(net)) => (2 * net.key_size).max(net.value_size),
        Some(Recurrent::KimiDelta(shape)) => kimi::columns_per_key(shape),
    }
}

/// Values in a row of all of a recurrent layer's projections, or of latent attention's; none without such layers.
pub(crate) fn mixed_size(config: &ModelConfig) -> usize {
    let recurrent = config.recurrent.as_ref();
    let latent = config.latent.map_or(0, |latent| latent.compressed_dims());
    recurrent
        .map_or(0, |recurrent| recurrent.columns(config.hidden_size).1)
        .max(latent)
}

/// Values that a recurrent layer hands to its output matrix; none without such layers.
pub(crate) fn output_size(config: &ModelConfig) -> usize {
    let recurrent = config.recurrent.as_ref();
    recurrent.map_or(0, |recurrent| recurrent.output_size(config.hidden_size))
}

/// How a recurrent layer's projections, or latent attention's, are cut.
pub(super) fn projection_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let groups = mixed_size(config) / ROWS_PER_GROUP;
    Tiling::new(plan.num_rows(), groups, MOST_GROUPS, plan.num_threads)
}

/// Parts that a sequence's channels are cut into.
pub(super) fn num_channel_parts(plan: &Plan<'_>, config: &ModelConfig) -> usize {
    let channels = config
        .recurrent
        .map_or(0, |recurrent| recurrent.num_channels(config.hidden_size));
    let blocks = channels.div_ceil(BLOCK_COLS);
    let wanted = (plan.num_threads * PIECES_PER_THREAD).div_ceil(plan.segments.len().max(1));
    wanted.max(blocks.div_ceil(MOST_BLOCKS)).min(blocks)
}

/// Pieces of a layer's convolution.
pub(super) fn num_convolution_pieces(plan: &Plan<'_>, config: &ModelConfig) -> usize {
    plan.segments.len() * num_channel_parts(plan, config)
}

/// Pieces of a layer's delta rule, or state space.
pub(super) fn num_scan_pieces(plan: &Plan<'_>, config: &ModelConfig) -> usize {
    let of_sequence = match &config.recurrent {
        Some(Recurrent::DeltaNet(net)) => net.num_key_heads,
        Some(Recurrent::KimiDelta(shape)) => shape.num_heads,
        Some(Recurrent::Mamba2(space)) => space.num_heads,
        Some(Recurrent::Lightning(shape)) => shape.num_heads,
        Some(Recurrent::Mamba1(_)) => num_channel_parts(plan, config),
        _ => 0,
    };
    plan.segments.len() * of_sequence
}

impl Pass<'_> {
    /// The stages of a layer before its first output: attention's, or a recurrent layer's.
    pub(super) fn mixer_stages(
        &self,
        plan: &Plan<'_>,
        layer: usize,
        is_norm_wide: bool,
    ) -> impl Iterator<Item = Stage> + use<> {
        let recurrent = self.config.recurrent(layer);
        let attention = recurrent.is_none();
        let is_latent = attention && self.config.latent.is_some();
        let has_norm = matches!(recurrent, Some(Recurrent::Mamba2(_) | Recurrent::Lightning(_)));
        let has_drafts = plan.num_drafts() > 0;
        let picks = self.config.indexer(layer).is_some() && plan.rating.num_pieces() > 0;
        let before = [
            Some(Stage::Project(layer)),
            (attention && is_norm_wide).then_some(Stage::NormaliseHeads(layer)),
            is_latent.then_some(Stage::Compress(layer)),
            picks.then_some(Stage::AskIndexer(layer)),
            picks.then_some(Stage::RatePositions(layer)),
            is_latent.then_some(Stage::Absorb(layer)),
            attention.then_some(Stage::Attend(layer)),
            is_latent.then_some(Stage::Expand(layer)),
            (!attention && has_drafts).then_some(Stage::KeepDrafts(layer)),
        ];
        let norm = has_norm.then_some(Stage::NormaliseScan(layer));
        before.into_iter().flatten().chain(self.state_stages(layer)).chain(norm)
    }

    /// The stages that bring a recurrent layer's states past tokens; none where it has attention.
    pub(super) fn state_stages(&self, layer: usize) -> impl Iterator<Item = Stage> + use<> {
        let recurrent = self.config.recurrent(layer);
        let selects = matches!(recurrent, Some(Recurrent::Mamba1(_)));
        let convolves = !matches!(recurrent, None | Some(Recurrent::Lightning(_)));
        let scans = !matches!(recurrent, None | Some(Recurrent::ShortConvolution { .. }));
        let stages = [
            convolves.then_some(Stage::Convolve(layer)),
            matches!(recurrent, Some(Recurrent::KimiDelta(_))).then_some(Stage::HandOnGates(layer)),
            selects.then_some(Stage::Select(layer)),
            selects.then_some(Stage::Settle(layer)),
            scans.then_some(Stage::Scan(layer)),
        ];
        stages.into_iter().flatten()
    }
}

impl Part<'_> {
    /// All of a recurrent layer's projections, some of their columns for some rows.
    ///
    /// # Safety
    /// These columns of these rows are this piece's.
    pub(super) unsafe fn project_mixer(
        &self,
        weights: &RecurrentWeights,
        (rows, groups): (Range<usize>, Range<usize>),
    ) {
        let config = self.pass.config;
        let Some(recurrent) = &config.recurrent else { return };
        let (starts, _) = recurrent.columns(config.hidden_size);
        // SAFETY: by contract.
        unsafe { self.project_beside(weights.inputs.iter().zip(starts), (rows, groups)) };
    }

    /// Products of the layer's input that lie beside each other in a row, each from a whole group of columns on.
    ///
    /// # Safety
    /// These columns of these rows are this piece's.
    pub(super) unsafe fn project_beside<'a>(
        &self,
        linears: impl Iterator<Item = (&'a Linear, usize)>,
        (rows, groups): (Range<usize>, Range<usize>),
    ) {
        let Pass { space, isa, .. } = *self.pass;
        let width = space.mixed.width();
        for (linear, start) in linears {
            let first = start / ROWS_PER_GROUP;
            let own = groups.start.max(first)..groups.end.min(first + linear.weight.num_groups());
            if own.is_empty() {
                continue;
            }
            let own = own.start - first..own.end - first;
            let out = space.mixed.base().wrapping_add(start);
            let columns = own.start * ROWS_PER_GROUP..(own.end * ROWS_PER_GROUP).min(linear.weight.rows());
            // SAFETY: by contract; the matrix's columns lie from `start` on.
            unsafe {
                matmul::matmul(
                    isa,
                    &linear.weight,
                    own,
                    &self.stream.hidden_input,
                    rows.clone(),
                    out,
                    width,
                );
                let Some(bias) = &linear.bias else { continue };
                let columns_in_row = start + columns.start..start + columns.end;
                let mut outputs = space.mixed.patch(rows.clone(), columns_in_row);
                rows.clone()
                    .for_each(|row| elementwise::add(isa, outputs.row(row), &bias[columns.clone()]));
            }
        }
    }

    /// Some channels of a sequence's convolution: a short convolution's output, or a delta net's queries, keys and values,
    /// which stay where they were.
    ///
    /// # Safety
    /// The layer's projections are over; the piece's channels and their states are this thread's in this stage.
    pub(super) unsafe fn convolve(&self, layer: usize, piece: usize, own: &mut Own) {
        let config = self.pass.config;
        let num_parts = num_channel_parts(self.plan, config);
        let Some(sequence) = self.sequence(layer, piece / num_parts) else {
            return;
        };
        let channels = self.channels_of(&sequence, num_parts, piece);
        let cells = channels.start / CELL_CHANNELS..channels.end / CELL_CHANNELS;
        let [len, _] = sequence.states.cell_lens;
        let histories = sequence.states.layer(layer).histories[cells].iter().copied();
        let mut saved = std::mem::take(&mut own.saved);
        // SAFETY: by contract; runs and tiles follow each other.
        unsafe {
            sequence.advance(self.pass.kv, (histories, len), &mut saved, |run, rows| {
                self.convolve_tile(layer, &sequence, run, rows, channels.clone(), own);
            });
        }
        own.saved = saved;
    }

    /// The channels of a piece.
    pub(super) fn channels_of(&self, sequence: &Sequence<'_>, num_parts: usize, piece: usize) -> Range<usize> {
        let channels = sequence.recurrent.num_channels(self.pass.config.hidden_size);
        let blocks = part(channels.div_ceil(BLOCK_COLS), num_parts, piece % num_parts);
        blocks.start * BLOCK_COLS..(blocks.end * BLOCK_COLS).min(channels)
    }

    unsafe fn convolve_tile(
        &self,
        layer: usize,
        sequence: &Sequence<'_>,
        run: &StateRun,
        rows: Range<usize>,
        channels: Range<usize>,
        own: &mut Own,
    ) {
        let Pass {
            config, space, isa, kv, ..
        } = *self.pass;
        let (width, hidden) = (space.mixed.width(), config.hidden_size);
        let is_short = matches!(sequence.recurrent, Recurrent::ShortConvolution { .. });
        let out = is_short.then(|| Patch::own(&mut own.first, rows.clone(), channels.clone()));
        let taps = sequence.recurrent.taps();
        for channel in channels.clone().step_by(CELL_CHANNELS) {
            let cell = channel / CELL_CHANNELS;
            let row = space.mixed.base().wrapping_add(rows.start * width + channel);
            let target = |patch: &Patch<'_>| patch.origin().wrapping_add(rows.start * patch.stride() + channel);
            let bias = sequence.weights.convolution_bias.as_ref();
            let history = sequence.states.layer(layer).histories[cell];
            let work = Convolution {
                weights: &sequence.weights.convolution[cell * taps * CELL_CHANNELS..][..taps * CELL_CHANNELS],
                bias: bias.map(|bias| &bias[channel..channel + CELL_CHANNELS]),
                input: if is_short { row.wrapping_add(2 * hidden) } else { row },
                input_stride: width,
                // Relative to the input: both gates lie before what is convolved.
                gates: is_short.then(|| [row.cast_const(), row.wrapping_add(hidden).cast_const()]),
                has_silu: !is_short,
                out: out.as_ref().map_or(row, target),
                out_stride: out.as_ref().map_or(width, Patch::stride),
                num_tokens: rows.len(),
                history: kv.cell(sequence.states, sequence.table, run.to, history),
            };
            // SAFETY: by contract.
            unsafe { convolve(isa, &work) };
        }
        if let Recurrent::Mamba1(_) = sequence.recurrent {
            let (rows, channels) = (rows.clone(), channels.clone());
            // SAFETY: likewise; convolved channels lie first in a row.
            unsafe {
                let convolved = &space.channels.convolved;
                convolved.write_tile(isa, rows, channels, space.mixed.base(), width);
            }
        }
        if let Some(out) = out {
            // SAFETY: these columns of these rows are this piece's.
            unsafe {
                space
                    .mixer_input
                    .write_tile(isa, rows, channels, out.origin(), out.stride())
            };
        }
    }

    /// A piece of what brings a layer's states past tokens: of a delta rule, a state space or lightning attention.
    ///
    /// # Safety
    /// The stages before it are over; the piece's heads or channels, and their states, are this thread's in this stage.
    pub(super) unsafe fn scan(&self, layer: usize, piece: usize, own: &mut Own) {
        // SAFETY: by contract.
        unsafe {
            match &self.pass.config.recurrent {
                Some(Recurrent::DeltaNet(net)) => self.scan_delta(layer, net, piece, own),
                Some(Recurrent::KimiDelta(shape)) => self.scan_kimi(layer, shape, piece, own),
                Some(Recurrent::Mamba1(_)) => self.scan_channels(layer, piece, own),
                Some(Recurrent::Mamba2(space)) => self.scan_space(layer, space, piece, own),
                Some(Recurrent::Lightning(shape)) => self.scan_lightning(layer, shape, piece, own),
                Some(Recurrent::ShortConvolution { .. }) | None => {}
            }
        }
    }
    /// The norm of a row's outputs, which several heads share, and what it hands to the output matrix.
    ///
    /// # Safety
    /// The layer's scan is over; the row is this thread's in this stage.
    pub(super) unsafe fn normalise_scan(&self, layer: usize, row: usize) {
        let Pass { config, weights, .. } = *self.pass;
        let Mixer::Recurrent(weights) = &weights.layers[layer].mixer else {
            return;
        };
        let Some(scan) = &weights.scan else { return };
        // SAFETY: by contract.
        unsafe {
            match &config.recurrent {
                Some(Recurrent::Mamba2(shape)) => self.normalise_space(scan, shape, row),
                Some(Recurrent::Lightning(shape)) => self.normalise_lightning(scan, shape, row),
                _ => {}
            }
        }
    }
}
