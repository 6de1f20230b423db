//! Recurrent layers' weights, and matrices whose rows are two in turn.

use pyagent_kernels::pack::PackedMatrix;
use pyagent_kernels::recurrent::CELL_CHANNELS;

use super::names::{Part, Place};
use super::{ChannelWeights, KimiWeights, Linear, Loader, expect, pack, vector};
use crate::config::{DeltaNet, Lightning, ModelConfig, Recurrent, invalid};
use crate::quantised::Matrix;
use crate::weights::{ModelFile, ModelFileError, TensorView};

/// How far a stored slope may be from that of its place: it may be a bfloat16.
const SLOPE_TOLERANCE: f64 = 0.01;

/// A recurrent layer's weights but for its output matrix.
pub struct RecurrentWeights {
    /// The matrices that its input is multiplied by, in the order of [`Recurrent::projections`].
    pub inputs: Vec<Linear>,
    /// The convolution's, [channels / 16, taps, 16].
    pub convolution: Vec<f32>,
    /// One number for each channel.
    pub convolution_bias: Option<Vec<f32>>,
    /// Of what changes matrices.
    pub scan: Option<ScanWeights>,
    /// Of Mamba.
    pub channels: Option<ChannelWeights>,
    /// Of Kimi Delta Attention.
    pub kimi: Option<KimiWeights>,
}

/// What a gated delta net, or a state space, has besides; lightning attention has a norm alone.
pub struct ScanWeights {
    /// Of each head, the logarithm of what stays of its state in a step of 1: below 0.
    pub log_decays: Vec<f32>,
    /// Of each head, or each number of all heads' keys, what is added to a step before its softplus.
    pub step_biases: Vec<f32>,
    /// Of each head of a state space, how much of the input is added to the output.
    pub skips: Vec<f32>,
    /// The norm of each value head's output; of a state space, all groups' norms; of lightning attention, that of all heads.
    pub norm: Vec<f32>,
}

/// The parts that are matrices, in the order of [`Recurrent::projections`].
fn inputs(recurrent: &Recurrent) -> &'static [Part] {
    match recurrent {
        Recurrent::ShortConvolution { .. } => &[Part::MixerInput],
        Recurrent::DeltaNet(_) => &[Part::MixerInput, Part::MixerGate, Part::MixerRate, Part::MixerDecay],
        Recurrent::KimiDelta(_) => &[
            Part::Query,
            Part::Key,
            Part::Value,
            Part::MixerDecay,
            Part::MixerGate,
            Part::MixerRate,
        ],
        Recurrent::Mamba1(_) | Recurrent::Lightning(_) => &[Part::MixerInput, Part::MixerGate],
        Recurrent::Mamba2(_) => &[Part::MixerInput, Part::MixerGate, Part::MixerDecay],
    }
}

impl Loader<'_> {
    fn place(&self, layer: usize, part: Part) -> Place {
        self.names.layer(layer, part, self.config)
    }

    pub(super) fn recurrent(&self, layer: usize, recurrent: &Recurrent) -> Result<RecurrentWeights, ModelFileError> {
        let hidden = self.config.hidden_size;
        let projections = inputs(recurrent).iter().copied().zip(recurrent.projections(hidden));
        let inputs = projections.map(|(part, rows)| match self.of_key_heads(layer, part, recurrent)? {
            Some(rows) => rows.linear(self),
            None => self.linear(&self.place(layer, part), rows, hidden),
        });
        let channels = recurrent.num_channels(hidden);
        let bias = match &self.convolutions(layer, recurrent)[..] {
            [name] => self.file.find_tensor(&format!("{name}.bias"))?,
            _ => None,
        };
        Ok(RecurrentWeights {
            inputs: inputs.collect::<Result<_, _>>()?,
            convolution: self.convolution(layer, recurrent)?,
            convolution_bias: bias.map(|tensor| vector(&tensor, channels)).transpose()?,
            scan: self.scan(layer, recurrent)?,
            channels: match recurrent {
                Recurrent::Mamba1(shape) => Some(self.channels(layer, shape)?),
                _ => None,
            },
            kimi: match recurrent {
                Recurrent::KimiDelta(shape) => Some(self.kimi(layer, shape)?),
                _ => None,
            },
        })
    }

    /// Safetensors have the logarithm of the decay's size, GGUF files what it is with its sign.
    fn scan(&self, layer: usize, recurrent: &Recurrent) -> Result<Option<ScanWeights>, ModelFileError> {
        let (num_heads, num_steps, norm_size) = match recurrent {
            Recurrent::ShortConvolution { .. } | Recurrent::Mamba1(_) => return Ok(None),
            Recurrent::DeltaNet(net) => (net.num_value_heads, net.num_value_heads, net.value_size),
            Recurrent::KimiDelta(shape) => (shape.num_heads, shape.inner_size(), shape.head_size),
            Recurrent::Mamba2(space) => (space.num_heads, space.num_heads, space.inner_size()),
            Recurrent::Lightning(shape) => (0, 0, shape.inner_size()),
        };
        let numbers = |part, size| match size {
            0 => Ok(Vec::new()),
            _ => vector(&self.file.tensor(&self.place(layer, part).name)?, size),
        };
        let mut log_decays = numbers(Part::MixerDecayBase, num_heads)?;
        if let ModelFile::Safetensors(_) = self.file {
            log_decays.iter_mut().for_each(|value| *value = -value.exp());
        }
        let has_skips = matches!(recurrent, Recurrent::Mamba2(_));
        let skips = has_skips.then(|| numbers(Part::MixerSkip, num_heads));
        Ok(Some(ScanWeights {
            skips: skips.transpose()?.unwrap_or_default(),
            log_decays,
            step_biases: numbers(Part::MixerDecayBias, num_steps)?,
            norm: match recurrent {
                Recurrent::Mamba2(space) if !space.is_normalised => Vec::new(),
                _ => numbers(Part::MixerNorm, norm_size)?,
            },
        }))
    }

    /// What the tensors of a convolution are called, without `.weight`.
    fn convolutions(&self, layer: usize, recurrent: &Recurrent) -> Vec<String> {
        match recurrent {
            Recurrent::KimiDelta(_) => self.convolutions_of_kimi(layer),
            Recurrent::Lightning(_) => Vec::new(),
            _ => vec![self.place(layer, Part::MixerConvolution).name],
        }
    }

    /// A convolution's weights, [channels, taps] in the file, by cells of sixteen channels; none where there is none.
    fn convolution(&self, layer: usize, recurrent: &Recurrent) -> Result<Vec<f32>, ModelFileError> {
        let names = self.convolutions(layer, recurrent);
        let channels = recurrent.num_channels(self.config.hidden_size) / names.len().max(1);
        let taps = recurrent.taps();
        let mut weights = Vec::new();
        for name in names {
            let name = format!("{name}.weight");
            let tensor = self.file.tensor(&name)?;
            if (tensor.rows(), tensor.cols()) != (channels, taps) {
                let (rows, cols) = (tensor.rows(), tensor.cols());
                return Err(invalid(format!(
                    "tensor '{name}' is {rows} x {cols}; expected {channels} x {taps}"
                )));
            }
            weights.extend(vector(&tensor, channels * taps)?);
        }
        self.multiply_channels(&mut weights, taps, recurrent);
        Ok(by_cells(&weights, taps))
    }

    /// Multiplies what a state space's channels are convolved with by the factors on these, where there are any: the sums
    /// are linear.
    fn multiply_channels(&self, weights: &mut [f32], taps: usize, recurrent: &Recurrent) {
        let (Recurrent::Mamba2(space), Some(multipliers)) = (recurrent, &self.config.multipliers) else {
            return;
        };
        let [_, channels, written, read, _] = multipliers.space;
        let (inner, states) = (space.inner_size() * taps, space.states_size() * taps);
        let (of_channels, of_states) = weights.split_at_mut(inner);
        let (of_written, of_read) = of_states.split_at_mut(states);
        for (part, factor) in [(of_channels, channels), (of_written, written), (of_read, read)] {
            part.iter_mut().for_each(|weight| *weight *= factor);
        }
    }

    /// Refuses recurrent layers whose tensors are missing, or of other sizes, before any memory is taken for weights.
    pub(super) fn check_recurrent(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        for layer in 0..config.num_layers {
            let Some(recurrent) = config.recurrent(layer) else {
                continue;
            };
            if let Recurrent::Mamba1(_) | Recurrent::Mamba2(_) = recurrent {
                let mut all = self.place(layer, Part::MixerInput);
                all.rows = None;
                self.check(&all, recurrent.projections(hidden).iter().sum(), hidden)?;
            }
            match recurrent {
                Recurrent::Mamba1(shape) => drop(self.check_channels(layer, shape)?),
                Recurrent::KimiDelta(shape) => self.check_kimi(layer, shape)?,
                Recurrent::Lightning(shape) => self.check_slopes(layer, shape)?,
                _ => {}
            }
            for (part, rows) in inputs(recurrent).iter().copied().zip(recurrent.projections(hidden)) {
                if self.of_key_heads(layer, part, recurrent)?.is_none() {
                    self.check(&self.place(layer, part), rows, hidden)?;
                }
            }
            self.check(
                &self.place(layer, Part::MixerOutput),
                hidden,
                recurrent.output_size(hidden),
            )?;
            self.convolution(layer, recurrent)?;
            self.scan(layer, recurrent)?;
        }
        Ok(())
    }

    /// Refuses slopes of lightning attention that are not those of the layer's place: transformers stores them, and what it
    /// computes of them.
    fn check_slopes(&self, layer: usize, shape: &Lightning) -> Result<(), ModelFileError> {
        let name = self.names.whole(layer, "(none)", "self_attn.slope_rate").name;
        let Some(tensor) = self.file.find_tensor(&name)? else {
            return Ok(());
        };
        let place = (layer, self.config.num_layers);
        let is_wrong = |(head, stored): (usize, &f32)| {
            let slope = shape.slope(place, head);
            let is_near = (f64::from(*stored) - slope).abs() <= SLOPE_TOLERANCE * slope;
            !is_near
        };
        let stored = vector(&tensor, shape.num_heads)?;
        match stored.iter().enumerate().find(|slope| is_wrong(*slope)) {
            None => Ok(()),
            Some((head, slope)) => Err(invalid(format!(
                "tensor '{name}' has {slope} for head {head}; expected {}, the slope of its place",
                shape.slope(place, head)
            ))),
        }
    }

    /// A matrix whose rows are a head of queries, then a head of their gates, in turn.
    pub(super) fn interleaved_heads<const N: usize>(&self, place: &Place) -> Result<[Linear; N], ModelFileError> {
        let ModelConfig {
            hidden_size, head_dim, ..
        } = *self.config;
        let rows = self.config.query_size();
        let read = self.find(place, N * rows, hidden_size)?.read(self.file, self.pool)?;
        let tensor = read.view();
        let bias = self.file.find_tensor(&format!("{}.bias", place.name))?;
        let bias = bias.map(|tensor| vector(&tensor, N * rows)).transpose()?;
        let turn = |turn: usize| {
            let own = bias.as_ref().map(|bias| of_turn(bias, head_dim, (turn, N)));
            Ok::<_, ModelFileError>(Linear {
                weight: self.pack_turn(&tensor, rows, (turn, N))?,
                bias: own,
            })
        };
        let turns: Vec<Linear> = (0..N).map(turn).collect::<Result<_, _>>()?;
        Ok(turns.try_into().unwrap_or_else(|_| unreachable!("one matrix a turn")))
    }

    /// Some rows of a matrix, in this order, with their biases.
    pub(super) fn some_rows(
        &self,
        tensor: &TensorView<'_>,
        bias: Option<&[f32]>,
        rows: &[usize],
    ) -> Result<Linear, ModelFileError> {
        let cols = tensor.cols();
        let row_bytes = tensor.bytes.len() / tensor.rows().max(1);
        let bytes = rows
            .iter()
            .flat_map(|row| &tensor.bytes[row * row_bytes..][..row_bytes]);
        let bytes: Vec<u8> = bytes.copied().collect();
        let dims = [cols, rows.len()];
        let some = TensorView {
            bytes: &bytes,
            dims: &dims,
            ..*tensor
        };
        Ok(Linear {
            weight: self.pack(&some, rows.len(), cols)?,
            bias: bias.map(|bias| rows.iter().map(|row| bias[*row]).collect()),
        })
    }

    fn pack_turn(
        &self,
        tensor: &TensorView<'_>,
        rows: usize,
        turn: (usize, usize),
    ) -> Result<PackedMatrix, ModelFileError> {
        let bytes_of_head = tensor.bytes.len() / (turn.1 * self.config.num_heads);
        let bytes = of_turn(tensor.bytes, bytes_of_head, turn);
        let part = TensorView {
            bytes: &bytes,
            ..*tensor
        };
        pack(self.file, self.pool, &part, rows, self.config.hidden_size)
    }
}

/// So many numbers of each channel, by cells of sixteen channels: [channels / 16, numbers, 16].
pub(super) fn by_cells(values: &[f32], numbers: usize) -> Vec<f32> {
    let cells = values.chunks_exact(CELL_CHANNELS * numbers);
    let of_cell = |cell: &[f32]| -> Vec<f32> {
        let at = |place: usize| cell[place % CELL_CHANNELS * numbers + place / CELL_CHANNELS];
        (0..cell.len()).map(at).collect()
    };
    cells.flat_map(of_cell).collect()
}

/// Some rows of a tensor in which a key head's lie together.
struct RowsOfHeads<'a> {
    matrix: Matrix<'a>,
    rows: Vec<usize>,
}

impl RowsOfHeads<'_> {
    fn linear(self, loader: &Loader<'_>) -> Result<Linear, ModelFileError> {
        let read = self.matrix.read(loader.file, loader.pool)?;
        loader.some_rows(&read.view(), None, &self.rows)
    }
}

impl DeltaNet {
    /// Which rows a projection has of a tensor in which each key head has its query's, key's, values' and gates', or its
    /// rates' and decays'; and how many rows that has.
    fn rows_of_heads(&self, part: Part) -> (Vec<usize>, usize) {
        let each = self.num_value_heads / self.num_key_heads;
        let (keys, values) = (self.key_size, each * self.value_size);
        let all = 2 * (keys + values);
        // Where each part begins among a head's rows, and how many it has.
        let (of_head, parts) = match part {
            Part::MixerInput => (all, vec![(0, keys), (keys, keys), (2 * keys, values)]),
            Part::MixerGate => (all, vec![(2 * keys + values, values)]),
            Part::MixerRate => (2 * each, vec![(0, each)]),
            _ => (2 * each, vec![(each, each)]),
        };
        let heads = 0..self.num_key_heads;
        let rows = parts.into_iter().flat_map(|(start, count)| {
            let of_part = move |head: usize| head * of_head + start..head * of_head + start + count;
            heads.clone().flat_map(of_part)
        });
        (rows.collect(), self.num_key_heads * of_head)
    }
}

impl<'a> Loader<'a> {
    /// The rows of a projection where the file has each key head's together; measured.
    fn of_key_heads(
        &self,
        layer: usize,
        part: Part,
        recurrent: &Recurrent,
    ) -> Result<Option<RowsOfHeads<'a>>, ModelFileError> {
        let Recurrent::DeltaNet(net) = recurrent else {
            return Ok(None);
        };
        let Some(place) = self.names.of_key_heads(layer, part, self.config.architecture) else {
            return Ok(None);
        };
        let Some(matrix) = place.matrix(self.file, &self.matrices, self.config.hidden_size)? else {
            return Ok(None);
        };
        let (rows, num_rows) = net.rows_of_heads(part);
        expect(matrix.name(), matrix.size(), (num_rows, self.config.hidden_size))?;
        Ok(Some(RowsOfHeads { matrix, rows }))
    }
}

/// Of equal parts that lie in so many turns, those of one turn.
fn of_turn<T: Copy>(values: &[T], part: usize, (turn, turns): (usize, usize)) -> Vec<T> {
    values
        .chunks_exact(part)
        .skip(turn)
        .step_by(turns)
        .flatten()
        .copied()
        .collect()
}
