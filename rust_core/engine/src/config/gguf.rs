//! A GGUF's metadata as a configuration.

mod experts;
mod families;
mod gemma4;
mod hybrid;
mod latent;
mod llama4;
mod nemotron;

use pyagent_kernels::elementwise::{RopeScaling, RopeStyle};

use super::{Activation, Architecture, ModelConfig, QueryGrowth, assistant, invalid, minicpm, periodic, unsupported};
use crate::gguf::{GgufFile, MetadataArray, MetadataValue};
use crate::weights::{ModelFileError, clipped};

/// What is read here of the keys that begin with the architecture's name.
const READ: [&str; 21] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// What changes no number of the forward pass; where pictures go, and the sections by which their positions turn.
const IRRELEVANT: [&str; 7] = [
    "attention.layer_norm_epsilon",
    "mm.tokens_per_image",
    "n_deepstack_layers",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
];

/// What changes nothing with this value, and is not implemented with another.
const NEUTRAL: [(&str, f64); 12] = [
    ("attention.causal", 1.0),
    ("attn_logit_softcapping", 0.0),
    ("embedding_scale", 1.0),
    ("expert_count", 0.0),
    ("expert_gating_func", 1.0), // softmax
    ("expert_used_count", 0.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("nextn_predict_layers", 0.0),
    ("residual_scale", 1.0),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
];

/// Gemma 2's caps.
const CAPS: [&str; 2] = ["attn_logit_softcapping", "final_logit_softcapping"];

/// What is read of Ministral 3 besides.
const MINISTRAL3: &str = "mistral3";
const OF_MINISTRAL3: [&str; 2] = ["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"];

/// What files of decoders that embed or rank say besides.
const OF_POOLED: [&str; 7] = [
    "attention.causal",
    "classifier.output_labels",
    "dense_2_feat_in",
    "dense_2_feat_out",
    "dense_3_feat_in",
    "dense_3_feat_out",
    "pooling_type",
];
/// What files of assistants say besides; all their layers are of the kind that drafts.
const OF_ASSISTANTS: [&str; 2] = ["embedding_length_out", "nextn_predict_layers"];
/// Gemma 3 that embeds, both ways.
pub(crate) const GEMMA_EMBEDDING: &str = "gemma-embedding";

/// How Mistral Small 4's queries grow, of which files of llama.cpp's converter say nothing.
const MISTRAL4_GROWTH: f64 = 0.1;

/// The periods of layers that see everything: Gemma's, gpt-oss's, EXAONE 4's and Command R7B's.
const GEMMA2_PERIOD: usize = 2;
const GEMMA3_PERIOD: usize = 6;
const GPT_OSS_PERIOD: usize = 2;
const EXAONE4_PERIOD: usize = 4;
/// gpt-oss's gate, of which files say nothing.
const GPT_OSS_GATE: Activation = Activation::ClampedSwiglu {
    alpha: 1.702,
    limit: 7.0,
};

/// Gemma 3 27B and Gemma 2 27B, which scale by their mean head width.
const LARGEST_GEMMAS: [(Architecture, usize); 2] = [(Architecture::Gemma2, 46), (Architecture::Gemma3, 62)];

impl ModelConfig {
    /// Reads a GGUF's metadata.
    pub fn from_gguf(file: &GgufFile) -> Result<Self, ModelFileError> {
        match file.metadata_str("general.architecture")? {
            assistant::GGUF_NAME => Err(assistant::no_model()),
            name => Self::encoder_decoder_of_gguf(file, name).unwrap_or_else(|| Self::read_gguf(file, name, &[])),
        }
    }

    /// As `from_gguf`, of an assistant of Gemma 4.
    pub(crate) fn of_assistant_gguf(file: &GgufFile) -> Result<Self, ModelFileError> {
        Self::read_gguf(file, Architecture::Gemma4.name(), &OF_ASSISTANTS)
    }

    /// As `from_gguf`, of a decoder that embeds or ranks.
    pub(crate) fn of_pooled_gguf(file: &GgufFile) -> Result<Self, ModelFileError> {
        let family = match file.metadata_str("general.architecture")? {
            GEMMA_EMBEDDING => Architecture::Gemma3.name(),
            name => name,
        };
        Self::read_gguf(file, family, &OF_POOLED)
    }

    /// Reads the metadata of a file of a family, which may say `more`.
    fn read_gguf(file: &GgufFile, family: &str, more: &[&str]) -> Result<Self, ModelFileError> {
        let name = file.metadata_str("general.architecture")?;
        // llama.cpp's files of Bamba are Granite 4's, and halves of heads are not: they are refused there. It has no names
        // for the others.
        let architecture = Architecture::from_name(family).filter(|found| !found.is_of_folders());
        let architecture = architecture.ok_or_else(|| unsupported(name, ""))?;
        let keys = Keys { file, name };
        let has_caps = architecture == Architecture::Gemma2;
        let is_gemma4 = architecture == Architecture::Gemma4;
        let experts = match architecture {
            Architecture::Gemma4 => keys.gemma4_experts()?,
            _ => keys.experts(architecture)?,
        };
        let of_experts = experts::keys(architecture, experts.is_some());
        keys.refuse_unknown(
            has_caps,
            of_experts,
            &[hybrid::more_keys(architecture), latent::keys_of_indexer(name), more].concat(),
        )?;
        keys.refuse_uncounted_layers()?;
        let hidden_size = keys.size("embedding_length")?;
        let num_heads = keys.num_heads(architecture)?;
        let num_layers = keys.num_layers(architecture)?;
        let latent = keys.latent(architecture)?;
        // Files of Phi say 0 where there is none.
        let sliding_window = keys
            .optional_size("attention.sliding_window")?
            .filter(|window| *window != 0);
        let sliding_window = keys.chunk_size(architecture)?.or(sliding_window);
        let sliding_layers = keys.sliding_layers(architecture, num_layers, sliding_window.is_some())?;
        let shapes = keys.gemma4(architecture, &sliding_layers)?;
        let head_dim = match (&latent, &shapes) {
            (Some(latent), _) => latent.cached_dims(),
            (None, Some(shapes)) => shapes.head_dim,
            (None, None) if architecture.is_recurrent_alone() => ModelConfig::NO_HEADS.1,
            (None, None) => keys.head_dim(hidden_size, num_heads)?,
        };
        let rotary_dims = match &shapes {
            Some(_) => head_dim,
            None => keys.optional_size("rope.dimension_count")?.unwrap_or(head_dim),
        };
        let (recurrent, recurrent_layers) = keys.recurrent(architecture, num_layers, (num_heads, head_dim))?;
        // Nemotron-H's files tell of rotary numbers that it has not.
        let rotary_dims = if architecture == Architecture::NemotronH {
            head_dim
        } else {
            rotary_dims
        };
        let tells_others =
            is_gemma4 || latent.is_some() || matches!(architecture, Architecture::NemotronH | Architecture::MiniMax01);
        if !architecture.is_partly_rotary() && !tells_others {
            keys.expect_size("rope.dimension_count", head_dim)?;
        }
        let rope_base = keys.number_or("rope.freq_base", 10_000.0)?;
        let has_local_rope = is_gemma4 || architecture == Architecture::Gemma3;
        let is_gemma = architecture.is_gemma();
        let is_granite = architecture.is_granite();
        let rope_scaling = keys.rope_scaling()?;
        let alibi_max_bias = keys.alibi_max_bias(architecture, num_layers)?;
        let config = Self {
            architecture,
            vocab_size: 0,
            hidden_size,
            num_layers,
            num_heads,
            num_kv_heads: match &shapes {
                Some(shapes) => shapes.num_kv_heads,
                None => keys.num_kv_heads(architecture, num_heads)?,
            },
            head_dim,
            latent,
            indexed_layers: keys.indexed_layers(latent.as_ref(), num_layers)?,
            gemma4: shapes.as_ref().map(|shapes| shapes.gemma4),
            ffn_size: match (keys.optional_size("expert_feed_forward_length")?, &shapes) {
                (Some(size), _) if experts.is_some() => size,
                (_, Some(shapes)) => shapes.ffn_size,
                _ => keys.ffn_size(architecture)?,
            },
            experts,
            dense_layers: keys.dense_layers(architecture, experts.is_some(), num_layers)?,
            blocks: keys.blocks(architecture, num_layers)?,
            is_parallel: keys.is_parallel(architecture)?,
            has_two_norms: keys.has_two_norms(architecture),
            is_qkv_joined: keys.is_qkv_joined(architecture),
            context_length: rope_scaling.context_length(keys.size("context_length")?),
            norm_epsilon: keys.norm_epsilon(architecture)?,
            has_layer_norms: keys.has_layer_norms(architecture),
            norm_weight_offset: 0.0,
            rope_style: if architecture.is_interleaved_in_gguf() {
                RopeStyle::Interleaved
            } else {
                RopeStyle::Neox
            },
            rotary_dims,
            rotary_layers: match sliding_window {
                Some(_) if architecture.rotates_windows_alone() => sliding_layers.clone(),
                _ if architecture == Architecture::GraniteSwa => keys.rotary_pattern(num_layers)?,
                _ if architecture == Architecture::Cohere2Moe => keys.cohere2_moe_rotary_layers(&sliding_layers)?,
                _ if is_granite => vec![keys.has_positions()?; sliding_layers.len()],
                _ if architecture == Architecture::Llama4 => periodic(num_layers, llama4::PERIOD),
                _ if !architecture.has_rotary_attention() || alibi_max_bias.is_some() => {
                    vec![false; sliding_layers.len()]
                }
                _ => architecture.rotary_layers(num_layers),
            },
            rope_base,
            local_rope_base: keys.number_or("rope.freq_base_swa", if has_local_rope { 10_000.0 } else { rope_base })?,
            // OLMo 3's and Mellum's layers with windows see no stretched context.
            local_rope_scaling: if has_local_rope || matches!(architecture, Architecture::Olmo2 | Architecture::Mellum)
            {
                RopeScaling::None
            } else {
                rope_scaling.clone()
            },
            rope_scaling,
            sliding_window,
            are_windows_chunks: architecture == Architecture::Llama4,
            sliding_layers,
            recurrent,
            recurrent_layers,
            activation: match architecture {
                Architecture::GptOss => GPT_OSS_GATE,
                Architecture::NemotronH | Architecture::Arcee | Architecture::Nemotron | Architecture::Jais2 => {
                    Activation::ReluSquared
                }
                Architecture::StarCoder2
                | Architecture::Phi2
                | Architecture::Bloom
                | Architecture::Gpt2
                | Architecture::StarCoder
                | Architecture::CodeShell => Activation::BareGeluTanh,
                Architecture::GptNeoX | Architecture::Mpt | Architecture::Falcon => Activation::BareGelu,
                Architecture::Apertus => Activation::Xielu,
                _ if is_gemma => Activation::GeluTanh,
                _ => Activation::Silu,
            },
            attention_scale: match &latent {
                Some(latent) => keys.latent_scale(latent)?,
                None if is_granite => keys.factor("attention.scale", (head_dim as f32).powf(-0.5))?,
                None if is_gemma4 => 1.0,
                None if LARGEST_GEMMAS.contains(&(architecture, num_layers)) => {
                    ((hidden_size / num_heads.max(1)) as f32).powf(-0.5)
                }
                None => (head_dim as f32).powf(-0.5),
            },
            has_bare_qk_norms: llama4::has_norms(architecture, experts.as_ref()),
            query_growth: keys.query_growth(architecture)?,
            dual_chunks: None,
            alibi_max_bias,
            attention_softcap: keys.cap(has_caps, CAPS[0])?,
            logit_softcap: keys.cap(has_caps || is_gemma4, CAPS[1])?,
            embedding_scale: match architecture {
                _ if is_gemma || architecture == Architecture::Afmoe => (hidden_size as f32).sqrt(),
                _ if architecture.is_minicpm() => keys.factor("embedding_scale", minicpm::EMBEDDING_SCALE)?,
                _ if is_granite => keys.factor("embedding_scale", 1.0)?,
                _ => 1.0,
            },
            residual_scale: match architecture {
                _ if architecture.is_minicpm() => keys.factor("residual_scale", minicpm::residual_scale(num_layers))?,
                _ if is_granite => keys.factor("residual_scale", 1.0)?,
                _ => 1.0,
            },
            logit_divisor: match architecture {
                _ if is_granite => keys.factor("logit_scale", 1.0)?,
                _ if architecture.is_minicpm() => keys.factor("logit_scale", minicpm::logit_divisor(hidden_size))?,
                Architecture::Cohere | Architecture::Cohere2 | Architecture::Cohere2Moe => {
                    1.0 / keys.factor("logit_scale", 1.0)?
                }
                _ => 1.0,
            },
            multipliers: None,
            normed_stream: keys.normed_stream(architecture)?,
            is_output_tied: None,
            has_mtp: false,
            reads_both: false,
            encoder_decoder: None,
        };
        config.check()
    }
}

/// LongRoPE: the context length of the first training, and the factor on cosines and sines.
pub(crate) fn longrope(file: &GgufFile) -> Result<(usize, f32), ModelFileError> {
    let name = file.metadata_str("general.architecture")?;
    let keys = Keys { file, name };
    Ok((
        keys.original_context()?,
        keys.number_or("rope.scaling.attn_factor", 1.0)? as f32,
    ))
}

/// The keys that begin with the architecture's name.
pub(super) struct Keys<'a> {
    pub(super) file: &'a GgufFile,
    pub(super) name: &'a str,
}

impl Keys<'_> {
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.name)
    }

    pub(super) fn size(&self, suffix: &str) -> Result<usize, ModelFileError> {
        self.file.metadata_u64(&self.key(suffix)).map(|value| value as usize)
    }

    pub(super) fn optional_size(&self, suffix: &str) -> Result<Option<usize>, ModelFileError> {
        let is_there = self.file.find(&self.key(suffix)).is_some();
        is_there.then(|| self.size(suffix)).transpose()
    }

    /// Width of a head, the same of keys and values.
    pub(super) fn head_dim(&self, hidden_size: usize, num_heads: usize) -> Result<usize, ModelFileError> {
        let head_dim = self.optional_size("attention.key_length")?;
        let head_dim = head_dim.unwrap_or(hidden_size / num_heads.max(1));
        self.expect_size("attention.value_length", head_dim)?;
        Ok(head_dim)
    }

    pub(super) fn number_or(&self, suffix: &str, default: f64) -> Result<f64, ModelFileError> {
        match self.file.find(&self.key(suffix)) {
            None => Ok(default),
            Some(_) => self.file.metadata_f32(&self.key(suffix)).map(f64::from),
        }
    }

    /// A factor; a file that says 0 has none.
    fn factor(&self, suffix: &str, default: f32) -> Result<f32, ModelFileError> {
        let factor = self.number_or(suffix, 0.0)? as f32;
        Ok(if factor == 0.0 { default } else { factor })
    }

    /// A cap, of an architecture that has any; a file that says 0 has none.
    fn cap(&self, has_caps: bool, suffix: &str) -> Result<Option<f32>, ModelFileError> {
        let cap = if has_caps { self.number_or(suffix, 0.0)? } else { 0.0 };
        Ok((cap != 0.0).then_some(cap as f32))
    }

    /// Refuses a size that is not the one all layers have.
    pub(super) fn expect_size(&self, suffix: &str, expected: usize) -> Result<(), ModelFileError> {
        match self.optional_size(suffix)? {
            Some(size) if size != expected => {
                let key = self.key(suffix);
                Err(invalid(format!(
                    "'{key}' is {size}, which is not supported; expected {expected}"
                )))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn refuse_unknown(
        &self,
        has_caps: bool,
        of_experts: &[&[&str]],
        more: &[&str],
    ) -> Result<(), ModelFileError> {
        let prefix = self.key("");
        for (key, value) in self.file.metadata() {
            let Some(suffix) = key.strip_prefix(&prefix) else {
                continue;
            };
            let is_read = READ.contains(&suffix)
                || (has_caps && CAPS.contains(&suffix))
                || (self.name == MINISTRAL3 && OF_MINISTRAL3.contains(&suffix))
                || of_experts.iter().any(|keys| keys.contains(&suffix))
                || more.contains(&suffix);
            if is_read || IRRELEVANT.contains(&suffix) {
                continue;
            }
            let neutral = NEUTRAL
                .iter()
                .find(|(name, _)| *name == suffix)
                .map(|(_, value)| *value);
            if neutral.is_none() || number(value) != neutral {
                return Err(invalid(format!(
                    "'{key}' is not implemented, and ignoring it would change the model's answers; use another model or \
                     another engine"
                )));
            }
        }
        Ok(())
    }

    /// LongRoPE's factors are tensors, read where the others are.
    fn rope_scaling(&self) -> Result<RopeScaling, ModelFileError> {
        let kind = self.file.metadata_str(&self.key("rope.scaling.type")).unwrap_or("none");
        let factor = || self.file.metadata_f32(&self.key("rope.scaling.factor"));
        match kind {
            "none" | "longrope" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
            "yarn" => self.yarn(factor()?),
            other => Err(invalid(format!(
                "rope scaling '{}' is not supported; expected none, linear, yarn or longrope",
                clipped(other)
            ))),
        }
    }

    /// How Ministral 3's and Mistral Small 4's queries grow.
    fn query_growth(&self, architecture: Architecture) -> Result<Option<QueryGrowth>, ModelFileError> {
        if architecture == Architecture::Llama4 {
            return Ok(Some(llama4::GROWTH));
        }
        let by_family = if architecture == Architecture::Mistral4 {
            MISTRAL4_GROWTH
        } else {
            0.0
        };
        let beta = self.number_or("attention.temperature_scale", by_family)? as f32;
        let original = match self.optional_size("attention.temperature_length")? {
            Some(original) => original,
            None => self.original_context()?,
        };
        Ok((beta != 0.0).then_some(QueryGrowth {
            beta,
            original,
            offset: 0,
            is_of_unrotated: false,
        }))
    }

    fn yarn(&self, factor: f32) -> Result<RopeScaling, ModelFileError> {
        let sharpness_of = |scale: f32| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * scale * factor.ln() + 1.0
            }
        };
        // transformers' `attention_factor`; 1 is what llama.cpp's own files say of none.
        let told = self.number_or("rope.scaling.yarn_attn_factor", 1.0)? as f32;
        let sharpness = match self.number_or("rope.scaling.yarn_log_multiplier", 0.0)? {
            _ if told != 1.0 => told,
            0.0 => sharpness_of(1.0),
            _ if latent::SCALES_SCORES.contains(&self.name) => 1.0, // scores are scaled instead
            scale => sharpness_of(1.0) / sharpness_of(scale as f32),
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: self.number_or("rope.scaling.yarn_beta_fast", 32.0)? as f32,
            beta_slow: self.number_or("rope.scaling.yarn_beta_slow", 1.0)? as f32,
            original_max_position: self.original_context()?,
            is_truncated: self.name != Architecture::GptOss.name(), // no key says so
            attention_factor: sharpness * self.number_or("rope.scaling.attn_factor", 1.0)? as f32,
        })
    }

    fn original_context(&self) -> Result<usize, ModelFileError> {
        let own = self.optional_size("rope.scaling.original_context_length")?;
        own.map_or_else(|| self.size("context_length"), Ok)
    }

    /// Which layers have the window: those the file says (by a period, or one by one), else those the family has.
    fn sliding_layers(
        &self,
        architecture: Architecture,
        num_layers: usize,
        has_window: bool,
    ) -> Result<Vec<bool>, ModelFileError> {
        let key = self.key("attention.sliding_window_pattern");
        let every = match self.file.find(&key) {
            Some(MetadataValue::Array(MetadataArray::Bool(layers))) => return Ok(layers.clone()),
            Some(_) => self.size("attention.sliding_window_pattern")?,
            None if architecture == Architecture::Gemma2 => GEMMA2_PERIOD,
            None if architecture == Architecture::Gemma3 => GEMMA3_PERIOD,
            None if architecture == Architecture::GptOss => GPT_OSS_PERIOD,
            None if architecture == Architecture::Llama4 => llama4::PERIOD,
            None if architecture.rotates_windows_alone() && has_window => EXAONE4_PERIOD,
            None if matches!(
                architecture,
                Architecture::Llama | Architecture::Phi3 | Architecture::StarCoder2 | Architecture::PhiMoe
            ) || !has_window =>
            {
                0
            }
            None => {
                return Err(invalid(format!(
                    "'{}' without '{key}' does not say which layers have the window",
                    self.key("attention.sliding_window")
                )));
            }
        };
        Ok(periodic(num_layers, every))
    }
}

fn number(value: &MetadataValue) -> Option<f64> {
    match value {
        MetadataValue::Bool(truth) => Some(f64::from(u8::from(*truth))),
        value => value.as_f64().or_else(|| value.as_u64().map(|number| number as f64)),
    }
}
