//! What a layer of Mamba has besides what every recurrent layer has.

use super::names::{Part, Place};
use super::recurrent::by_cells;
use super::{Linear, Loader, expect_size, vector};
use crate::config::{Architecture, Mamba1};
use crate::weights::{ModelFile, ModelFileError};

/// The weights of a selective state space whose channels have each a state of their own.
pub struct ChannelWeights {
    /// Makes compressed steps, and what tokens write and read along, [step rank + 2 state size, channels].
    pub select: Linear,
    /// Makes steps of the compressed ones, [channels, step rank].
    pub steps: Linear,
    /// The norms of these three parts, where the family has them: of ones in Falcon-Mamba.
    pub norms: Vec<Vec<f32>>,
    /// What stays of the state in a step of 1 as a logarithm, [channels / 16, state size, 16].
    pub log_decays: Vec<f32>,
    /// Of each channel, how much of it is added to the output.
    pub skips: Vec<f32>,
}

/// The norms' names in both kinds of files.
const NORMS: [(&str, &str); 3] = [
    ("ssm_dt_norm.weight", "dt_layernorm.weight"),
    ("ssm_b_norm.weight", "b_layernorm.weight"),
    ("ssm_c_norm.weight", "c_layernorm.weight"),
];

impl Loader<'_> {
    fn of_mamba(&self, layer: usize, gguf: &str, hugging_face: &str) -> Place {
        let block = match self.config.architecture {
            Architecture::Mamba => "mixer",
            _ => "mamba",
        };
        self.names.whole(layer, gguf, &format!("{block}.{hugging_face}"))
    }

    fn selecting(&self, layer: usize) -> Place {
        self.of_mamba(layer, "ssm_x", "x_proj")
    }

    fn steps(&self, layer: usize) -> Place {
        self.of_mamba(layer, "ssm_dt", "dt_proj")
    }

    pub(super) fn channels(&self, layer: usize, shape: &Mamba1) -> Result<ChannelWeights, ModelFileError> {
        let [log_decays, skips] = self.check_channels(layer, shape)?;
        Ok(ChannelWeights {
            select: self.linear(&self.selecting(layer), shape.selected_size(), shape.inner_size)?,
            steps: self.linear(&self.steps(layer), shape.inner_size, shape.step_rank)?,
            norms: self.channel_norms(layer, shape)?,
            log_decays: by_cells(&log_decays, shape.state_size),
            skips,
        })
    }

    fn channel_norms(&self, layer: usize, shape: &Mamba1) -> Result<Vec<Vec<f32>>, ModelFileError> {
        let sizes = [shape.step_rank, shape.state_size, shape.state_size];
        match (shape.norm_epsilon, self.config.architecture) {
            (None, _) => return Ok(Vec::new()),
            (_, Architecture::Mamba) => return Ok(sizes.map(|size| vec![1.0; size]).into()),
            _ => {}
        }
        let norms = NORMS.iter().zip(sizes).map(|((gguf, hugging_face), size)| {
            let name = self.of_mamba(layer, gguf, hugging_face).name;
            vector(&self.file.tensor(&name)?, size)
        });
        norms.collect()
    }

    /// Refuses a layer whose tensors are missing or of other sizes; returns its decays as logarithms, and its skips.
    ///
    /// Safetensors have the logarithm of the decay's size, GGUF files what it is with its sign.
    pub(super) fn check_channels(&self, layer: usize, shape: &Mamba1) -> Result<[Vec<f32>; 2], ModelFileError> {
        let inner = shape.inner_size;
        self.check(&self.selecting(layer), shape.selected_size(), inner)?;
        self.check(&self.steps(layer), inner, shape.step_rank)?;
        vector(&self.file.tensor(&format!("{}.bias", self.steps(layer).name))?, inner)?;
        self.channel_norms(layer, shape)?;
        let name = |part| self.names.layer(layer, part, self.config).name;
        let decays = self.file.tensor(&name(Part::MixerDecayBase))?;
        expect_size(&decays, inner, shape.state_size)?;
        let mut log_decays = vector(&decays, inner * shape.state_size)?;
        if let ModelFile::Safetensors(_) = self.file {
            log_decays.iter_mut().for_each(|value| *value = -value.exp());
        }
        Ok([log_decays, vector(&self.file.tensor(&name(Part::MixerSkip))?, inner)?])
    }
}
