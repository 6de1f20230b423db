//! A head that drafts further tokens: what it has besides its layer, which lies behind the decoder's.

use pyagent_kernels::pack::PackedMatrix;

use super::names::Names;
use super::{Linear, Loader, Norm};
use crate::config::ModelConfig;
use crate::weights::{ModelFile, ModelFileError};

/// What makes its layer's input of a token and of the stream before it, and what comes after the layer.
pub struct MtpWeights {
    /// The norm of tokens' embeddings.
    pub token_norm: Norm,
    /// The norm of the decoder's output for the token before.
    pub stream_norm: Norm,
    /// What becomes of both.
    pub entry: HeadEntry,
    /// The norm before the output matrix, which is the decoder's where the head is in its file.
    pub output_norm: Norm,
}

/// How a head's layer begins with a token's embedding and the output for the token before.
pub enum HeadEntry {
    /// With what a matrix makes of both, [hidden, 2 x hidden]: the embedding comes first.
    Joined(Linear),
    /// Its attention reads both, beside each other; what stands for the decoder's output is made of places of its stream.
    Fused(Fusion),
}

/// What makes of places of a decoder's stream what a head goes on from (EAGLE-3).
pub struct Fusion {
    /// Norms of what it is made of, one part after the other.
    pub norms: Vec<Vec<f32>>,
    /// Makes it of all places, [hidden, places x the decoder's hidden].
    pub matrix: Linear,
    /// Whether the head's stream begins with the norm of it.
    pub is_residual_normalised: bool,
    /// Whether a further draft goes on from the head's output after its last norm.
    pub hands_on_normalised: bool,
}

impl MtpWeights {
    /// The matrix that lies before the head's layer.
    pub(crate) fn entry_matrix(&self) -> &PackedMatrix {
        match &self.entry {
            HeadEntry::Joined(join) => &join.weight,
            HeadEntry::Fused(fusion) => &fusion.matrix.weight,
        }
    }
}

/// A model's configuration with its head, if the file has one, or a part of one.
pub(super) fn with_mtp(file: &ModelFile, config: ModelConfig) -> ModelConfig {
    let may_have_one = config.architecture.may_have_mtp() && config.num_picked().is_none();
    let has_any = may_have_one && Names::of(file).have_mtp(file, &config);
    if has_any { config.with_mtp() } else { config }
}

impl Loader<'_> {
    /// Refuses a head of which something is missing, or of another size, before any memory is taken for weights.
    pub(super) fn check_mtp(&self) -> Result<(), ModelFileError> {
        let Some(layer) = self.config.mtp_layer() else {
            return Ok(());
        };
        let (names, hidden) = (self.names.of_mtp(layer), self.config.hidden_size);
        for name in [&names.token_norm, &names.stream_norm, &names.output_norm] {
            self.norm(name, hidden)?;
        }
        self.check(&names.join, hidden, 2 * hidden)
    }

    /// The head, if there is one.
    pub(super) fn mtp(&self) -> Result<Option<MtpWeights>, ModelFileError> {
        let Some(layer) = self.config.mtp_layer() else {
            return Ok(None);
        };
        let (names, hidden) = (self.names.of_mtp(layer), self.config.hidden_size);
        Ok(Some(MtpWeights {
            token_norm: self.stream_norm(&names.token_norm)?,
            stream_norm: self.stream_norm(&names.stream_norm)?,
            entry: HeadEntry::Joined(self.linear(&names.join, hidden, 2 * hidden)?),
            output_norm: self.stream_norm(&names.output_norm)?,
        }))
    }
}
