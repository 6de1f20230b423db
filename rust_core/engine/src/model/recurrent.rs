//! Recurrent layers' weights, and matrices whose rows are two in turn.

use pyagent_kernels::pack::PackedMatrix;

use super::names::{Part, Place};
use super::{Linear, Loader, pack, vector};
use crate::config::{ModelConfig, Recurrent, invalid};
use crate::weights::{ModelFile, ModelFileError, TensorView};

/// A recurrent layer's weights but for its output matrix.
pub struct RecurrentWeights {
    /// The matrices that its input is multiplied by, in the order of [`Recurrent::projections`].
    pub inputs: Vec<Linear>,
    /// The convolution's, [channels / 16, taps, 16].
    pub convolution: Vec<f32>,
    /// One number for each channel.
    pub convolution_bias: Option<Vec<f32>>,
    /// Of a gated delta net.
    pub delta: Option<DeltaWeights>,
}

/// What a gated delta net has besides.
pub struct DeltaWeights {
    /// Of each value head, the logarithm of what stays of its state in a step of 1: below 0.
    pub log_decays: Vec<f32>,
    /// Of each value head, what is added to a step before its softplus.
    pub step_biases: Vec<f32>,
    /// The norm of each value head's output.
    pub norm: Vec<f32>,
}

/// The parts that are matrices, in the order of [`Recurrent::projections`].
const INPUTS: [Part; 4] = [Part::MixerInput, Part::MixerGate, Part::MixerRate, Part::MixerDecay];

impl Loader<'_> {
    fn place(&self, layer: usize, part: Part) -> Place {
        self.names.layer(layer, part, self.config)
    }

    pub(super) fn recurrent(&self, layer: usize, recurrent: &Recurrent) -> Result<RecurrentWeights, ModelFileError> {
        let hidden = self.config.hidden_size;
        let projections = INPUTS.into_iter().zip(recurrent.projections(hidden));
        let inputs = projections.map(|(part, rows)| self.linear(&self.place(layer, part), rows, hidden));
        let channels = recurrent.num_channels(hidden);
        let name = self.place(layer, Part::MixerConvolution).name;
        let bias = self.file.find_tensor(&format!("{name}.bias"))?;
        Ok(RecurrentWeights {
            inputs: inputs.collect::<Result<_, _>>()?,
            convolution: self.convolution(&format!("{name}.weight"), channels, recurrent.taps())?,
            convolution_bias: bias.map(|tensor| vector(&tensor, channels)).transpose()?,
            delta: match recurrent {
                Recurrent::ShortConvolution { .. } => None,
                Recurrent::DeltaNet(net) => Some(self.delta(layer, net.num_value_heads, net.value_size)?),
            },
        })
    }

    /// Safetensors have the logarithm of the decay's size, GGUF files what it is with its sign.
    fn delta(&self, layer: usize, num_heads: usize, value_size: usize) -> Result<DeltaWeights, ModelFileError> {
        let tensor = |part| {
            self.file
                .tensor(&self.place(layer, part).name)
                .map(|tensor| (tensor, num_heads))
        };
        let mut log_decays = tensor(Part::MixerDecayBase).and_then(|(tensor, size)| vector(&tensor, size))?;
        if let ModelFile::Safetensors(_) = self.file {
            log_decays.iter_mut().for_each(|value| *value = -value.exp());
        }
        Ok(DeltaWeights {
            log_decays,
            step_biases: tensor(Part::MixerDecayBias).and_then(|(tensor, size)| vector(&tensor, size))?,
            norm: vector(&self.file.tensor(&self.place(layer, Part::MixerNorm).name)?, value_size)?,
        })
    }

    /// A convolution's weights, [channels, taps] in the file, by cells of sixteen channels.
    fn convolution(&self, name: &str, channels: usize, taps: usize) -> Result<Vec<f32>, ModelFileError> {
        let tensor = self.file.tensor(name)?;
        if (tensor.rows(), tensor.cols()) != (channels, taps) {
            let (rows, cols) = (tensor.rows(), tensor.cols());
            return Err(invalid(format!(
                "tensor '{name}' is {rows} x {cols}; expected {channels} x {taps}"
            )));
        }
        let weights = vector(&tensor, channels * taps)?;
        let cells = weights.chunks_exact(16 * taps);
        Ok(cells
            .flat_map(|cell| (0..taps).flat_map(move |tap| (0..16).map(move |channel| cell[channel * taps + tap])))
            .collect())
    }

    /// Refuses recurrent layers whose tensors are missing, or of other sizes, before any memory is taken for weights.
    pub(super) fn check_recurrent(&self) -> Result<(), ModelFileError> {
        let (config, hidden) = (self.config, self.config.hidden_size);
        for layer in 0..config.num_layers {
            let Some(recurrent) = config.recurrent(layer) else {
                continue;
            };
            for (part, rows) in INPUTS.into_iter().zip(recurrent.projections(hidden)) {
                self.check(&self.place(layer, part), rows, hidden)?;
            }
            self.check(
                &self.place(layer, Part::MixerOutput),
                hidden,
                recurrent.output_size(hidden),
            )?;
            let (channels, taps) = (recurrent.num_channels(hidden), recurrent.taps());
            self.convolution(
                &format!("{}.weight", self.place(layer, Part::MixerConvolution).name),
                channels,
                taps,
            )?;
            if let Recurrent::DeltaNet(net) = recurrent {
                self.delta(layer, net.num_value_heads, net.value_size)?;
            }
        }
        Ok(())
    }

    /// A matrix whose rows are a head of queries, then a head of their gates, in turn.
    pub(super) fn interleaved_heads(&self, place: &Place) -> Result<[Linear; 2], ModelFileError> {
        let ModelConfig {
            hidden_size, head_dim, ..
        } = *self.config;
        let rows = self.config.query_size();
        let name = format!("{}.weight", place.name);
        let tensor = self.file.tensor(&name)?;
        super::expect_size(&tensor, 2 * rows, hidden_size)?;
        let bias = self.file.find_tensor(&format!("{}.bias", place.name))?;
        let bias = bias.map(|tensor| vector(&tensor, 2 * rows)).transpose()?;
        let half = |half: usize| {
            let own = bias.as_ref().map(|bias| of_turn(bias, head_dim, half));
            Ok::<_, ModelFileError>(Linear {
                weight: self.pack_turn(&tensor, rows, half)?,
                bias: own,
            })
        };
        Ok([half(0)?, half(1)?])
    }

    fn pack_turn(&self, tensor: &TensorView<'_>, rows: usize, half: usize) -> Result<PackedMatrix, ModelFileError> {
        let bytes_of_head = tensor.bytes.len() / (2 * self.config.num_heads);
        let bytes = of_turn(tensor.bytes, bytes_of_head, half);
        let part = TensorView {
            bytes: &bytes,
            ..*tensor
        };
        pack(self.file, self.pool, &part, rows, self.config.hidden_size)
    }
}

/// Every other one of equal parts, from the first or the second on.
fn of_turn<T: Copy>(values: &[T], part: usize, first: usize) -> Vec<T> {
    values
        .chunks_exact(part)
        .skip(first)
        .step_by(2)
        .flatten()
        .copied()
        .collect()
}
