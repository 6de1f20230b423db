//! Latent attention in a GGUF's metadata: of files that have its matrices apart, and of older ones.

use super::Keys;
use crate::config::latent::sharpened;
use crate::config::{Architecture, Latent, invalid};
use crate::weights::ModelFileError;

/// What is read of latent attention besides.
pub(super) const KEYS: [&str; 5] = [
    "attention.key_length_mla",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.value_length_mla",
    "rope.scaling.yarn_log_multiplier",
];

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
        };
        latent.check().map(Some)
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
