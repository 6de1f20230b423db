//! What a hybrid's layers without attention are: short convolutions (LFM2), or gated delta nets (Qwen 3.5).

use pyagent_kernels::recurrent::{CELL_CHANNELS, MOST_TAPS};

use super::invalid;
use crate::weights::ModelFileError;

/// The kind of all of a model's recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrent {
    /// LFM2: a gated convolution of each channel of the stream.
    ShortConvolution {
        /// Tokens that it covers.
        taps: usize,
    },
    /// Qwen 3.5: a convolution of queries, keys and values, then the gated delta rule.
    DeltaNet(DeltaNet),
}

/// The shape of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Tokens that the convolution covers.
    pub taps: usize,
    /// Heads of queries and keys.
    pub num_key_heads: usize,
    /// Heads of values: as many for each key head.
    pub num_value_heads: usize,
    /// Width of a query or key.
    pub key_size: usize,
    /// Width of a value.
    pub value_size: usize,
    /// Whether a key head's value heads lie apart, as in GGUF files: one of every key head, then the next of each.
    pub is_tiled: bool,
}

impl DeltaNet {
    /// Values in all of a token's queries, or keys.
    pub fn keys_size(&self) -> usize {
        self.num_key_heads * self.key_size
    }

    /// Values in all of a token's values.
    pub fn values_size(&self) -> usize {
        self.num_value_heads * self.value_size
    }

    /// The value heads of a key head.
    pub fn value_heads(&self, key_head: usize) -> impl Iterator<Item = usize> + use<> {
        let (each, key_heads) = (self.num_value_heads / self.num_key_heads, self.num_key_heads);
        let is_tiled = self.is_tiled;
        (0..each).map(move |index| {
            if is_tiled {
                index * key_heads + key_head
            } else {
                key_head * each + index
            }
        })
    }
}

impl Recurrent {
    /// Tokens that the convolution covers.
    pub fn taps(&self) -> usize {
        match self {
            Self::ShortConvolution { taps } => *taps,
            Self::DeltaNet(net) => net.taps,
        }
    }

    /// Channels of the convolution, in a stream so wide.
    pub fn num_channels(&self, hidden_size: usize) -> usize {
        match self {
            Self::ShortConvolution { .. } => hidden_size,
            Self::DeltaNet(net) => 2 * net.keys_size() + net.values_size(),
        }
    }

    /// Rows of the matrices that a layer multiplies its input by: of short convolutions the two gates and what is
    /// convolved, in one; of delta nets what is convolved, the output's gate, rates and decays.
    pub fn projections(&self, hidden_size: usize) -> Vec<usize> {
        match self {
            Self::ShortConvolution { .. } => vec![3 * hidden_size],
            Self::DeltaNet(net) => vec![
                self.num_channels(hidden_size),
                net.values_size(),
                net.num_value_heads,
                net.num_value_heads,
            ],
        }
    }

    /// Where each of their outputs begins in a row that has all of them, and the row's length.
    pub fn columns(&self, hidden_size: usize) -> (Vec<usize>, usize) {
        let mut end = 0;
        let starts = self.projections(hidden_size).into_iter().map(|rows| {
            let start = end;
            end += rows.next_multiple_of(CELL_CHANNELS);
            start
        });
        (starts.collect(), end)
    }

    /// Columns of the output matrix.
    pub fn output_size(&self, hidden_size: usize) -> usize {
        match self {
            Self::ShortConvolution { .. } => hidden_size,
            Self::DeltaNet(net) => net.values_size(),
        }
    }

    /// Cells of a layer's matrices, and numbers in each.
    pub fn matrix_cells(&self) -> (usize, usize) {
        match self {
            Self::ShortConvolution { .. } => (0, 0),
            Self::DeltaNet(net) => (
                net.values_size() / CELL_CHANNELS,
                pyagent_kernels::recurrent::matrix_len(net.key_size),
            ),
        }
    }

    /// Refuses shapes that no real model has, or that the kernels do not compute.
    pub(super) fn check(&self, hidden_size: usize) -> Result<(), ModelFileError> {
        let mut limits = vec![("taps of the convolution", self.taps(), 2, MOST_TAPS, 1)];
        match self {
            Self::ShortConvolution { .. } => limits.push(("hidden size", hidden_size, 1, 1 << 20, CELL_CHANNELS)),
            Self::DeltaNet(net) => limits.extend([
                ("key heads", net.num_key_heads, 1, 1_024, 1),
                ("value heads", net.num_value_heads, 1, 1_024, net.num_key_heads.max(1)),
                ("key head size", net.key_size, 16, 1_024, CELL_CHANNELS),
                ("value head size", net.value_size, 32, 1_024, 2 * CELL_CHANNELS),
            ]),
        }
        let wrong = limits
            .into_iter()
            .find(|(_, value, low, high, unit)| !(low..=high).contains(&value) || !value.is_multiple_of(*unit));
        match wrong {
            Some((what, value, low, high, unit)) => Err(invalid(format!(
                "the recurrent layers' {what} is {value}; expected {low} to {high}, a multiple of {unit}"
            ))),
            None => Ok(()),
        }
    }
}
