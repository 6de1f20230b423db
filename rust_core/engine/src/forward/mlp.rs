//! The feed-forward block's inside, and blocks' outputs: two stages of the forward pass.

use std::ops::Range;

use pyagent_kernels::elementwise;
use pyagent_kernels::matmul::{self, Activations};
use pyagent_kernels::pack::BLOCK_COLS;

use super::{Part, Pass};
use crate::config::Activation;
use crate::model::Gated;
use crate::workspace::{Own, Patch};

impl Part<'_> {
    /// The feed-forward block's inside: gate and up, activated and multiplied, as the down matrix's input. With
    /// `vectors`, they say which token each row is; with `layer`, rows are tokens, and those that are probed are told of.
    pub(super) unsafe fn gate(
        &self,
        gated: &Gated,
        inside: &Activations,
        vectors: Option<&[u32]>,
        (rows, blocks): (Range<usize>, Range<usize>),
        own: &mut Own,
        layer: Option<usize>,
    ) {
        let Pass { config, isa, .. } = *self.pass;
        let columns = blocks.start * BLOCK_COLS..(blocks.end * BLOCK_COLS).min(gated.gate.weight.rows());
        let mut gate = Patch::own(&mut own.first, rows.clone(), columns.clone());
        let mut up = Patch::own(&mut own.second, rows.clone(), columns.clone());
        let input = &self.stream.hidden_input;
        // SAFETY: these columns of these rows are this piece's.
        unsafe {
            self.multiply_columns(&gated.gate, input, vectors, &mut gate);
            self.multiply_columns(&gated.up, input, vectors, &mut up);
            for row in rows.clone() {
                let (gate, up) = (gate.row(row), up.row(row));
                match config.activation {
                    Activation::Silu => elementwise::silu_mul(isa, up, gate),
                    Activation::GeluTanh => elementwise::gelu_tanh_mul(isa, up, gate),
                    Activation::ClampedSwiglu { alpha, limit } => {
                        elementwise::clamped_swiglu(isa, up, gate, alpha, limit);
                    }
                }
            }
            if let Some(layer) = layer {
                self.probe_neurons(layer, rows.clone(), &mut up);
            }
            inside.write_tile(isa, rows, columns, up.origin(), up.stride());
        }
    }

    /// Where the insides of feed-forward blocks without experts are.
    pub(super) fn inside(&self) -> &Activations {
        let Pass { config, space, .. } = *self.pass;
        match config.experts {
            Some(_) => &space.dense_input,
            None => &space.ffn_input,
        }
    }

    /// The output of attention, or of a feed-forward block without experts.
    pub(super) unsafe fn block(&self, block: usize, (rows, groups): (Range<usize>, Range<usize>)) {
        let Pass { space, isa, .. } = *self.pass;
        let is_recurrent = || self.pass.config.recurrent(block / 2).is_some();
        let input = match block % 2 {
            0 if is_recurrent() => &space.mixer_input,
            0 => &space.heads_input,
            _ => self.inside(),
        };
        let Some(linear) = self.pass.block(block).0 else {
            return;
        };
        let width = space.delta.width();
        let out = space.delta.base().wrapping_add(self.delta_row(block) * width);
        // SAFETY: these groups' columns of these rows of the output are this piece's.
        unsafe { matmul::matmul(isa, &linear.weight, groups, input, rows, out, width) };
    }
}
