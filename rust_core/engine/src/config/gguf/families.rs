//! What the metadata of a GGUF says of families that are descriptions over shared layers.

use super::{Keys, number};
use crate::config::{Architecture, MOST_LAYERS, invalid};
use crate::gguf::{MetadataArray, MetadataValue};
use crate::weights::ModelFileError;

/// What is read of families whose files say whether blocks lie beside each other.
pub(super) const OF_PARALLEL: [&str; 1] = ["use_parallel_residual"];
/// What is read of Command R's.
pub(super) const OF_COHERE: [&str; 1] = ["logit_scale"];
/// What is read of MiniCPM's factors; first files of it, and those of MiniCPM 3, do not say them.
pub(super) const OF_MINICPM: [&str; 3] = ["embedding_scale", "logit_scale", "residual_scale"];
/// What is read of Granite's with windows besides: which layers have rotary positions, then what all of Granite's have.
pub(super) const OF_GRANITE_SWA: [&str; 6] = [
    "attention.rope_pattern",
    "attention.scale",
    "embedding_scale",
    "expert_shared_feed_forward_length",
    "logit_scale",
    "residual_scale",
];
/// What is read of MPT's: a factor that cuts projections off is refused.
pub(super) const OF_MPT: [&str; 1] = ["attention.max_alibi_bias"];

/// The greatest exponent of `ALiBi`'s slopes in files that say nothing of it.
const ALIBI_MAX_BIAS: f32 = 8.0;
/// By how many layers Baichuan's models are told apart, as llama.cpp does.
const LAYERS_OF_BAICHUAN_13B: usize = 40;

impl Keys<'_> {
    /// Whether attention and the feed-forward block lie beside each other. Files of `StableLM` say that they do where the
    /// original says nothing, so that the tensors tell: those models have one norm a layer.
    pub(super) fn is_parallel(&self, architecture: Architecture) -> Result<bool, ModelFileError> {
        if let Some(is_parallel) = architecture.is_parallel() {
            return Ok(is_parallel);
        }
        if matches!(architecture, Architecture::StableLm | Architecture::Falcon) {
            return Ok(self.file.find_tensor("blk.0.ffn_norm.weight").is_none());
        }
        let key = self.key("use_parallel_residual");
        match self.file.find(&key).map(number) {
            None => Ok(architecture.is_parallel_by_default()),
            Some(Some(said)) => Ok(said != 0.0),
            Some(None) => Err(invalid(format!("'{key}' must be a truth"))),
        }
    }

    /// Refuses tensors of layers that the file does not count: a model without its last layers is another one.
    pub(super) fn refuse_uncounted_layers(&self) -> Result<(), ModelFileError> {
        let count = self.size("block_count")?;
        let layer_of = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
        let uncounted = self
            .file
            .tensors()
            .map(|tensor| tensor.name)
            .find(|name| layer_of(name).is_some_and(|layer| layer >= count));
        uncounted.map_or(Ok(()), |name| {
            let key = self.key("block_count");
            Err(invalid(format!(
                "'{key}' is {count}, but there is a tensor '{name}' of a later layer"
            )))
        })
    }

    /// Whether queries, keys and values of a layer are one matrix.
    pub(super) fn is_qkv_joined(&self, architecture: Architecture) -> bool {
        matches!(
            architecture,
            Architecture::Phi2
                | Architecture::GptNeoX
                | Architecture::BailingMoe2
                | Architecture::Mpt
                | Architecture::Falcon
                | Architecture::Bloom
                | Architecture::Glm
                | Architecture::PhiMoe
                | Architecture::Gpt2
                | Architecture::StarCoder
                | Architecture::CodeShell
                | Architecture::Qwen
        ) && self.file.find_tensor("blk.0.attn_qkv.weight").is_some()
    }

    /// Whether each of blocks that lie beside each other has a norm of its own: Falcon's larger models' do.
    pub(super) fn has_two_norms(&self, architecture: Architecture) -> bool {
        match architecture {
            Architecture::Falcon => self.file.find_tensor("blk.0.attn_norm_2.weight").is_some(),
            architecture => architecture == Architecture::GptNeoX,
        }
    }

    /// The greatest exponent of `ALiBi`'s slopes, of a family that has them; of Baichuan's models the larger one has.
    pub(super) fn alibi_max_bias(
        &self,
        architecture: Architecture,
        num_layers: usize,
    ) -> Result<Option<f32>, ModelFileError> {
        match architecture {
            Architecture::Mpt => {}
            Architecture::Bloom | Architecture::Refact => return Ok(Some(ALIBI_MAX_BIAS)),
            Architecture::Baichuan if num_layers == LAYERS_OF_BAICHUAN_13B => return Ok(Some(ALIBI_MAX_BIAS)),
            _ => return Ok(None),
        }
        let suffix = "attention.max_alibi_bias";
        match self.number_or(suffix, 0.0)? as f32 {
            0.0 => Err(invalid(format!(
                "'{}' is 0, and positions without ALiBi are not implemented for mpt",
                self.key(suffix)
            ))),
            max_bias => Ok(Some(max_bias)),
        }
    }

    /// Whether norms of the stream are by mean and variance: files of Command A+ tell by which epsilon they have.
    pub(super) fn has_layer_norms(&self, architecture: Architecture) -> bool {
        match architecture {
            Architecture::Cohere2Moe => self.file.find(&self.key("attention.layer_norm_rms_epsilon")).is_none(),
            architecture => architecture.has_layer_norms(),
        }
    }

    /// Which layers of Granite with windows have rotary positions: all where nothing is said.
    pub(super) fn rotary_pattern(&self, num_layers: usize) -> Result<Vec<bool>, ModelFileError> {
        let key = self.key(OF_GRANITE_SWA[0]);
        match self.file.find(&key) {
            None => Ok(vec![true; num_layers.min(MOST_LAYERS)]),
            Some(MetadataValue::Array(MetadataArray::Bool(layers))) if layers.len() == num_layers => Ok(layers.clone()),
            Some(_) => Err(invalid(format!(
                "'{key}' must be a truth for each of the {num_layers} layers"
            ))),
        }
    }

    /// Which layers of Command A+ have rotary positions: those with windows, and the first, without experts.
    pub(super) fn cohere2_moe_rotary_layers(&self, windows: &[bool]) -> Result<Vec<bool>, ModelFileError> {
        let first = self.optional_size("leading_dense_block_count")?.unwrap_or(0);
        let layers = windows.iter().enumerate();
        Ok(layers.map(|(layer, has_window)| *has_window || layer < first).collect())
    }

    /// The epsilon of norms.
    pub(super) fn norm_epsilon(&self, architecture: Architecture) -> Result<f32, ModelFileError> {
        // Files of Phi-3.5-MoE have the key of its relatives.
        let key = if self.has_layer_norms(architecture) && architecture != Architecture::PhiMoe {
            "attention.layer_norm_epsilon"
        } else {
            "attention.layer_norm_rms_epsilon"
        };
        self.file.metadata_f32(&self.key(key))
    }
}
