//! Mamba's state space in a recurrent layer (Gu and Dao 2023, arXiv 2312.00752).
//!
//! From what was convolved, one matrix selects a token's steps, compressed, and what it writes and reads along; these are
//! normalised where the family does. A piece of the scan has some channels of one sequence: it makes their steps of the
//! compressed ones, and brings their states past them.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::ROWS_PER_GROUP;
use pyagent_kernels::recurrent::{CELL_CHANNELS, ChannelScan, scan_channels};

use super::recurrent::num_channel_parts;
use super::sequence::Sequence;
use super::{MOST_GROUPS, Part, Pass, Plan, Tiling};
use crate::config::{Mamba1, ModelConfig, Recurrent};
use crate::kv::StateRun;
use crate::model::{ChannelWeights, Mixer, Weights};
use crate::workspace::{Forms, Own, Patch, Rows};

/// What a layer's stages hand to each other.
pub struct ChannelBuffers {
    /// What was convolved.
    pub convolved: Activations,
    /// Compressed steps.
    steps: Activations,
    /// Of a token, its compressed steps, then what it writes along, then what it reads along.
    selected: Rows,
    forms: [Forms; 2],
}

impl ChannelBuffers {
    /// Empty buffers.
    pub fn new(config: &ModelConfig, weights: &Weights) -> Self {
        let layers = weights.layers.iter();
        let layers = || layers.clone().filter_map(|layer| layer.mixer.channels());
        Self {
            convolved: Activations::new(),
            steps: Activations::new(),
            selected: Rows::new(channel_sizes(config).map_or(0, |(.., selected)| selected)),
            forms: [
                Forms::of(layers().map(|channels| &channels.select.weight)),
                Forms::of(layers().map(|channels| &channels.steps.weight)),
            ],
        }
    }

    /// Makes room for so many tokens.
    pub fn reserve(&mut self, config: &ModelConfig, tokens: usize) {
        let Some(([inner, rank], _)) = channel_sizes(config) else {
            return;
        };
        let buffers = [(&mut self.convolved, inner), (&mut self.steps, rank)];
        for ((buffer, cols), forms) in buffers.into_iter().zip(self.forms) {
            buffer.resize(tokens, cols, forms.is_quantised, forms.is_dense);
        }
        self.selected.reserve(tokens);
    }

    /// Bytes held.
    pub fn bytes(&mut self) -> usize {
        self.convolved.bytes() + self.steps.bytes() + self.selected.bytes()
    }
}

fn mamba1(config: &ModelConfig) -> Option<&Mamba1> {
    match &config.recurrent {
        Some(Recurrent::Mamba1(shape)) => Some(shape),
        _ => None,
    }
}

/// Columns of both inputs of matrices, and numbers in a row of what is selected, if the model has such layers.
pub(crate) fn channel_sizes(config: &ModelConfig) -> Option<([usize; 2], usize)> {
    let shape = mamba1(config)?;
    let selected = shape.selected_size().next_multiple_of(CELL_CHANNELS);
    Some(([shape.inner_size, shape.step_rank], selected))
}

/// How the matrix that selects is cut.
pub(super) fn selecting_tiling(plan: &Plan<'_>, config: &ModelConfig) -> Tiling {
    let groups = mamba1(config).map_or(0, |shape| shape.selected_size().div_ceil(ROWS_PER_GROUP));
    Tiling::new(plan.num_rows(), groups, MOST_GROUPS, plan.num_threads)
}

impl Part<'_> {
    fn channels(&self, layer: usize) -> Option<(&Mamba1, &ChannelWeights)> {
        Some((
            mamba1(self.pass.config)?,
            self.pass.weights.layers[layer].mixer.channels()?,
        ))
    }

    /// Some columns of what is selected, for some rows.
    ///
    /// # Safety
    /// The layer's convolution is over; these columns of these rows are this piece's.
    pub(super) unsafe fn select(&self, layer: usize, (rows, groups): (Range<usize>, Range<usize>)) {
        let Pass { space, isa, .. } = *self.pass;
        let Some((_, weights)) = self.channels(layer) else {
            return;
        };
        let buffers = &space.channels;
        let (out, width) = (buffers.selected.base(), buffers.selected.width());
        // SAFETY: by contract.
        unsafe {
            matmul::matmul(
                isa,
                &weights.select.weight,
                groups,
                &buffers.convolved,
                rows,
                out,
                width,
            )
        };
    }

    /// Normalises what is selected for a row, and hands its compressed steps on.
    ///
    /// # Safety
    /// All of it is there; the row is this thread's in this stage.
    pub(super) unsafe fn settle(&self, layer: usize, row: usize) {
        let Pass { space, isa, .. } = *self.pass;
        let Some((shape, weights)) = self.channels(layer) else {
            return;
        };
        // SAFETY: by contract.
        unsafe {
            let selected = space.channels.selected.row(row);
            let (steps, along) = selected.split_at_mut(shape.step_rank);
            let (written, read) = along.split_at_mut(shape.state_size);
            let parts = [&mut *steps, written, &mut read[..shape.state_size]];
            let epsilon = shape.norm_epsilon.unwrap_or_default();
            for (part, norm) in parts.into_iter().zip(&weights.norms) {
                elementwise::rms_norm_in_place(isa, part, norm, epsilon);
            }
            space.channels.steps.write_row(isa, row, steps);
        }
    }

    /// Some channels of a sequence, gated.
    ///
    /// # Safety
    /// The layer's steps are handed on; the piece's channels and their states are this thread's in this stage.
    pub(super) unsafe fn scan_channels(&self, layer: usize, piece: usize, own: &mut Own) {
        let num_parts = num_channel_parts(self.plan, self.pass.config);
        let Some(sequence) = self.sequence(layer, piece / num_parts) else {
            return;
        };
        let channels = self.channels_of(&sequence, num_parts, piece);
        let cells = channels.start / CELL_CHANNELS..channels.end / CELL_CHANNELS;
        let [_, len] = sequence.states.cell_lens;
        let states = sequence.states.layer(layer).matrices[cells].iter().copied();
        let mut saved = std::mem::take(&mut own.saved);
        // SAFETY: by contract; runs and tiles follow each other.
        unsafe {
            sequence.advance(self.pass.kv, (states, len), &mut saved, |run, rows| {
                self.scan_tile_of_channels(layer, &sequence, run, (rows, channels.clone()), own);
            });
        }
        own.saved = saved;
    }

    unsafe fn scan_tile_of_channels(
        &self,
        layer: usize,
        sequence: &Sequence<'_>,
        run: &StateRun,
        (rows, channels): (Range<usize>, Range<usize>),
        own: &mut Own,
    ) {
        let Pass { space, isa, kv, .. } = *self.pass;
        let Some((shape, weights)) = self.channels(layer) else {
            return;
        };
        let (buffers, stride) = (&space.channels, space.mixed.width());
        let mut steps = Patch::own(&mut own.first, rows.clone(), channels.clone());
        // SAFETY: by contract.
        unsafe { self.multiply_columns(&weights.steps, &buffers.steps, None, &mut steps) };
        let row = space.mixed.base().wrapping_add(rows.start * stride);
        let selected = buffers.selected.base();
        let along_stride = buffers.selected.width();
        let b = selected.wrapping_add(rows.start * along_stride + shape.step_rank);
        let state_len = shape.state_size * CELL_CHANNELS;
        for channel in channels.clone().step_by(CELL_CHANNELS) {
            let cell = channel / CELL_CHANNELS;
            let place = sequence.states.layer(layer).matrices[cell];
            let work = ChannelScan {
                b,
                c: b.wrapping_add(shape.state_size),
                along_stride,
                state_size: shape.state_size,
                x: row.wrapping_add(channel),
                gate: row.wrapping_add(sequence.columns[1] + channel),
                stride,
                steps: steps.origin().wrapping_add(rows.start * steps.stride() + channel),
                step_stride: steps.stride(),
                log_decays: &weights.log_decays[cell * state_len..][..state_len],
                skips: &weights.skips[channel..channel + CELL_CHANNELS],
                num_tokens: rows.len(),
                state: kv.cell(sequence.states, sequence.table, run.to, place),
            };
            // SAFETY: by contract; nobody writes channels, gates and what is selected in this stage.
            unsafe { scan_channels(isa, &work) };
        }
        // SAFETY: these columns of these rows are this piece's.
        unsafe {
            space
                .mixer_input
                .write_tile(isa, rows, channels, steps.origin(), steps.stride())
        };
    }
}

impl Mixer {
    /// What a layer of Mamba has besides.
    fn channels(&self) -> Option<&ChannelWeights> {
        match self {
            Self::Recurrent(recurrent) => recurrent.channels.as_ref(),
            _ => None,
        }
    }
}
