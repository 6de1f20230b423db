//! What a hybrid's layers without attention are: short convolutions (LFM2, LFM3), gated delta nets (Qwen 3.5), Kimi Delta Attention, Mamba's
//! state spaces (Jamba, Mamba, Falcon-Mamba), Mamba-2's (Granite 4, Nemotron-H, Bamba, Falcon-H1, Codestral Mamba), or lightning
//! attention (MiniMax-01).

use pyagent_kernels::recurrent::{CELL_CHANNELS, MOST_TAPS};

use super::{Architecture, ModelConfig, invalid};
use crate::weights::ModelFileError;

impl Architecture {
    /// Whether its recurrent layers are short convolutions.
    pub(crate) fn has_short_convolutions(self) -> bool {
        matches!(self, Self::Lfm2 | Self::Lfm2Moe | Self::Lfm3)
    }

    /// Whether its recurrent layers are gated delta nets.
    pub(crate) fn has_delta_nets(self) -> bool {
        matches!(self, Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next)
    }

    /// Whether its recurrent layers are Mamba-2's.
    pub(crate) fn has_state_spaces(self) -> bool {
        matches!(
            self,
            Self::GraniteHybrid | Self::NemotronH | Self::Bamba | Self::FalconH1 | Self::Mamba2
        )
    }

    /// Whether all its layers are recurrent, and nothing else.
    pub(crate) fn is_recurrent_alone(self) -> bool {
        matches!(self, Self::Mamba | Self::Mamba2)
    }

    /// Whether it has layers with attention that may have rotary positions.
    pub(crate) fn has_rotary_attention(self) -> bool {
        !matches!(
            self,
            Self::NemotronH | Self::Jamba | Self::KimiLinear | Self::Mpt | Self::Bloom | Self::Refact
        ) && self.position_offset().is_none()
            && !self.is_recurrent_alone()
    }

    /// Whether it may have recurrent layers.
    pub(crate) fn is_hybrid(self) -> bool {
        self.has_short_convolutions()
            || self.has_delta_nets()
            || self.has_state_spaces()
            || matches!(self, Self::Jamba | Self::Mamba | Self::KimiLinear | Self::MiniMax01)
    }
}

/// What keeps a model of one layer from dividing by 0, and the last layer's slopes above 0.
const DEPTH_OFFSET: f64 = 1e-5;

/// The kind of all of a model's recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recurrent {
    /// LFM2, LFM3: a gated convolution of each channel of the stream.
    ShortConvolution {
        /// Tokens that it covers.
        taps: usize,
    },
    /// Qwen 3.5: a convolution of queries, keys and values, then the gated delta rule.
    DeltaNet(DeltaNet),
    /// Kimi Linear: convolutions of queries, keys and values, then the delta rule with a decay for each number of a key.
    KimiDelta(KimiDelta),
    /// Jamba: a convolution of channels, each of which then has a selective state space of its own.
    Mamba1(Mamba1),
    /// Granite 4, Nemotron-H, Bamba, Codestral Mamba: a convolution of channels and of what they are written and read along, then a selective state space.
    Mamba2(Mamba2),
    /// MiniMax-01: lightning attention, a matrix for each head, of which every token leaves the same share.
    Lightning(Lightning),
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

/// The shape of Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KimiDelta {
    /// Tokens that the convolutions cover.
    pub taps: usize,
    /// Heads.
    pub num_heads: usize,
    /// Width of a query, key or value, and how many numbers of a token decays are made of, and gates.
    pub head_size: usize,
}

/// The shape of a state space of Mamba (Gu and Dao 2023, arXiv 2312.00752).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba1 {
    /// Tokens that the convolution covers.
    pub taps: usize,
    /// Channels: each has a step of its own.
    pub inner_size: usize,
    /// Numbers of a channel's state, of what a token writes along, and of what it reads along.
    pub state_size: usize,
    /// Numbers that all channels' steps are made of.
    pub step_rank: usize,
    /// The epsilon of norms of what is selected, where the family has them: Jamba's have weights, Falcon-Mamba's none.
    pub norm_epsilon: Option<f32>,
}

/// The shape of a state space of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba2 {
    /// Tokens that the convolution covers.
    pub taps: usize,
    /// Heads: parts of the channels, each with a step of its own.
    pub num_heads: usize,
    /// Channels of a head.
    pub head_size: usize,
    /// Groups of neighbouring heads, which write and read their states along the same vectors; outputs are normalised by
    /// group.
    pub num_groups: usize,
    /// Width of those vectors.
    pub state_size: usize,
    /// What steps are at least, and at most.
    pub step_limits: [f64; 2],
    /// Whether outputs are normalised, group by group.
    pub is_normalised: bool,
}

/// The shape of lightning attention (Qin et al. 2024, arXiv 2405.17381).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lightning {
    /// Heads.
    pub num_heads: usize,
    /// Width of a query, key or value.
    pub head_size: usize,
}

impl ModelConfig {
    /// Heads and their width of models without attention: nothing has them, and they take as little as can be.
    pub(crate) const NO_HEADS: (usize, usize) = (1, 16);
    /// How long the texts are of models whose files do not say: states have no positions.
    pub(crate) const MANY_POSITIONS: usize = 1 << 20;
}

impl Recurrent {
    /// What model cards call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ShortConvolution { .. } => "short convolutions",
            Self::DeltaNet(_) => "gated delta nets",
            Self::KimiDelta(_) => "Kimi Delta Attention",
            Self::Mamba1(_) => "Mamba",
            Self::Mamba2(_) => "Mamba-2",
            Self::Lightning(_) => "lightning attention",
        }
    }

    /// The same with the value heads of a key head beside each other, as folders have them.
    #[must_use]
    pub fn untiled(self) -> Self {
        match self {
            Self::DeltaNet(net) => Self::DeltaNet(DeltaNet { is_tiled: false, ..net }),
            other => other,
        }
    }
}

impl KimiDelta {
    /// Values in all of a token's queries, or keys, or values.
    pub fn inner_size(&self) -> usize {
        self.num_heads * self.head_size
    }
}

impl Lightning {
    /// Values in all of a token's queries, or keys, or values.
    pub fn inner_size(&self) -> usize {
        self.num_heads * self.head_size
    }

    /// How quickly a head's state fades in a layer of so many: slopes fall from head to head as ALiBi's do, and from the first
    /// layer's to next to nothing in the last.
    pub fn slope(&self, (layer, num_layers): (usize, usize), head: usize) -> f64 {
        let of_head = (-8.0 * (head + 1) as f64 / self.num_heads as f64).exp2();
        let depth = layer as f64 / ((num_layers - 1) as f64 + DEPTH_OFFSET);
        of_head * (1.0 - depth + DEPTH_OFFSET)
    }
}

impl Mamba1 {
    /// Numbers that are selected for a token: compressed steps, then what it writes along, then what it reads along.
    pub fn selected_size(&self) -> usize {
        self.step_rank + 2 * self.state_size
    }
}

impl Mamba2 {
    /// Channels of all heads.
    pub fn inner_size(&self) -> usize {
        self.num_heads * self.head_size
    }

    /// Numbers in all groups' vectors of a token.
    pub fn states_size(&self) -> usize {
        self.num_groups * self.state_size
    }

    /// Channels of the convolution: the heads', then what they write along, then what they read along.
    pub fn num_channels(&self) -> usize {
        self.inner_size() + 2 * self.states_size()
    }

    /// The group of a head.
    pub fn group(&self, head: usize) -> usize {
        head * self.num_groups / self.num_heads
    }

    fn check(&self) -> Result<(), ModelFileError> {
        let [least, most] = self.step_limits;
        // Steps of at least infinity would make every state NaN; the limits are computed with as f32.
        let is_finite = (0.0..=f64::from(f32::MAX)).contains(&least);
        if !is_finite || most.is_nan() || least > most {
            return Err(invalid(format!(
                "the recurrent layers' steps are {least} to {most}; expected two numbers, the larger last"
            )));
        }
        Ok(())
    }
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
    pub fn value_heads(&self, key_head: usize) -> impl Iterator<Item = usize> + Clone + use<> {
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
    /// Tokens that the convolution covers; 1, of no channel, where there is none.
    pub fn taps(&self) -> usize {
        match self {
            Self::ShortConvolution { taps } => *taps,
            Self::DeltaNet(net) => net.taps,
            Self::KimiDelta(shape) => shape.taps,
            Self::Mamba1(shape) => shape.taps,
            Self::Mamba2(space) => space.taps,
            Self::Lightning(_) => 1,
        }
    }

    /// Channels of the convolution, in a stream so wide.
    pub fn num_channels(&self, hidden_size: usize) -> usize {
        match self {
            Self::ShortConvolution { .. } => hidden_size,
            Self::DeltaNet(net) => 2 * net.keys_size() + net.values_size(),
            Self::KimiDelta(shape) => 3 * shape.inner_size(),
            Self::Mamba1(shape) => shape.inner_size,
            Self::Mamba2(space) => space.num_channels(),
            Self::Lightning(_) => 0,
        }
    }

    /// Rows of the matrices that a layer multiplies its input by: of short convolutions the two gates and what is
    /// convolved, in one; of delta nets what is convolved, the output's gate, rates and decays; of Kimi Delta Attention queries, keys and
    /// values, what decays are made of, what gates are made of, and rates; of Mamba what is
    /// convolved and the output's gate; of Mamba-2 steps besides; of lightning attention each head's query, key and value, and the
    /// output's gate.
    pub fn projections(&self, hidden_size: usize) -> Vec<usize> {
        match self {
            Self::ShortConvolution { .. } => vec![3 * hidden_size],
            Self::DeltaNet(net) => vec![
                self.num_channels(hidden_size),
                net.values_size(),
                net.num_value_heads,
                net.num_value_heads,
            ],
            Self::KimiDelta(shape) => {
                let (inner, size) = (shape.inner_size(), shape.head_size);
                vec![inner, inner, inner, size, size, shape.num_heads]
            }
            Self::Mamba1(shape) => vec![shape.inner_size; 2],
            Self::Mamba2(space) => vec![space.num_channels(), space.inner_size(), space.num_heads],
            Self::Lightning(shape) => vec![3 * shape.inner_size(), shape.inner_size()],
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
            Self::KimiDelta(shape) => shape.inner_size(),
            Self::Mamba1(shape) => shape.inner_size,
            Self::Mamba2(space) => space.inner_size(),
            Self::Lightning(shape) => shape.inner_size(),
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
            Self::KimiDelta(shape) => (
                shape.inner_size() / CELL_CHANNELS,
                pyagent_kernels::recurrent::matrix_len(shape.head_size),
            ),
            Self::Mamba1(shape) => (
                shape.inner_size / CELL_CHANNELS,
                pyagent_kernels::recurrent::matrix_len(shape.state_size),
            ),
            Self::Mamba2(space) => (
                space.inner_size() / CELL_CHANNELS,
                pyagent_kernels::recurrent::matrix_len(space.state_size),
            ),
            Self::Lightning(shape) => (
                shape.inner_size() / CELL_CHANNELS,
                pyagent_kernels::recurrent::matrix_len(shape.head_size),
            ),
        }
    }

    /// Refuses shapes that no real model has, or that the kernels do not compute.
    pub(super) fn check(&self, hidden_size: usize) -> Result<(), ModelFileError> {
        let mut limits = match self {
            Self::Lightning(_) => Vec::new(),
            _ => vec![("taps of the convolution", self.taps(), 2, MOST_TAPS, 1)],
        };
        match self {
            Self::ShortConvolution { .. } => limits.push(("hidden size", hidden_size, 1, 1 << 20, CELL_CHANNELS)),
            Self::DeltaNet(net) => limits.extend([
                ("key heads", net.num_key_heads, 1, 1_024, 1),
                ("value heads", net.num_value_heads, 1, 1_024, net.num_key_heads.max(1)),
                ("key head size", net.key_size, 16, 1_024, CELL_CHANNELS),
                ("value head size", net.value_size, 32, 1_024, 2 * CELL_CHANNELS),
            ]),
            Self::KimiDelta(shape) => limits.extend([
                ("heads", shape.num_heads, 1, 1_024, 1),
                ("head size", shape.head_size, 32, 1_024, 2 * CELL_CHANNELS),
            ]),
            Self::Mamba1(shape) => {
                if shape
                    .norm_epsilon
                    .is_some_and(|epsilon| !(epsilon > 0.0 && epsilon.is_finite()))
                {
                    let text = "the epsilon of the recurrent layers' norms is not a number above 0";
                    return Err(invalid(text.to_owned()));
                }
                limits.extend([
                    ("channels", shape.inner_size, 16, 1 << 17, CELL_CHANNELS),
                    ("state size", shape.state_size, 1, 1_024, 1),
                    ("step rank", shape.step_rank, 1, 1 << 20, 1),
                ]);
            }
            Self::Mamba2(space) => {
                space.check()?;
                limits.extend([
                    ("groups", space.num_groups, 1, 1_024, 1),
                    ("heads", space.num_heads, 1, 1_024, space.num_groups.max(1)),
                    ("head size", space.head_size, 16, 1_024, CELL_CHANNELS),
                    ("state size", space.state_size, 16, 1_024, CELL_CHANNELS),
                ]);
            }
            Self::Lightning(shape) => limits.extend([
                ("heads", shape.num_heads, 1, 1_024, 1),
                ("head size", shape.head_size, 16, 1_024, CELL_CHANNELS),
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
