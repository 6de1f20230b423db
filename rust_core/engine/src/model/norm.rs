//! Norms of the stream: by the root mean square, or by mean and variance with something added.

use pyagent_kernels::elementwise;
use pyagent_kernels::isa::Isa;

use super::{Loader, vector};
use crate::weights::ModelFileError;

/// A norm's weights.
pub enum Norm {
    /// By the root mean square.
    Rms(Vec<f32>),
    /// `LayerNorm`.
    Layer {
        /// Factors.
        weight: Vec<f32>,
        /// What is added.
        bias: Vec<f32>,
    },
}

impl Norm {
    /// Writes the normalised row to `out`, as long as the row.
    pub(crate) fn apply(&self, isa: Isa, values: &[f32], epsilon: f32, out: &mut [f32]) {
        match self {
            Self::Rms(weight) => elementwise::rms_norm(isa, values, weight, epsilon, out),
            Self::Layer { weight, bias } => {
                out.copy_from_slice(values);
                elementwise::layer_norm(isa, out, weight, bias, epsilon);
            }
        }
    }

    /// Normalises a row where it lies.
    pub(crate) fn apply_in_place(&self, isa: Isa, values: &mut [f32], epsilon: f32) {
        match self {
            Self::Rms(weight) => elementwise::rms_norm_in_place(isa, values, weight, epsilon),
            Self::Layer { weight, bias } => elementwise::layer_norm(isa, values, weight, bias, epsilon),
        }
    }

    /// The factors.
    pub(crate) fn weight(&self) -> &[f32] {
        match self {
            Self::Rms(weight) | Self::Layer { weight, .. } => weight,
        }
    }
}

impl Loader<'_> {
    /// A norm of the stream, of the family's kind; nothing is added where the file has no bias.
    pub(super) fn stream_norm(&self, name: &str) -> Result<Norm, ModelFileError> {
        let (architecture, size) = (self.config.architecture, self.config.hidden_size);
        let is_layer_norm = self.config.has_layer_norms;
        if architecture.has_bare_norms() {
            let weight = vec![1.0; size];
            return Ok(match is_layer_norm {
                true => Norm::Layer {
                    weight,
                    bias: vec![0.0; size],
                },
                false => Norm::Rms(weight),
            });
        }
        let weight = self.norm(name, size)?;
        if !is_layer_norm {
            return Ok(Norm::Rms(weight));
        }
        let bias = format!("{}.bias", name.trim_end_matches(".weight"));
        let bias = self
            .file
            .find_tensor(&bias)?
            .map(|bias| vector(&bias, size))
            .transpose()?;
        Ok(Norm::Layer {
            weight,
            bias: bias.unwrap_or_else(|| vec![0.0; size]),
        })
    }
}
