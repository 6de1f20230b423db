//! The feed-forward block's inside, and blocks' outputs: two stages of the forward pass.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::{BLOCK_COLS, ROWS_PER_GROUP};

use super::experts::Routed;
use super::{Part, Pass};
use crate::adapters::Projection;
use crate::config::Activation;
use crate::model::{Curve, Gated};
use crate::workspace::{Own, Patch};

impl Part<'_> {
    /// The feed-forward block's inside: gate and up, activated and multiplied, as the down matrix's input. With
    /// `routed`, it says which token each row is, and how much of it there is; with `layer`, adapters add to its, and rows that are probed are told of.
    pub(super) unsafe fn gate(
        &self,
        gated: &Gated,
        inside: &Activations,
        layer: Option<usize>,
        routed: Option<Routed<'_>>,
        (rows, blocks): (Range<usize>, Range<usize>),
        own: &mut Own,
    ) {
        let isa = self.pass.isa;
        let columns = blocks.start * BLOCK_COLS..(blocks.end * BLOCK_COLS).min(gated.up.weight.rows());
        let mut gate = Patch::own(&mut own.first, rows.clone(), columns.clone());
        let mut up = Patch::own(&mut own.second, rows.clone(), columns.clone());
        let vectors = routed.map(|routed| routed.tokens);
        let input = self.block_inside_input(vectors.is_some());
        // SAFETY: these columns of these rows are this piece's.
        unsafe {
            if let Some(matrix) = &gated.gate {
                self.multiply_columns(matrix, input, vectors, &mut gate);
            }
            self.multiply_columns(&gated.up, input, vectors, &mut up);
            if let Some(layer) = layer {
                self.adapt(layer, Projection::Gate, &mut gate, 0);
                self.adapt(layer, Projection::Up, &mut up, 0);
            }
            for row in rows.clone() {
                let (gate, up) = (gate.row(row), up.row(row));
                if let Some(multipliers) = &self.pass.config.multipliers {
                    elementwise::scale(isa, gate, multipliers.gate);
                }
                if let Some(weight) = routed.and_then(|routed| self.input_weight(routed, row)) {
                    elementwise::scale(isa, gate, weight);
                    elementwise::scale(isa, up, weight);
                }
                self.activate(up, gate, gated.curve.as_ref());
            }
            if let Some(layer) = layer {
                self.probe_neurons(layer, rows.clone(), &mut up);
            }
            inside.write_tile(isa, rows, columns, up.origin(), up.stride());
        }
    }

    /// Multiplies `up` by what the gate's activation lets through, or gives it the layer's curve.
    pub(super) fn activate(&self, up: &mut [f32], gate: &[f32], curve: Option<&Curve>) {
        let Pass { config, isa, .. } = *self.pass;
        match config.activation {
            Activation::Silu => elementwise::silu_mul(isa, up, gate),
            Activation::Relu => elementwise::relu(isa, up),
            Activation::ReluSquared => elementwise::relu_squared(isa, up),
            Activation::BareGelu => elementwise::gelu(isa, up),
            Activation::BareGeluTanh => elementwise::gelu_tanh(isa, up),
            Activation::GeluTanh => elementwise::gelu_tanh_mul(isa, up, gate),
            Activation::Xielu => curve.into_iter().for_each(|curve| curve.bend(isa, up)),
            Activation::ClampedSwiglu { alpha, limit } => elementwise::clamped_swiglu(isa, up, gate, alpha, limit),
        }
    }

    /// Where the inside of a layer's feed-forward block without experts is.
    pub(super) fn inside(&self, layer: usize) -> &Activations {
        let Pass { config, space, .. } = *self.pass;
        if config.has_dense_size(layer) {
            &space.dense_input
        } else {
            &space.ffn_input
        }
    }

    /// The output of attention, of a feed-forward block without experts, or of per-layer embeddings.
    pub(super) unsafe fn block(&self, block: usize, (rows, groups): (Range<usize>, Range<usize>)) {
        let Pass { space, isa, .. } = *self.pass;
        let input = self.block_input(block);
        let Some(linear) = self.pass.block(block).0 else {
            return;
        };
        let width = space.delta.width();
        let first = self.delta_row(block);
        let out = space.delta.base().wrapping_add(first * width);
        let columns = groups.start * ROWS_PER_GROUP..(groups.end * ROWS_PER_GROUP).min(width);
        let (layer, place) = self.pass.config.place_of(block);
        let projection = [Projection::AttentionOutput, Projection::Down].get(place);
        // SAFETY: these groups' columns of these rows of the output are this piece's.
        unsafe {
            matmul::matmul(isa, &linear.weight, groups, input, rows.clone(), out, width);
            let mut out = space.delta.patch(first + rows.start..first + rows.end, columns);
            if let Some(projection) = projection {
                self.adapt(layer, *projection, &mut out, first);
            }
        }
    }

    /// What the matrix of a block without experts is multiplied by.
    pub(super) fn block_input(&self, block: usize) -> &Activations {
        let Pass { space, config, .. } = *self.pass;
        let (layer, place) = self.pass.config.place_of(block);
        match place {
            0 if config.recurrent(layer).is_some() => &space.mixer_input,
            0 => &space.heads_inputs[config.head_kind(layer)],
            1 => self.inside(layer),
            _ => self.passed_vectors(),
        }
    }
}
