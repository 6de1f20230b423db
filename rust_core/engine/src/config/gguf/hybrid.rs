//! Recurrent layers in a GGUF's metadata: LFM2's short convolutions, Qwen 3.5's gated delta nets.

use super::{Keys, latent};
use crate::config::{Architecture, DeltaNet, Recurrent, invalid, periodic};
use crate::weights::ModelFileError;

/// What is read of LFM2 besides.
const LFM2: [&str; 1] = ["shortconv.l_cache"];

/// What is read of Qwen 3.5 besides.
const QWEN35: [&str; 6] = [
    "full_attention_interval",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// The layers between those with attention, where the file does not say.
const QWEN35_INTERVAL: usize = 4;

/// The keys that are read of a family besides those of all.
pub(super) fn more_keys(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::Lfm2 => &LFM2,
        Architecture::Qwen35 => &QWEN35,
        Architecture::Deepseek2 => &latent::KEYS,
        _ => &[],
    }
}

impl Keys<'_> {
    /// Key-value heads of the layers with attention. LFM2's files have a number for each layer, 0 where it has none.
    pub(super) fn num_kv_heads(&self, architecture: Architecture, num_heads: usize) -> Result<usize, ModelFileError> {
        if architecture == Architecture::Deepseek2 {
            return Ok(1);
        }
        if architecture != Architecture::Lfm2 {
            return Ok(self.optional_size("attention.head_count_kv")?.unwrap_or(num_heads));
        }
        let heads = self.heads_of_layers()?;
        let most = heads.iter().copied().max().unwrap_or(0);
        if heads.iter().any(|&count| count != 0 && count != most) {
            let key = self.key("attention.head_count_kv");
            return Err(invalid(format!("'{key}' differs between layers with attention")));
        }
        Ok(most)
    }

    /// The recurrent layers of a family that has any, and which they are.
    pub(super) fn recurrent(
        &self,
        architecture: Architecture,
        num_layers: usize,
    ) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        match architecture {
            Architecture::Lfm2 => {
                let taps = self.size("shortconv.l_cache")?;
                let layers = self.heads_of_layers()?.into_iter().map(|count| count == 0).collect();
                Ok((Some(Recurrent::ShortConvolution { taps }), layers))
            }
            Architecture::Qwen35 => {
                let every = self
                    .optional_size("full_attention_interval")?
                    .unwrap_or(QWEN35_INTERVAL);
                Ok((
                    Some(Recurrent::DeltaNet(self.delta_net()?)),
                    periodic(num_layers, every),
                ))
            }
            _ => Ok((None, vec![false; num_layers.min(crate::config::MOST_LAYERS)])),
        }
    }

    fn delta_net(&self) -> Result<DeltaNet, ModelFileError> {
        let num_value_heads = self.size("ssm.time_step_rank")?;
        Ok(DeltaNet {
            taps: self.size("ssm.conv_kernel")?,
            num_key_heads: self.size("ssm.group_count")?,
            num_value_heads,
            key_size: self.size("ssm.state_size")?,
            value_size: self.size("ssm.inner_size")? / num_value_heads.max(1),
            is_tiled: true,
        })
    }

    fn heads_of_layers(&self) -> Result<Vec<usize>, ModelFileError> {
        let key = self.key("attention.head_count_kv");
        let heads = self.file.metadata_i32s(&key)?;
        let heads: Option<Vec<usize>> = heads.into_iter().map(|count| usize::try_from(count).ok()).collect();
        heads.ok_or_else(|| invalid(format!("'{key}' has a negative number")))
    }
}
