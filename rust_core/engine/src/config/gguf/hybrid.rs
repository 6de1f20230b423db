//! Recurrent layers in a GGUF's metadata: LFM2's short convolutions, Qwen 3.5's gated delta nets, Granite 4's and
//! Nemotron-H's Mamba-2, Jamba's Mamba, MiniMax-01's lightning attention.

use super::{Keys, families, gemma4, latent, nemotron, number};
use crate::config::{
    Architecture, DeltaNet, KimiDelta, Lightning, Mamba1, Mamba2, ModelConfig, NormedStream, Recurrent, invalid,
    periodic,
};
use crate::gguf::{MetadataArray, MetadataValue};
use crate::weights::ModelFileError;

/// What is read of LFM2 besides.
const LFM2: [&str; 1] = ["shortconv.l_cache"];

/// What is read of Qwen 3.5 besides.
const QWEN35: [&str; 8] = [
    "attention.recurrent_layers",
    "full_attention_interval",
    "nextn_predict_layers",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// What is read of Granite 4 besides.
const GRANITE: [&str; 11] = [
    "attention.scale",
    "embedding_scale",
    "expert_shared_feed_forward_length",
    "logit_scale",
    "residual_scale",
    "rope.scaling.finetuned",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// What is read of Jamba besides.
const JAMBA: [&str; 4] = [
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// What is read of Mamba besides: whether what is selected is normalised, as Falcon-Mamba's is.
const MAMBA: [&str; 5] = [
    "ssm.conv_kernel",
    "ssm.dt_b_c_rms",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];
/// What is read of MiniMax-01 besides.
const MINIMAX01: [&str; 3] = [
    "attention.recurrent_layers",
    "full_attention_interval",
    "residual_scale",
];

/// The epsilon of these norms, of which files say nothing.
const FALCON_EPSILON: f32 = 1e-6;

/// Of how many layers the last has attention, where the file does not say.
const QWEN35_INTERVAL: usize = 4;
const MINIMAX01_INTERVAL: usize = 8;

/// The keys that are read of a family besides those of all.
pub(super) fn more_keys(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        _ if architecture.has_short_convolutions() => &LFM2,
        _ if architecture.has_delta_nets() => &QWEN35,
        Architecture::GraniteSwa => &families::OF_GRANITE_SWA,
        // Files of Granite 4 of attention alone have a hybrid's keys too.
        _ if architecture.is_granite() => &GRANITE,
        Architecture::NemotronH | Architecture::FalconH1 | Architecture::Mamba2 => &nemotron::KEYS,
        Architecture::Jamba => &JAMBA,
        Architecture::Mamba => &MAMBA,
        Architecture::Deepseek2 | Architecture::MiniCpm3 => &latent::KEYS,
        Architecture::Mistral4 => &latent::OF_MISTRAL4,
        Architecture::KimiLinear => &latent::OF_KIMI,
        Architecture::MiniMax01 => &MINIMAX01,
        Architecture::MiniCpm => &families::OF_MINICPM,
        Architecture::Gemma4 => &gemma4::KEYS,
        Architecture::Mpt => &families::OF_MPT,
        Architecture::StableLm | Architecture::GptNeoX => &families::OF_PARALLEL,
        Architecture::Cohere | Architecture::Cohere2 | Architecture::Cohere2Moe => &families::OF_COHERE,
        _ => &[],
    }
}

impl Keys<'_> {
    /// Query heads; files of Mamba say 0.
    pub(super) fn num_heads(&self, architecture: Architecture) -> Result<usize, ModelFileError> {
        match architecture {
            _ if architecture.is_recurrent_alone() => Ok(ModelConfig::NO_HEADS.0),
            _ => self.size("attention.head_count"),
        }
    }

    /// Key-value heads of the layers with attention. LFM2's and Granite 4's files have a number for each layer, 0 where it has none.
    pub(super) fn num_kv_heads(&self, architecture: Architecture, num_heads: usize) -> Result<usize, ModelFileError> {
        if architecture.has_latent_attention() || architecture.is_recurrent_alone() {
            return Ok(1);
        }
        let has_list = match architecture {
            Architecture::Granite => matches!(
                self.file.find(&self.key("attention.head_count_kv")),
                Some(MetadataValue::Array(_))
            ),
            Architecture::FalconH1 | Architecture::MiniMax01 => false,
            _ => architecture.is_hybrid() && !architecture.has_delta_nets(),
        };
        if !has_list {
            return Ok(self.optional_size("attention.head_count_kv")?.unwrap_or(num_heads));
        }
        let heads = self.heads_of_layers()?;
        let most = heads.iter().copied().max().unwrap_or(0);
        let may_be_none = architecture.is_hybrid();
        if heads.iter().any(|&count| count != most && !(count == 0 && may_be_none)) {
            let key = self.key("attention.head_count_kv");
            return Err(invalid(format!("'{key}' differs between layers with attention")));
        }
        Ok(most)
    }

    /// The recurrent layers of a family that has any, and which they are; it may have as many heads, as wide, as attention.
    pub(super) fn recurrent(
        &self,
        architecture: Architecture,
        num_layers: usize,
        (num_heads, head_size): (usize, usize),
    ) -> Result<(Option<Recurrent>, Vec<bool>), ModelFileError> {
        match architecture {
            _ if architecture.has_short_convolutions() => {
                let taps = self.size("shortconv.l_cache")?;
                let layers = self.heads_of_layers()?.into_iter().map(|count| count == 0).collect();
                Ok((Some(Recurrent::ShortConvolution { taps }), layers))
            }
            _ if architecture.has_delta_nets() => {
                let layers = self.told_layers(num_layers, QWEN35_INTERVAL)?;
                Ok((Some(Recurrent::DeltaNet(self.delta_net(architecture)?)), layers))
            }
            Architecture::GraniteHybrid => {
                let layers = self.heads_of_layers()?.into_iter().map(|count| count == 0).collect();
                Ok((Some(Recurrent::Mamba2(self.mamba2()?)), layers))
            }
            Architecture::MiniMax01 => {
                let layers = self.told_layers(num_layers, MINIMAX01_INTERVAL)?;
                let shape = Lightning { num_heads, head_size };
                Ok((layers.contains(&true).then_some(Recurrent::Lightning(shape)), layers))
            }
            Architecture::KimiLinear => {
                let layers = self.heads_of_layers()?.into_iter().map(|count| count == 0).collect();
                let shape = KimiDelta {
                    taps: self.size("ssm.conv_kernel")?,
                    num_heads: self.size("attention.head_count")?,
                    head_size: self.size("kda.head_dim")?,
                };
                Ok((Some(Recurrent::KimiDelta(shape)), layers))
            }
            Architecture::Jamba => {
                let layers: Vec<bool> = self.heads_of_layers()?.into_iter().map(|count| count == 0).collect();
                let mamba = layers
                    .contains(&true)
                    .then(|| self.mamba1(architecture).map(Recurrent::Mamba1));
                Ok((mamba.transpose()?, layers))
            }
            _ if architecture.is_recurrent_alone() => {
                let layers = vec![true; num_layers.min(crate::config::MOST_LAYERS)];
                let recurrent = match architecture {
                    Architecture::Mamba2 => Recurrent::Mamba2(self.mamba2()?),
                    _ => Recurrent::Mamba1(self.mamba1(architecture)?),
                };
                Ok((Some(recurrent), layers))
            }
            Architecture::FalconH1 => {
                let mut space = self.mamba2()?;
                space.is_normalised = self.file.find_tensor("blk.0.ssm_norm.weight").is_some();
                Ok((Some(Recurrent::Mamba2(space)), periodic(num_layers, 2)))
            }
            Architecture::NemotronH => {
                let layers = self.nemotron_recurrent(num_layers)?;
                let space = layers.contains(&true).then(|| self.mamba2().map(Recurrent::Mamba2));
                Ok((space.transpose()?, layers))
            }
            _ => Ok((None, vec![false; num_layers.min(crate::config::MOST_LAYERS)])),
        }
    }

    /// Factors on the norms that MiniMax-01's blocks read; files of llama.cpp's converter have one for all, and none on what
    /// blocks give.
    pub(super) fn normed_stream(&self, architecture: Architecture) -> Result<Option<NormedStream>, ModelFileError> {
        if architecture != Architecture::MiniMax01 {
            return Ok(None);
        }
        let factors = [self.factor("residual_scale", 1.0)?, 1.0];
        Ok(Some(NormedStream {
            attention: factors,
            lightning: factors,
            experts: factors,
        }))
    }

    /// Whether Granite 4's layers with attention have rotary positions, which files say in a place of their own.
    pub(super) fn has_positions(&self) -> Result<bool, ModelFileError> {
        let key = self.key("rope.scaling.finetuned");
        let found = self.file.find(&key).map(number);
        found
            .unwrap_or(Some(1.0))
            .map(|truth| truth != 0.0)
            .ok_or_else(|| invalid(format!("'{key}' must be a truth")))
    }

    fn mamba1(&self, architecture: Architecture) -> Result<Mamba1, ModelFileError> {
        let key = self.key("ssm.dt_b_c_rms");
        let is_normalised = match self.file.find(&key).map(number) {
            None => false,
            Some(told) => told.ok_or_else(|| invalid(format!("'{key}' must be a truth")))? != 0.0,
        };
        Ok(Mamba1 {
            taps: self.size("ssm.conv_kernel")?,
            inner_size: self.size("ssm.inner_size")?,
            state_size: self.size("ssm.state_size")?,
            step_rank: self.size("ssm.time_step_rank")?,
            norm_epsilon: match architecture {
                Architecture::Jamba => Some(self.norm_epsilon(architecture)?),
                _ => is_normalised.then_some(FALCON_EPSILON),
            },
        })
    }

    fn mamba2(&self) -> Result<Mamba2, ModelFileError> {
        let num_heads = self.size("ssm.time_step_rank")?;
        let inner = self.size("ssm.inner_size")?;
        if !inner.is_multiple_of(num_heads.max(1)) {
            let key = self.key("ssm.inner_size");
            return Err(invalid(format!(
                "'{key}' {inner} is not whole heads; there are {num_heads}"
            )));
        }
        Ok(Mamba2 {
            taps: self.size("ssm.conv_kernel")?,
            num_heads,
            head_size: inner / num_heads.max(1),
            num_groups: self.size("ssm.group_count")?,
            state_size: self.size("ssm.state_size")?,
            step_limits: [0.0, f64::INFINITY],
            is_normalised: true,
        })
    }

    /// Which layers are recurrent: those the file says, one by one or by a period.
    fn told_layers(&self, num_layers: usize, interval: usize) -> Result<Vec<bool>, ModelFileError> {
        let key = self.key("attention.recurrent_layers");
        match self.file.find(&key) {
            Some(MetadataValue::Array(MetadataArray::Bool(layers))) if layers.len() >= num_layers => {
                Ok(layers[..num_layers].to_vec())
            }
            Some(_) => Err(invalid(format!(
                "'{key}' must be a truth for each of the {num_layers} layers"
            ))),
            None => {
                let every = self.optional_size("full_attention_interval")?;
                Ok(periodic(num_layers, every.unwrap_or(interval)))
            }
        }
    }

    fn delta_net(&self, architecture: Architecture) -> Result<DeltaNet, ModelFileError> {
        let num_value_heads = self.size("ssm.time_step_rank")?;
        Ok(DeltaNet {
            taps: self.size("ssm.conv_kernel")?,
            num_key_heads: self.size("ssm.group_count")?,
            num_value_heads,
            key_size: self.size("ssm.state_size")?,
            value_size: self.size("ssm.inner_size")? / num_value_heads.max(1),
            is_tiled: architecture != Architecture::Qwen3Next,
        })
    }

    pub(super) fn heads_of_layers(&self) -> Result<Vec<usize>, ModelFileError> {
        self.sizes("attention.head_count_kv")
    }

    /// A size for each layer.
    pub(super) fn sizes(&self, suffix: &str) -> Result<Vec<usize>, ModelFileError> {
        let key = self.key(suffix);
        let sizes = self.file.metadata_i32s(&key)?;
        let sizes: Option<Vec<usize>> = sizes.into_iter().map(|count| usize::try_from(count).ok()).collect();
        sizes.ok_or_else(|| invalid(format!("'{key}' has a negative number")))
    }
}
