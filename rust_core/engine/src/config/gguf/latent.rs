//! Latent attention in a GGUF's metadata: of files that have its matrices apart, and of older ones.

use pyagent_kernels::elementwise::RopeStyle;

use super::Keys;
use crate::config::latent::sharpened;
use crate::config::{Architecture, Indexer, Latent, MOST_LAYERS, invalid};
use crate::gguf::{MetadataArray, MetadataValue};
use crate::weights::ModelFileError;

/// What is read of latent attention besides.
pub(super) const KEYS: [&str; 5] = [
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.value_length_mla",
    "rope.scaling.yarn_log_multiplier",
];

/// What is read besides of those with an indexer.
const OF_INDEXER: [&str; 4] = [
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.indexer.types",
];

/// DeepSeek-V3.2's name, and GLM-5's: those with an indexer.
const DEEPSEEK_V32: &str = "deepseek32";
const GLM_DSA: &str = "glm-dsa";
/// Families of which YaRN's sharpness scales scores.
pub(super) const SCALES_SCORES: [&str; 4] = ["deepseek2", "mistral4", DEEPSEEK_V32, GLM_DSA];

/// What is read of Mistral Small 4 besides.
pub(super) const OF_MISTRAL4: [&str; 7] = [
    KEYS[0],
    KEYS[1],
    KEYS[2],
    KEYS[3],
    KEYS[4],
    "attention.temperature_length",
    "attention.temperature_scale",
];

/// What is read of Kimi Linear besides.
pub(super) const OF_KIMI: [&str; 6] = [KEYS[0], KEYS[1], KEYS[2], KEYS[3], "kda.head_dim", "ssm.conv_kernel"];

/// What files multiply the weight of YaRN's sharpness by.
const WEIGHT_UNIT: f64 = 0.1;

/// What is read of an indexer, in a family that has one.
pub(super) fn keys_of_indexer(name: &str) -> &'static [&'static str] {
    match name {
        DEEPSEEK_V32 | GLM_DSA => &OF_INDEXER,
        _ => &[],
    }
}

impl Keys<'_> {
    /// The sizes of a family that has latent attention.
    pub(super) fn latent(&self, architecture: Architecture) -> Result<Option<Latent>, ModelFileError> {
        if !architecture.has_latent_attention() {
            return Ok(None);
        }
        let (rank, rotary_dims) = (self.size("attention.kv_lora_rank")?, self.size("rope.dimension_count")?);
        let key_dims = match self.optional_size("attention.key_length_mla")? {
            Some(key_dims) => {
                self.expect_size("attention.key_length", rank.saturating_add(rotary_dims))?;
                // Files of Kimi Linear tell a width there that nothing has.
                if architecture != Architecture::KimiLinear {
                    self.expect_size("attention.value_length", rank)?;
                }
                key_dims
            }
            None => self.size("attention.key_length")?,
        };
        let value_dims = match self.optional_size("attention.value_length_mla")? {
            Some(value_dims) => value_dims,
            // Files of MiniCPM 3 leave it out.
            None if architecture == Architecture::MiniCpm3 => {
                let shared = self.size("embedding_length")? / self.size("attention.head_count")?.max(1);
                self.optional_size("attention.value_length")?.unwrap_or(shared)
            }
            None => self.size("attention.value_length")?,
        };
        let plain_dims = key_dims.checked_sub(rotary_dims).ok_or_else(|| {
            invalid(format!(
                "keys of {key_dims} numbers cannot have {rotary_dims} that are rotated"
            ))
        })?;
        let latent = Latent {
            rank,
            query_rank: self.optional_size("attention.q_lora_rank")?.filter(|rank| *rank != 0),
            plain_dims,
            rotary_dims,
            value_dims,
            indexer: match self.name {
                DEEPSEEK_V32 => Some(self.indexer(RopeStyle::Neox)?),
                GLM_DSA => Some(self.indexer(RopeStyle::Interleaved)?),
                _ => None,
            },
        };
        latent.check().map(Some)
    }

    /// The indexer of a family that has one.
    fn indexer(&self, rope_style: RopeStyle) -> Result<Indexer, ModelFileError> {
        Ok(Indexer {
            num_heads: self.size("attention.indexer.head_count")?,
            key_dims: self.size("attention.indexer.key_length")?,
            num_picked: self.size("attention.indexer.top_k")?,
            rope_style,
        })
    }

    /// Which layers have an indexer, in a family that has some: all where the file does not say.
    pub(super) fn indexed_layers(
        &self,
        latent: Option<&Latent>,
        num_layers: usize,
    ) -> Result<Vec<bool>, ModelFileError> {
        if latent.is_none_or(|latent| latent.indexer.is_none()) {
            return Ok(Vec::new());
        }
        let key = self.key("attention.indexer.types");
        match self.file.find(&key) {
            None => Ok(vec![true; num_layers.min(MOST_LAYERS)]),
            Some(MetadataValue::Array(MetadataArray::Bool(layers))) => Ok(layers.clone()),
            Some(_) => Err(invalid(format!("'{key}' must have true or false for each layer"))),
        }
    }

    /// Factor of the scores.
    pub(super) fn latent_scale(&self, latent: &Latent) -> Result<f32, ModelFileError> {
        let weight = self.number_or("rope.scaling.yarn_log_multiplier", 0.0)? / WEIGHT_UNIT;
        let factor = match self.file.metadata_str(&self.key("rope.scaling.type")) {
            Ok("yarn") => self.number_or("rope.scaling.factor", 1.0)?,
            _ => 1.0,
        };
        Ok(sharpened(latent.key_dims(), factor, weight))
    }
}
