//! Mamba-2's state space in a recurrent layer: each head's scan, and the norm of all heads' outputs.
//!
//! A piece of the scan has one head of one sequence, whose outputs take the place of its channels; a piece of the norm has a
//! token, since a group's norm is over several heads.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::recurrent::{CELL_CHANNELS, SelectiveScan, selective_scan};

use super::delta::softplus;
use super::sequence::Sequence;
use super::{PRODUCT_TILE, Part, Pass};
use crate::config::Mamba2;
use crate::kv::StateRun;
use crate::model::ScanWeights;
use crate::workspace::Own;

impl Part<'_> {
    /// A head of a sequence.
    ///
    /// # Safety
    /// The layer's convolution is over; the piece's channels and their states are this thread's in this stage.
    pub(super) unsafe fn scan_space(&self, layer: usize, space: &Mamba2, piece: usize, own: &mut Own) {
        let (segment, head) = (piece / space.num_heads, piece % space.num_heads);
        let heads = (std::iter::once(head), space.head_size);
        // SAFETY: by contract.
        unsafe {
            self.advance_heads((layer, segment), heads, own, |sequence, weights, run, rows, _| {
                let head = Head {
                    space,
                    weights,
                    layer,
                    head,
                };
                self.scan_head(sequence, run, &head, rows);
            });
        }
    }

    unsafe fn scan_head(&self, sequence: &Sequence<'_>, run: &StateRun, head: &Head<'_>, rows: Range<usize>) {
        let Pass {
            config, space, isa, kv, ..
        } = *self.pass;
        let Head { space: shape, .. } = *head;
        let (mut decays, mut steps) = ([0.0; PRODUCT_TILE], [0.0; PRODUCT_TILE]);
        let factor = config.multipliers.map_or(1.0, |multipliers| multipliers.space[4]);
        for (index, row) in rows.clone().enumerate() {
            // SAFETY: the projections are over, and nobody writes steps in this stage.
            let step = unsafe {
                *space
                    .mixed
                    .base()
                    .add(row * space.mixed.width() + sequence.columns[2] + head.head)
            };
            (decays[index], steps[index]) = head.step(step * factor);
        }
        let stride = space.mixed.width();
        let first = space.mixed.base().wrapping_add(rows.start * stride);
        let b = first.wrapping_add(shape.inner_size() + shape.group(head.head) * shape.state_size);
        let columns = head.head * shape.head_size..(head.head + 1) * shape.head_size;
        for column in columns.step_by(CELL_CHANNELS) {
            let matrix = sequence.states.layer(head.layer).matrices[column / CELL_CHANNELS];
            let work = SelectiveScan {
                b,
                c: b.wrapping_add(shape.states_size()),
                state_size: shape.state_size,
                x: first.wrapping_add(column),
                stride,
                decays: &decays[..rows.len()],
                steps: &steps[..rows.len()],
                skip: head.weights.skips[head.head],
                state: kv.cell(sequence.states, sequence.table, run.to, matrix),
            };
            // SAFETY: by contract; the heads' channels lie before what all of a group read.
            unsafe { selective_scan(isa, &work) };
        }
    }

    /// Gates a token's outputs, normalises each group, and hands them to the output matrix.
    ///
    /// # Safety
    /// The layer's scan is over; the row is this thread's in this stage.
    pub(super) unsafe fn normalise_space(&self, scan: &ScanWeights, shape: &Mamba2, row: usize) {
        let Pass { config, space, isa, .. } = *self.pass;
        let gates = shape.num_channels().next_multiple_of(CELL_CHANNELS);
        let inner = shape.inner_size();
        // SAFETY: by contract.
        unsafe {
            let (outputs, rest) = space.mixed.row(row).split_at_mut(gates);
            let outputs = &mut outputs[..inner];
            if let Some(multipliers) = &config.multipliers {
                elementwise::scale(isa, &mut rest[..inner], multipliers.space[0]);
            }
            elementwise::silu_mul(isa, outputs, &rest[..inner]);
            let size = inner / shape.num_groups;
            for (group, norm) in outputs.chunks_exact_mut(size).zip(scan.norm.chunks_exact(size)) {
                elementwise::rms_norm_in_place(isa, group, norm, config.norm_epsilon);
            }
            space.mixer_input.write_row(isa, row, outputs);
        }
    }
}

/// A head of a layer.
struct Head<'a> {
    space: &'a Mamba2,
    weights: &'a ScanWeights,
    layer: usize,
    head: usize,
}

impl Head<'_> {
    /// What a token leaves of the state, and its step; computed in `f64`.
    fn step(&self, step: f32) -> (f32, f32) {
        let [least, most] = self.space.step_limits;
        let step = softplus(f64::from(step) + f64::from(self.weights.step_biases[self.head]));
        let step = step.clamp(least, most);
        let decay = (f64::from(self.weights.log_decays[self.head]) * step).exp();
        (decay as f32, step as f32)
    }
}
